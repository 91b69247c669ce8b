#!/usr/bin/env bash
# Tests and times the device "cuda" on a machine with a GPU, with the programs in a folder that scripts/bundle.sh made.
# Each command has a time limit, at most 560 s for all commands of a part, and adds a row to a table of results, which is
# printed again at the end. cuDNN is that of the system, of LD_LIBRARY_PATH, or of PyTorch. Attention is timed with and
# without cuDNN, and the log says which calls cuDNN supports.
#   scripts/test-gpu.sh [DIR] [PART...]          default: build-bundle and all parts except peers
# Parts:
#   tests      kernels against the reference, layers, training runs
#   plans      with AXONN_PLANS: the kernels, and each GEMM with the first and with the fastest algorithm
#   links      collectives from GPU to GPU, if there are several
#   sanitizer  memcheck and racecheck of steps with the plugin's own kernels
#   kernels    rates of kernels
#   steps      whole training steps
#   peers      steps of axonn, PyTorch and llm.c in turns (bench/gpu.py). Environment: CASE, default gpt2-1.5b; LLMC, a
#              checkout of llm.c or a built trainer (default: without llm.c); PLANS, AXONN_PLANS for axonn; PEERS, options
# Environment OUT: a folder for the files PART.txt with the output of each part.
set -uo pipefail
dir=${1:-build-bundle}
shift || true
parts=${*:-tests plans links sanitizer kernels steps}
dir=$(cd "$dir" && pwd) || exit 2
root=$(cd "$(dirname "$0")/.." && pwd)
before=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH=$dir:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
unset AXONN_PLUGINS AXONN_PLANS AXONN_ATTENTION AXONN_GRAPHS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=()
log=/dev/null

say() { printf '%s\n' "$@" | tee -a "$log"; }

# part NAME SECONDS COMMAND…: runs the command with a time limit, prints its output, and adds a row to the table.
part() {
    local name=$1 limit=$2 start=$SECONDS rc row
    shift 2
    say "== $name"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee -a "$log"
    rc=${PIPESTATUS[0]}
    [ "$rc" -ne 124 ] || rc="stopped after $limit s"
    row=$(printf '%-34s %-20s %4d s' "$name" "$([ "$rc" = 0 ] && echo ok || echo "FAILED: $rc")" $((SECONDS - start)))
    table+=("$row")
    say "$row"
}

# config LAYERS HIDDEN HEADS SEQ ROWS MICRO: writes the configuration of a GPT-2 model without data.
config() {
    cat >"$work/step.yaml" <<END
model: {family: gpt2, layers: $1, hidden: $2, heads: $3, vocab: 50257, seq_len: $4}
data: {mask_documents: false}
train: {global_batch: $5, micro_batch: $6, precision: bf16}
device: cuda
END
}

# has_cudnn: whether a step of a small model runs with cuDNN; $why is its error message if not.
has_cudnn() {
    config 1 64 1 16 1 1
    why=$(AXONN_ATTENTION=cudnn timeout 60 \
        "$dir/axonn" bench step "$work/step.yaml" --steps 1 --warm-up 1 2>&1 >/dev/null)
}

# plans: times each GEMM of a step with cuBLASLt's first algorithm and with the fastest one. A first process
# measures algorithms and writes the plans; then both variants take turns.
plans() {
    local bench=("$dir/axonn" bench gemm "$work/step.yaml" --json) turn
    export AXONN_PLANS=$work/plans
    "${bench[@]}" >/dev/null || return
    for turn in 1 2; do
        AXONN_PLANS=off "${bench[@]}" >"$work/first$turn" && "${bench[@]}" >"$work/timed$turn" || return
    done
    awk 'function of(key) {
             match($0, "\"" key "\":[^,}]*")
             value = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
             gsub(/"/, "", value)
             return value
         }
         FNR == 1 { file++ }
         { name = of("case"); ms[file, name] = of("median") }
         file < 4 { next }
         FNR == 1 {
             printf "%-36s %6s %21s %21s %7s\n", "GEMM", "calls", "first, ms, twice", "timed, ms, twice", "of it"
         }
         { printf "%-36s %6d %10.4f %10.4f %10.4f %10.4f %5.0f %%\n", name, of("calls"), ms[1, name], ms[3, name],
                  ms[2, name], ms[4, name], 100 * (ms[2, name] + ms[4, name]) / (ms[1, name] + ms[3, name])
         }' "$work/first1" "$work/timed1" "$work/first2" "$work/timed2"
}
export -f plans
export dir work

attentions=(cudnn flash)
if ! has_cudnn; then
    cudnn=$(python3 -c 'import nvidia.cudnn; print(nvidia.cudnn.__path__[0] + "/lib")' 2>/dev/null)
    LD_LIBRARY_PATH=$dir:${cudnn:+$cudnn:}${LD_LIBRARY_PATH#"$dir:"}
    has_cudnn || attentions=(flash)
fi
about=$(
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader
    "$dir/axonn" info | grep -E '^axonn|cuda'
    [ "${attentions[0]}" = cudnn ] || printf 'attention uses the own kernels only, because cuDNN cannot be used:\n%s\n' "$why"
)
say "$about"
for what in $parts; do
    if [ -n "${OUT:-}" ]; then
        log=$OUT/$what.txt
        printf '%s\n' "$about" >"$log" || exit 2
    fi
    case $what in
        tests)
            part "kernels against ref" 300 "$dir/test_dev_backend" cuda
            part "layers, runs, memory" 200 "$dir/test_engine_cuda"
            part "selftest" 60 bash -o pipefail -c '"$dir/axonn" selftest | grep -E "cuda|passed"'
            ;;
        plans)
            part "kernels with timed plans" 310 env AXONN_PLANS="$work/plans" "$dir/test_dev_backend" cuda
            config 48 1600 25 1024 16 16
            part "plans of GPT-2 1.5B's GEMMs" 250 bash -c plans
            ;;
        links)
            [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ] || part "GPU to GPU" 200 "$dir/test_engine_links"
            ;;
        sanitizer)
            config 2 256 4 128 4 4
            for tool in memcheck racecheck initcheck; do
                part "compute-sanitizer $tool" 150 env AXONN_ATTENTION=flash \
                    compute-sanitizer --tool "$tool" --error-exitcode 1 \
                    "$dir/axonn" bench step "$work/step.yaml" --steps 1 --warm-up 1
            done
            ;;
        kernels)
            part "rates of kernels" 300 "$dir/bench_kernels" cuda 0 bf16
            for attention in "${attentions[@]}"; do
                part "attention: $attention" 90 env AXONN_ATTENTION="$attention" AXONN_LOG=debug \
                    "$dir/bench_kernels" cuda 0 "attention bf16"
            done
            ;;
        steps)
            config 12 768 12 1024 64 64
            for attention in "${attentions[@]}"; do
                part "GPT-2 124M, 64 x 1024, $attention" 120 env AXONN_ATTENTION="$attention" AXONN_LOG=debug \
                    "$dir/axonn" bench step "$work/step.yaml" --steps 8
            done
            config 12 768 12 1024 64 4
            for graphs in on off; do
                part "the same, 4 at a time, graphs $graphs" 60 env AXONN_GRAPHS="$graphs" \
                    "$dir/axonn" bench step "$work/step.yaml" --steps 8
            done
            config 48 1600 25 1024 16 16
            part "GPT-2 1.5B, 16 x 1024" 200 env AXONN_LOG=debug "$dir/axonn" bench step "$work/step.yaml" --steps 4
            ;;
        peers)
            # PyTorch and llm.c do not get the libraries of the bundle. If the time limit stops a program in its
            # second turn, the result of its first turn remains.
            read -ra more <<<"${PEERS:-}"
            part "${CASE:=gpt2-1.5b} and peers" 555 env LD_LIBRARY_PATH="$before" ${PLANS:+"AXONN_PLANS=$PLANS"} \
                python3 "$root/bench/gpu.py" --axonn "$dir/axonn" --libraries "$LD_LIBRARY_PATH" --cases "$CASE" \
                --parties "axonn${LLMC:+,llm.c},torch" ${LLMC:+--llmc "$LLMC"} \
                --rounds 2 --steps 3 --warmup 1 --seconds 535 "${more[@]}"
            ;;
        *)
            echo "test-gpu: no part is named \"$what\"" >&2
            exit 2
            ;;
    esac
done
printf '\n%s\n' "$(printf '%s\n' "${table[@]}")"
! printf '%s\n' "${table[@]}" | grep -q FAILED
