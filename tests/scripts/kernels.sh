#!/usr/bin/env bash
# scripts/check-kernels.sh finds a kernel that spills registers, in what a build has kept, and one with narrow loads, and
# accepts a third.
#   tests/scripts/kernels.sh SOURCE BUILD
set -euo pipefail
check=$1/scripts/check-kernels.sh
work=$(mktemp -d "$2/kernels.XXXXXX")
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$*" >&2
    cat "$work/said" >&2
    exit 1
}
# kernel NAME TYPE SUMS: a kernel with the name of one in the table, which keeps so many sums in 32 registers and loads
# elements of a type.
kernel() {
    cat >"$work/$1.cu" <<END
template <class T> __global__ void __launch_bounds__(1024, 2) sumsq_kernel(const $2 *x, T *y, int n)
{
    T sum[$3] = {};
    for (int i = threadIdx.x; i < n; i += 1024) {
        $2 v = x[i];
        for (int j = 0; j < $3; j++)
            sum[j] = sum[j] * sum[(j + 7) % $3] + ((const T *)&v)[j % (sizeof v / sizeof(T))];
    }
    for (int j = 0; j < $3; j++)
        y[j * 1024 + threadIdx.x] = sum[j] + n;
}
template __global__ void sumsq_kernel<float>(const $2 *, float *, int);
END
}
# expect CODE TEXT FILE
expect() {
    local code=0
    "$check" "$work/$3.cu" >"$work/said" 2>&1 || code=$?
    [ "$code" -eq "$1" ] || fail "exit code $code for $3"
    grep -qE "$2" "$work/said" || fail "it does not say \"$2\" about $3"
}

kernel good float4 4
kernel spilled float4 64
kernel narrow float 4
expect 0 '^check-kernels: 1 kernels, 1 of them named, 0 wrong' good
object=$work/CMakeFiles/axonn_cuda.dir/$work/spilled.cu.o
mkdir -p "$(dirname "$object")"
"$check" --keep "${NVCC:-nvcc}" -arch=sm_90 -c "$work/spilled.cu" -o "$object"
NVCC=false BUILD=$work expect 1 'sumsq_kernel<float>.* spills [0-9]+ bytes, 0 are known' spilled
"$check" "$work/good.cu" >"$work/said" 2>&1
if grep -q "loads are not checked" "$work/said"; then
    exit
fi
expect 1 'sumsq_kernel<float>.* has 0 loads of 128 bits, expected 1' narrow
