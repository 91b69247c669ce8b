#!/usr/bin/env bash
# Tests and times the device "cuda" on a machine with a GPU, with the programs in a folder that scripts/bundle.sh made.
# Each command is a process of its own with a time limit, and a row in a table of results: a command that fails or hangs does
# not stop the others. CUDA's libraries may be those of the system, of LD_LIBRARY_PATH, or of a Python environment. A row
# that names cuDNN fails if cuDNN did not compute attention.
#   scripts/test-gpu.sh [DIR] [PART...]      default: the bundle that has this script, else build-bundle; all parts
# Parts, in this order, with the most seconds that each takes:
#   first      300  libraries; each kernel against the reference; attention by own kernels and by cuDNN; a step of each model
#   steps      480  steps: plans, graphs and cuDNN on and off, a padded vocabulary, micro-batches of 8, 16 and 32 rows
#   peers      480  steps of axonn, PyTorch and llm.c in turns (bench/gpu.py)
#   kernels    480  rates of kernels; each GEMM with the first and with the fastest algorithm
#   memory     480  memory as planned, as held, and as the driver reports it
#   sanitizer  480  compute-sanitizer on our kernels, during steps of small models
#   tests      480  layers, training runs, kernels with timed plans
#   links      200  collectives from GPU to GPU, if there are several
# Environment:
#   OUT       a folder for results, as they come: table.txt, log.txt (what the commands print), plans/ (measured plans)
#   PLANS     a folder of measured plans, to use those of an earlier visit; default: OUT/plans
#   CASE      peers: the model, default gpt2-1.5b. LLMC: a trainer of llm.c, default DIR/train_gpt2cu if it exists. PEERS:
#             more options of bench/gpu.py
#   REHEARSE  =1 tries out this script on the emulated GPU: tiny models, few cases, more patience
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
all_parts=(first steps peers kernels memory sanitizer tests links)
declare -A part_seconds=([first]=300 [steps]=480 [peers]=480 [kernels]=480 [memory]=480 [sanitizer]=480 [tests]=480
    [links]=200)
patience=1 # all limits are multiplied by it

# ---- models and shapes ----

declare -A models=(# layers, width, heads, tokens of a row
    ["GPT-2 124M"]="12 768 12 1024" ["GPT-2 1.5B"]="48 1600 25 1024"
    ["small GPT-2"]="2 256 4 128" ["small Llama"]="2 256 4 128")
vocab=50257 padded=50304 cases=3 kernel_seconds=60
attention=("b16 t1024 h25/25 d64" "b16 t1024 h12/12 d64" "b4 t4096 h32/32 d128" "b4 t4096 h32/8 d128")
few_attention=("${attention[0]}" "${attention[3]}")
shapes=()
# The files of src/dev/cuda with kernels: the names of these kernels in the program contain the name of their file.
kernel_files=(attention box decode documents experts flash gemm_grouped gemm_plain loss norm pointwise rope update)
if [ -n "${REHEARSE:-}" ]; then
    for model in "${!models[@]}"; do models[$model]="1 32 2 8"; done
    vocab=515 padded=576 cases=40 kernel_seconds=5 shapes=(tiny) patience=6
    attention=("b2 t32 h2/2 d32" "b1 t64 h4/2 d64")
    few_attention=("${attention[@]}")
fi

# ---- rows of the table ----

say() { printf '%s\n' "$@" | tee -a "$log"; }

# add_row NAME RESULT SECONDS TEXT
add_row() {
    local row
    row=$(printf '%-9s %-46s %-7s %4d s  %s' "$part" "$1" "$2" "$3" "$4")
    printf '%s\n' "$row" >>"$table"
    say "$row"
}

# figures FILE: the figures of `axonn bench step --json`, or of attention in bench_kernels. MFU is of 989 TFLOP/s.
figures() {
    awk 'function of(key) {
             match($0, "\"" key "\": *[^,}]*")
             text = substr($0, RSTART, RLENGTH)
             sub(/^[^:]*: */, "", text)
             return text
         }
         /"tokens_per_s"/ {
             printf "%.1f ms, %.0f tokens/s, MFU %.1f %%, %.2f GiB planned, %.2f held", of("median"), of("tokens_per_s"),
                    of("flops_per_s") / 989e10, of("mem_planned") / 2 ^ 30, of("mem_held") / 2 ^ 30
         }
         /^driver: / { printf ", %s", $0 }
         /^(attention|attn_grad) .* us / {
             match($0, /[0-9.]+ us .*/)
             printf "%s%s", (n++ ? "; " : ""), substr($0, RSTART, RLENGTH)
         }' "$1" | tr -s ' ' | cut -c1-200
}

# last_line FILE: the last line that is not empty, shortened.
last_line() { awk 'NF { line = $0 } END { print substr(line, 1, 200) }' "$1"; }

# by_cudnn FILE: whether the log says that cuDNN computes attention, and nowhere that own kernels do.
by_cudnn() { grep -q 'attention .*: by cuDNN' "$1" && ! grep -q "attention .*by the plugin's own kernels" "$1"; }

# row NAME SECONDS COMMAND…: runs the command for at most these seconds, and at most as long as the part may take.
row() {
    local name=$1 limit=$(($2 * patience)) start=$SECONDS code=0 result=FAILED text
    shift 2
    [ $((ends - start)) -ge "$limit" ] || limit=$((ends - start))
    if [ "$limit" -lt 1 ]; then
        add_row "$name" FAILED 0 "not run: the part may take $((part_seconds[$part] * patience)) s"
        return
    fi
    timeout --kill-after=5 "$limit" "$@" >"$output" 2>&1 </dev/null || code=$?
    if [ "$code" -eq 0 ] && [[ $name == *cuDNN* ]] && ! by_cudnn "$output"; then
        text="not by cuDNN: $(grep -m 1 "own kernels" "$output")"
    elif [ "$code" -eq 0 ]; then
        result=ok text=$(figures "$output")
    elif [ $((SECONDS - start)) -ge "$limit" ]; then
        text="stopped after $limit s"
    else
        text="exit code $code: $(last_line "$output")"
    fi
    { echo "== $name" && cat "$output"; } | flock "$log" tee -a "$log"
    add_row "$name" "$result" $((SECONDS - start)) "$text"
}

# config MODEL ROWS MICRO: writes the configuration of a model without data to $work/step.yaml.
config() {
    local layers hidden heads seq family=gpt2
    read -r layers hidden heads seq <<<"${models[$1]}"
    [[ $1 != *Llama ]] || family="llama, kv_heads: $((heads / 2)), ffn: $((3 * hidden))"
    cat >"$work/step.yaml" <<END
model: {family: $family, layers: $layers, hidden: $hidden, heads: $heads, vocab: $vocab, seq_len: $seq}
data: {mask_documents: false}
train: {global_batch: $2, micro_batch: $3, precision: bf16}
runtime: {plans: $plans, log: debug}
device: cuda
END
}

# step NAME MODEL ROWS MICRO [OPTION | KEY=VALUE…]: times steps of a model; $watch runs the command.
step() {
    local name=$1
    config "$2" "$3" "$4"
    row "$name" 110 "${watch[@]}" "$dir/axonn" bench step "$work/step.yaml" --json "${@:5}"
}
watch=()

# ---- parts ----

# The libraries that are looked for, and what follows if one is missing.
libraries() {
    local name why found
    while read -r name why; do
        found=$(find_library "$name")
        if [ -n "$found" ]; then
            add_row "$name" ok 0 "$found"
        else
            add_row "$name" missing 0 "$why"
        fi
    done <<END
libcudart.so.13 nothing runs
libcublasLt.so.13 nothing runs
libcudnn.so.9 own kernels compute attention
libnvrtc.so.13 cuDNN makes no plan, so that own kernels compute attention
libnvrtc-builtins.so.13* cuDNN makes no plan, so that own kernels compute attention
libnccl.so.2 collectives between GPUs go through the host
END
}

# find_library PATTERN: the path of a library, in the order in which the loader looks for it.
find_library() {
    local folder file
    IFS=: read -ra folders <<<"$LD_LIBRARY_PATH"
    for folder in "${folders[@]}"; do
        for file in "$folder"/$1; do # the pattern is expanded
            [ -n "$folder" ] && [ -e "$file" ] && echo "$file" && return
        done
    done
    ldconfig -p 2>/dev/null | awk -v name="${1%\*}" 'index($1, name) == 1 { print $NF; exit }'
}

# Tests each kernel in a process of its own, four at a time.
every_kernel() {
    local kernel kernels
    kernels=$("$dir/test_dev_backend" list) && [ -n "$kernels" ] || add_row "kernels against ref" FAILED 0 "cannot be listed"
    for kernel in $kernels; do
        while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
        (
            output=$work/$kernel.txt
            row "kernel $kernel against ref" $kernel_seconds "$dir/test_dev_backend" cuda "kernel=$kernel" "step=$cases"
        ) &
    done
    wait
}

# both_attentions SHAPE…: times attention by own kernels and by cuDNN.
both_attentions() {
    local shape
    for shape in "$@"; do
        row "attention $shape, own" 40 env AXONN_ATTENTION=flash \
            "$dir/bench_kernels" cuda 0 "attention bf16 $shape" "${shapes[@]}"
        row "attention $shape, cuDNN" 40 env AXONN_ATTENTION=cudnn AXONN_LOG=debug \
            "$dir/bench_kernels" cuda 0 "attention bf16 $shape" "${shapes[@]}"
    done
}

part_first() {
    libraries
    every_kernel
    both_attentions "${few_attention[@]}"
    step "GPT-2 124M, a step" "GPT-2 124M" 16 16 --steps 1 --warm-up 1
    step "GPT-2 1.5B, a step" "GPT-2 1.5B" 16 16 --steps 1 --warm-up 1
}

part_steps() {
    local large=("GPT-2 1.5B" 64 16 --steps 3 --warm-up 1) micro
    step "GPT-2 1.5B, 16 rows" "${large[@]}"
    step "GPT-2 1.5B, 16 rows, plans off" "${large[@]}" runtime.plans=off
    step "GPT-2 1.5B, 16 rows, graphs off" "${large[@]}" runtime.graphs=off
    step "GPT-2 1.5B, 16 rows, vocabulary $padded" "${large[@]}" "model.vocab=$padded"
    step "GPT-2 1.5B, 16 rows, cuDNN" "${large[@]}" runtime.attention=cudnn
    step "GPT-2 1.5B, 16 rows, own attention" "${large[@]}" runtime.attention=flash
    for micro in 8 32; do
        step "GPT-2 1.5B, $micro rows" "${large[@]}" "train.micro_batch=$micro"
    done
    step "GPT-2 124M, 64 rows" "GPT-2 124M" 128 64 --steps 5
    step "GPT-2 124M, 4 rows" "GPT-2 124M" 64 4 --steps 5
    step "GPT-2 124M, 4 rows, graphs off" "GPT-2 124M" 64 4 --steps 5 runtime.graphs=off
}

# PyTorch and llm.c do not get the libraries of the bundle. If the time limit stops a program in its second turn, the result
# of its first turn remains.
part_peers() {
    local more times=(--rounds 2 --steps 3 --warmup 1 --seconds 450)
    read -ra more <<<"${PEERS:-}"
    [ -n "${LLMC:-}" ] || [ ! -e "$dir/train_gpt2cu" ] || LLMC=$dir/train_gpt2cu
    [ -z "${REHEARSE:-}" ] || CASE=tiny times=(--rounds 1 --steps 1 --warmup 1 --seconds 450)
    row "${CASE:=gpt2-1.5b}: axonn${LLMC:+, llm.c}, torch" 470 env LD_LIBRARY_PATH="$before" AXONN_PLANS="$plans" \
        python3 "$root/bench/gpu.py" --axonn "$dir/axonn" --libraries "$LD_LIBRARY_PATH" --cases "$CASE" \
        --parties "axonn${LLMC:+,llm.c},torch" ${LLMC:+--llmc "$LLMC"} "${times[@]}" "${more[@]}"
}

# Times each GEMM of a step with cuBLASLt's first algorithm and with the fastest one. A first process measures algorithms
# and writes the plans; then both variants take turns.
gemm_plans() {
    local bench=("$dir/axonn" bench gemm "$work/step.yaml" --json) turn
    "${bench[@]}" >/dev/null || return
    for turn in 1 2; do
        "${bench[@]}" runtime.plans=off >"$work/first$turn" && "${bench[@]}" >"$work/timed$turn" || return
    done
    awk 'function of(key) {
             match($0, "\"" key "\": *[^,}]*")
             text = substr($0, RSTART, RLENGTH)
             sub(/^[^:]*: */, "", text)
             gsub(/"/, "", text)
             return text
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

part_kernels() {
    row "rates of kernels" 200 "$dir/bench_kernels" cuda 0 bf16 "${shapes[@]}"
    both_attentions "${attention[@]}"
    config "GPT-2 1.5B" 16 16
    row "plans of GPT-2 1.5B's GEMMs" 250 bash -c gemm_plans
}

# driver_memory COMMAND…: runs the command, and asks the driver twice a second how much memory of the GPU is in use.
driver_memory() {
    local query=(nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits) child most=0 now idle
    idle=$("${query[@]}")
    "$@" &
    child=$!
    while kill -0 $child 2>/dev/null; do
        now=$("${query[@]}")
        [ "$((now))" -le "$most" ] || most=$now
        sleep 0.5
    done
    echo "driver: $((most - idle)) MiB at most"
    wait $child
}

part_memory() {
    local micro
    watch=(bash -c 'driver_memory "$@"' _)
    step "memory, GPT-2 124M, 64 rows" "GPT-2 124M" 64 64 --steps 2 --warm-up 1
    for micro in 8 16; do
        step "memory, GPT-2 1.5B, $micro rows" "GPT-2 1.5B" 16 "$micro" --steps 2 --warm-up 1
    done
    step "memory, GPT-2 1.5B, 16 rows, graphs off" "GPT-2 1.5B" 16 16 --steps 2 --warm-up 1 runtime.graphs=off
    watch=()
}

part_sanitizer() {
    local file tool model ours=()
    for file in "${kernel_files[@]}"; do
        ours+=(--kernel-name "kns=_${file}_cu_")
    done
    for model in "small GPT-2" "small Llama"; do
        for tool in memcheck racecheck initcheck synccheck; do
            watch=(compute-sanitizer --tool "$tool" --error-exitcode 9 "${ours[@]}")
            step "$tool, $model" "$model" 4 4 --steps 1 --warm-up 1 runtime.attention=flash runtime.plans=off
        done
    done
    watch=()
}

part_tests() {
    row "layers, runs, memory" 200 env AXONN_TEST_ALL=1 "$dir/test_engine_cuda"
    row "selftest" 60 bash -o pipefail -c '"$dir/axonn" selftest | grep -E "cuda|passed"'
    row "GEMMs with timed plans against ref" 200 env AXONN_PLANS="$plans" "$dir/test_dev_backend" cuda kernel=gemm \
        "step=$cases"
}

part_links() {
    if [ "$(nvidia-smi --list-gpus | wc -l)" -gt 1 ]; then
        row "GPU to GPU" 190 "$dir/test_engine_links"
    else
        add_row "GPU to GPU" ok 0 "not run: there is one GPU"
    fi
}

# ---- main ----

stop() {
    printf 'test-gpu: %s\n' "$1" >&2
    exit 2
}

dir=$root
[ -x "$dir/axonn" ] || dir=build-bundle
if [ $# -gt 0 ] && [[ " ${all_parts[*]} " != *" $1 "* ]]; then
    dir=$1
    shift
fi
[ -x "$dir/axonn" ] || stop "$dir has no axonn: scripts/bundle.sh makes such a folder; parts are ${all_parts[*]}"
dir=$(cd "$dir" && pwd)
parts=("$@")
[ $# -gt 0 ] || parts=("${all_parts[@]}")
for part in "${parts[@]}"; do
    declare -F "part_$part" >/dev/null || stop "no part is named \"$part\"; there are ${all_parts[*]}"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=${OUT:-$work} plans=${PLANS:-${OUT:-$work}/plans}
mkdir -p "$results" "$plans" || exit 2
results=$(cd "$results" && pwd) plans=$(cd "$plans" && pwd)
table=$results/table.txt log=$results/log.txt output=$results/running.txt
touch "$table" "$log" || exit 2
unset AXONN_PLUGINS AXONN_ATTENTION AXONN_GRAPHS AXONN_LOG
export AXONN_PLANS=off # what times plans names their folder
before=${LD_LIBRARY_PATH:-}
packages=$("$root/scripts/python-packages.sh" | while read -r folder; do
    for libraries in "$folder"/nvidia/*/lib; do
        [ ! -d "$libraries" ] || printf ':%s' "$libraries"
    done
done)
export LD_LIBRARY_PATH=$dir:${before:+$before:}/usr/local/cuda/lib64$packages
export -f gemm_plans driver_memory
export dir work

lacks=$(ldd "$dir/libaxonn_cuda.so" | awk '/not found/ { print $1; exit }')
[ -z "$lacks" ] || stop "$lacks is missing, without which nothing runs: add its folder to LD_LIBRARY_PATH"
about=$(timeout 120 "$dir/axonn" info | grep -E '^axonn|^  cuda |; attention by|cannot be opened:' | sed 's/^ *//; s/  */ /g')
why=$(grep -E '^cuda absent|^cannot be opened' <<<"$about")
[ -z "$why" ] || stop "$why"
say "$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader 2>&1)" "$about"
began=$(($(wc -l <"$table") + 1))
for part in "${parts[@]}"; do
    first=$(($(wc -l <"$table") + 1)) ends=$((SECONDS + part_seconds[$part] * patience))
    "part_$part"
    printf '\n%s\n\n' "$(tail -n "+$first" "$table")"
done
rm -f "$output"
! tail -n "+$began" "$table" | grep -q FAILED
