#!/usr/bin/env bash
# Judges and times the device "cuda" on a machine with a GPU, from a folder that scripts/bundle.sh made: kernels against
# the reference, layers and training runs, collectives from GPU to GPU where there are several, memcheck and racecheck of
# steps by own kernels, rates of kernels, whole steps. Each part has a time limit; the last lines are a table of what
# passed. Parts: tests sanitizer kernels steps. cuDNN is the system's, that of LD_LIBRARY_PATH, or else PyTorch's;
# attention is timed with it and without.
#   scripts/test-gpu.sh [DIR] [PART...]          default: build-bundle and all parts
set -uo pipefail
dir=${1:-build-bundle}
shift || true
parts=${*:-tests sanitizer kernels steps}
dir=$(cd "$dir" && pwd) || exit 2
export LD_LIBRARY_PATH=$dir:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
unset AXONN_PLUGINS AXONN_PLANS AXONN_ATTENTION
has_cudnn() { AXONN_ATTENTION=cudnn "$dir/bench_kernels" cuda 0 none >/dev/null 2>&1; }
if ! has_cudnn; then
    cudnn=$(python3 -c 'import nvidia.cudnn; print(nvidia.cudnn.__path__[0] + "/lib")' 2>/dev/null)
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH${cudnn:+:$cudnn}
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=()

# part NAME SECONDS COMMAND…: its output, and a row of the table.
part() {
    local name=$1 limit=$2 start=$SECONDS rc
    shift 2
    echo "== $name"
    timeout --kill-after=10 "$limit" "$@" 2>&1
    rc=$?
    [ "$rc" -ne 124 ] || rc="stopped after $limit s"
    table+=("$(printf '%-34s %-20s %4d s' "$name" "$([ "$rc" = 0 ] && echo ok || echo "FAILED: $rc")" $((SECONDS - start)))")
}

# config LAYERS HIDDEN HEADS SEQ ROWS MICRO: a model of GPT-2's kind without data.
config() {
    cat >"$work/step.yaml" <<END
model: {family: gpt2, layers: $1, hidden: $2, heads: $3, vocab: 50257, seq_len: $4}
data: {train: none, mask_documents: false}
train: {global_batch: $5, micro_batch: $6, precision: bf16}
device: cuda
END
}

# plans: each product of a step, with cuBLASLt's first answer and with the one that is measured to be the fastest.
plans() {
    local bench=("$dir/axonn" bench gemm "$work/step.yaml" --json)
    "${bench[@]}" >"$work/first" && AXONN_PLANS=$work/plans "${bench[@]}" >"$work/timed" || return
    awk 'function of(key) {
             match($0, "\"" key "\":[^,}]*")
             value = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
             gsub(/"/, "", value)
             return value
         }
         { name = of("case") }
         FNR == NR { first[name] = of("median"); next }
         FNR == 1 { printf "%-36s %6s %10s %10s %7s\n", "product", "calls", "first, ms", "timed, ms", "of it" }
         { printf "%-36s %6d %10.4f %10.4f %5.0f %%\n", name, of("calls"), first[name], of("median"),
                  100 * of("median") / first[name] }' "$work/first" "$work/timed"
}
export -f plans
export dir work

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader
"$dir/axonn" info | grep -E '^axonn|cuda'
attentions=(flash)
if has_cudnn; then attentions=(cudnn flash); else echo "no cuDNN is to be used: attention by own kernels alone"; fi
for what in $parts; do
    case $what in
        tests)
            part "kernels against ref" 300 "$dir/test_dev_backend" cuda
            part "the same with timed plans" 400 env AXONN_PLANS="$work/plans" "$dir/test_dev_backend" cuda
            part "layers, runs, memory" 200 "$dir/test_engine_cuda"
            [ "$(nvidia-smi --list-gpus | wc -l)" -lt 2 ] || part "GPU to GPU" 200 "$dir/test_engine_links"
            part "selftest" 60 sh -c "'$dir/axonn' selftest | grep -E 'cuda|passed'"
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
            part "rates of kernels" 220 "$dir/bench_kernels" cuda 0 bf16
            for attention in "${attentions[@]}"; do
                part "attention: $attention" 90 env AXONN_ATTENTION="$attention" AXONN_LOG=debug \
                    "$dir/bench_kernels" cuda 0 "attention bf16"
            done
            config 48 1600 25 1024 16 16
            part "plans of GPT-2 1.5B's products" 180 bash -c plans
            ;;
        steps)
            config 12 768 12 1024 64 64
            for attention in "${attentions[@]}"; do
                part "GPT-2 124M, 64 x 1024, $attention" 120 env AXONN_ATTENTION="$attention" \
                    "$dir/axonn" bench step "$work/step.yaml" --steps 8
            done
            config 48 1600 25 1024 16 16
            part "GPT-2 1.5B, 16 x 1024" 200 "$dir/axonn" bench step "$work/step.yaml" --steps 4
            ;;
        *)
            echo "test-gpu: no part is named \"$what\"" >&2
            exit 2
            ;;
    esac
done
printf '\n%s\n' "$(printf '%s\n' "${table[@]}")"
! printf '%s\n' "${table[@]}" | grep -q FAILED
