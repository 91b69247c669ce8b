#!/usr/bin/env bash
# Compiles the CUDA kernels for Hopper as cmake does, and checks those in the table below: they may not spill registers into
# memory, and read global memory 128 bits at a time where that is intended. Skips the check if there is no nvcc, and that of
# loads if there is no disassembler (nvdisasm or cuobjdump).
#   scripts/check-kernels.sh [FILE.cu...]     default: all files. Environment: NVCC; ALL=1 prints registers and loads
#                                             (128 bits + narrower) of all kernels; BUILD=build checks what a build has
#                                             kept, and compiles nothing that it has
#   scripts/check-kernels.sh --keep NVCC…     runs a compilation of cmake's for Hopper, and keeps what is checked beside its
#                                             object: the machine code and the report. It is a CMAKE_CUDA_COMPILER_LAUNCHER
set -euo pipefail

if [ "${1:-}" = --keep ]; then
    shift
    for ((i = 1; i < $#; i++)); do
        if [ "${!i}" = -o ]; then
            i=$((i + 1)) object=${!i}
        fi
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    rm -f "$object".{cubin,report}
    "$@" -Xptxas -v --keep --keep-dir "$work" 2>"$object.report" || {
        cat "$object.report" >&2
        exit 1
    }
    mv "$work"/*.cubin "$object.cubin"
    exit
fi
cd "$(dirname "$0")/.."

# The named kernels, as extended regular expressions for names such as `norm_kernel<bf16, 8, true, true>`; the first that
# matches a kernel counts. Then: how many bytes may be spilled (stored), how many loads of 128 bits there are at least, and
# how many narrower ones at most ("-": any number, because the elements at the ends of a row are loaded one by one).
named='
flash_kernel<                                            0  10   5
flash_query_grad_kernel<                                 0  40   7
flash_key_grad_kernel<.*, 128, true>                     8  24  34
flash_key_grad_kernel<                                   0   8  34
norm_kernel<(float, 4|f16, 8|bf16, 8),                   0   4   2
norm_grad_kernel<(f16|bf16), 8, true, true>             16  14   2
norm_grad_kernel<(float, 4|f16, 8|bf16, 8),              0   6   4
rope_kernel<(float, 4|f16, 8|bf16, 8)>                   0   4   1
each_kernel<[48], (activation|scale|dropout)<            0   1   -
each_kernel<[48], (add|glu|activation_grad)<             0   2   -
each_kernel<[48], (glu_grad|embedding)<                  0   3   -
each_kernel<4, convert<float, (f16|bf16)>                0   1   -
(stats|grad|sumsq)_kernel<(float|f16|bf16)>              0   1   -
(decode|combine)_kernel<                                 0   0   -
update_kernel<sgd, float, (float|f16|bf16), 4>           0   5   -
update_kernel<adamw, float, (float|f16|bf16), 4>         0   8   -
'
# Spills that are known. norm_grad_kernel keeps two of its 64 registers in memory: reading the weight again for each row
# would avoid that and load more. flash_key_grad_kernel<…, 128, true> is for dropout only.

# tool NAME: the path of one of NVIDIA's tools, in PATH, in CUDA's folder, or in a Python package.
tool() {
    local folder
    command -v "$1" && return
    {
        printf '%s\n' "${CUDA_PATH:-}/bin" /usr/local/cuda/bin
        scripts/python-packages.sh | sed 's:$:/nvidia/cu13/bin:; p; s:nvidia/cu13/bin$:triton/backends/nvidia/bin:'
    } | while read -r folder; do
        if [ -x "$folder/$1" ]; then
            echo "$folder/$1"
            break
        fi
    done
}
nvcc=${NVCC:-$(tool nvcc)}
if [ -z "$nvcc" ]; then
    echo "check-kernels: skipped, because there is no nvcc"
    exit
fi
disassemble=()
if [ -n "$(tool nvdisasm)" ]; then
    disassemble=("$(tool nvdisasm)" -c)
elif [ -n "$(tool cuobjdump)" ]; then
    disassemble=("$(tool cuobjdump)" -sass)
else
    echo "check-kernels: loads are not checked: pip install nvidia-cuda-nvdisasm, or bring nvdisasm or cuobjdump otherwise"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export nvcc work
files=("$@")
[ $# -gt 0 ] || files=(src/dev/cuda/*.cu)

# Compiles a file, or takes what the build has kept; writes a line for each kernel: mangled name, registers, bytes of spill stores and of spill loads.
compile() {
    local out kept
    out=$work/$(basename "$1" .cu) kept=${BUILD:-}/CMakeFiles/axonn_cuda.dir/$1.o
    if [ -n "${BUILD:-}" ] && [ -e "$kept.cubin" ]; then
        cp "$kept.cubin" "$out.cubin"
        cp "$kept.report" "$out.report"
    else
        "$nvcc" -std=c++17 -O3 -DNDEBUG -Iinclude -Isrc -arch=sm_90 -cubin -Xptxas -v "$1" -o "$out.cubin" 2>"$out.report" || {
            cat "$out.report" >&2
            return 1
        }
    fi
    awk -F "'" '/Compiling entry function/ { name = $2 }
        /bytes spill stores/ { split($0, word, " "); spills = word[5] " " word[9] }
        match($0, /Used [0-9]+ registers/) { split(substr($0, RSTART), word, " "); print name, word[2], spills }' \
        "$out.report" >"$out.registers"
}
export -f compile
printf '%s\0' "${files[@]}" | xargs -0 -n1 -P"$(nproc)" bash -c 'compile "$1"' _

# loads CUBIN: writes a line for each kernel: mangled name, loads of 128 bits, narrower loads from global memory.
loads() {
    "${disassemble[@]}" "$1" | awk '
        function flush() {
            if (name != "") print name, wide + 0, narrow + 0
            wide = narrow = 0
        }
        /^\.text\./ { flush(); name = substr($1, 7, length($1) - 7) }
        /Function : / { flush(); name = $3 }
        match($0, / (LD|LDG|LDGSTS)\.E[A-Z0-9.]*/) {
            if (substr($0, RSTART, RLENGTH) ~ /\.128/) wide++
            else narrow++
        }
        END { flush() }'
}

for file in "${files[@]}"; do
    name=$work/$(basename "$file" .cu)
    touch "$name.loads"
    [ ${#disassemble[@]} -eq 0 ] || loads "$name.cubin" >"$name.loads"
    awk -v file="$(basename "$file")" 'FILENAME ~ /loads$/ { loads[$1] = $2 " " $3; next }
        { print file, $2, $3, ($1 in loads) ? loads[$1] : "- -", $1 }' "$name.loads" "$name.registers"
done | c++filt | sed 's/(anonymous namespace):://g; s/__nv_bfloat16/bf16/g; s/__half/f16/g; s/ void / /' >"$work/kernels"

awk -v all="${ALL:-}" -v every=$(($# == 0)) '
    FILENAME == "-" {
        if (NF < 4) next
        n++
        most[n] = $(NF - 2) + 0; wide[n] = $(NF - 1) + 0; narrow[n] = $NF
        sub(/ +[0-9]+ +[0-9]+ +[-0-9]+ *$/, "")
        name[n] = $0
        next
    }
    {
        kernel = substr($0, length($1 $2 $3 $4 $5) + 6)
        for (i = 1; i <= n && kernel !~ "^" name[i]; i++) {}
        wrong = ""
        if (i <= n) {
            seen[i] = 1
            checked++
            if ($3 > most[i]) wrong = "spills " $3 " bytes, " most[i] " are known"
            else if ($4 != "-" && $4 < wide[i]) wrong = "has " $4 " loads of 128 bits, expected " wide[i]
            else if ($4 != "-" && narrow[i] != "-" && $5 > narrow[i] + 0)
                wrong = "has " $5 " narrower loads, expected " narrow[i]
        }
        if (all) printf "%-14s %3d registers, loads %s + %s: %.90s\n", $1, $2, $4, $5, kernel
        if (wrong) print "check-kernels: " $1 ": " substr(kernel, 1, 70) " " wrong
        bad += wrong != ""
    }
    END {
        for (i = 1; i <= n && every; i++)
            if (!seen[i]) {
                print "check-kernels: no kernel matches \"" name[i] "\" in the table"
                bad++
            }
        printf "check-kernels: %d kernels, %d of them named, %d wrong\n", FNR, checked, bad
        exit bad > 0
    }' - "$work/kernels" <<<"$named"
