#!/usr/bin/env bash
# Rehearses scripts/test-gpu.sh: it runs from a bundle, in an empty folder, on the emulated GPU, with tiny models. A kernel
# that faults and one that hangs fail their own rows only, and the other rows still come. The default is the part "first",
# without cuDNN; with `long`, all parts, with cuDNN and with a cuDNN that cannot compile.
#   tests/scripts/rehearsal.sh SOURCE BUILD [long]
set -euo pipefail

source=$1 build=$2
work=$(mktemp -d "$build/rehearsal.XXXXXX")
trap 'rm -rf "$work"' EXIT
bundle=$work/bundle
mkdir "$work/bin" "$work/empty"
export PATH=$work/bin:$PATH OUT=$work/out

fail() {
    echo "$*" >&2
    cat "$work/said" >&2
    exit 1
}
# says CODE TEXT COMMAND…: the command must end with this exit code and print TEXT in a single line of errors.
says() {
    local code=0 wanted=$1 text=$2
    shift 2
    "$@" >"$work/said" 2>&1 || code=$?
    [ "$code" -eq "$wanted" ] || fail "exit code $code, expected $wanted: $*"
    grep -qF -- "$text" "$work/said" || fail "it does not say \"$text\": $*"
}
# run CODE PART…: runs parts of the bundle's script in an empty folder.
run() {
    local wanted=$1
    shift
    rm -rf "$OUT"
    (cd "$work/empty" && REHEARSE=1 says "$wanted" "" "$bundle/scripts/test-gpu.sh" "$@")
    [ -z "$(ls "$work/empty")" ] || fail "it wrote into the current folder"
    [ "$(find "$OUT" -type f | wc -l)" -le 8 ] || fail "more than eight files of results: $(find "$OUT")"
}
# rows PATTERN: the number of rows of the table that match.
rows() { grep -cE "$1" "$OUT/table.txt" || true; }
# expect NUMBER PATTERN
expect() { [ "$(rows "$2")" -eq "$1" ] || fail "$(rows "$2") rows match \"$2\", expected $1: $(cat "$OUT/table.txt")"; }

# Stand-ins for NVIDIA's tools.
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in
    *memory.used,clocks.sm,utilization.gpu*) echo '512, 1980, 97' ;;
    *memory.used*) echo 512 ;;
    *--list-gpus*) printf 'GPU 0\nGPU 1\n' ;;
    *) echo 'GPU emulated on the host, 580, 1980 MHz, 2619 MHz, 700 W' ;;
esac
END
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/sh
echo "compute-sanitizer $*"
while [ "${1#--}" != "$1" ]; do shift 2; done
exec "$@"
END
chmod +x "$work/bin"/*

# The bundle: its size is checked.
truncate -s 60M "$work/trainer"
LLMC=$work/trainer says 1 "more than 60 MB; its largest files" "$source/scripts/bundle.sh" --emulated "$build" "$bundle"
says 0 "bundle: $bundle" "$source/scripts/bundle.sh" --emulated "$build" "$bundle"
says 2 "test-gpu: no part is named \"second\"; there are first steps" "$bundle/scripts/test-gpu.sh" first second

# A library without which nothing runs is missing, or lies in a Python environment only.
mkdir "$work/lacking"
cp "$bundle"/* "$work/lacking/" 2>/dev/null || true
cc -shared -x c /dev/null -o "$work/libcublasLt.so.99" -Wl,-soname,libcublasLt.so.99
cc -shared -x c /dev/null -o "$work/lacking/libaxonn_cuda.so" -x none -Wl,--no-as-needed "$work/libcublasLt.so.99"
packages=$work/venv/lib/python3.11/site-packages/nvidia/cu13/lib
mkdir -p "$packages"
says 2 "libcublasLt.so.99 is missing, without which nothing runs" env -u LD_LIBRARY_PATH VIRTUAL_ENV="$work/none" \
    "$bundle/scripts/test-gpu.sh" "$work/lacking" first
[ "$(wc -l <"$work/said")" -eq 1 ] || fail "more than one line"
mv "$work/libcublasLt.so.99" "$packages/"
says 2 "is not a plugin of this version of axonn" env VIRTUAL_ENV="$work/venv" "$bundle/scripts/test-gpu.sh" "$work/lacking" first

# The names of kernels that compute-sanitizer checks are those of the files with kernels.
want=$(grep -l __global__ "$source"/src/dev/cuda/*.cu | xargs -n1 basename -s .cu | tr '\n' ' ')
grep -q "^kernel_files=(${want% })" "$source/scripts/test-gpu.sh" || fail "kernel_files: expected $want"

kernels=$("$bundle/test_dev_backend" list | wc -l)
export AXONN_EMULATED_FAULTS=rope:fault,glu:hang AXONN_EMULATED_CUDNN=absent
run 1 first
expect "$kernels" 'first +kernel .* against ref'
expect 1 'kernel rope against ref +FAILED .* exit code 134: .*faults'
expect 1 'kernel glu against ref +FAILED .* stopped after 30 s'
expect $((kernels - 2)) 'first +kernel .* against ref +ok'
expect 2 'attention .*, own +ok .* us .*; .* us'
expect 2 'attention .*, cuDNN +FAILED .*cuDNN'
expect 2 'GPT-2 .*, a step +ok .* ms, .* tokens/s, MFU .* GiB planned'
grep -q 'attention by own kernels' "$OUT/log.txt" || fail "it does not say which attention runs"
[ -n "$(ls "$OUT/plans")" ] || fail "no plans were measured"
unset AXONN_EMULATED_FAULTS AXONN_EMULATED_CUDNN
[ "${3:-}" = long ] || exit 0

# All parts, with everything in order. PyTorch may be missing, and Python itself.
export AXONN_EMULATED_GPUS=4
parts=(first steps peers kernels memory sanitizer tests links)
run 1
for part in "${parts[@]}"; do
    [ "$(rows "^$part ")" -gt 0 ] || fail "no row of part $part"
done
expect "$(rows .)" ' ok |tiny: axonn, torch +FAILED|^first +lib.* missing'
expect 11 '^steps .* ok .* tokens/s'
expect 4 '^memory .* ok .* GiB planned.*driver: 0 MiB at most'
expect 8 '^sanitizer .* ok .* tokens/s'
grep -q -- '--kernel-name kns=_flash_cu_' "$OUT/log.txt" || fail "compute-sanitizer is not told which kernels are ours"
if command -v python3 >/dev/null; then
    grep -q '^| axonn | ' "$OUT/log.txt" || fail "the peers' table has no row of axonn"
fi
grep -q 'all GEMMs of a step .* %' "$OUT/log.txt" || fail "no table of GEMMs by first and by timed plans"

# cuDNN can be opened, but makes no plan, or computes wrong results: rows that name it fail, all others come.
for how in uncompiled wrong; do
    AXONN_EMULATED_CUDNN=$how run 1 kernels steps
    expect $((11 + 1 + 4 + 1)) .
    expect 3 ' cuDNN .*FAILED'
    expect $((11 + 1 + 4 + 1 - 3)) ' ok '
done
