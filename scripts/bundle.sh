#!/usr/bin/env bash
# Makes a folder of programs for a machine with the same processors on which nothing is installed: axonn, its library and
# plugin, the programs that test and time devices, and the shared libraries that they need, except the C library, CUDA,
# cuDNN and MPI. Run the programs with LD_LIBRARY_PATH=DIR, as scripts/test-gpu.sh does.
#   scripts/bundle.sh [DIR]          default: build-bundle
set -euo pipefail
cd "$(dirname "$0")/.."

build="build-portable"
dir=${1:-build-bundle}
programs=(axonn tests/test_dev_backend tests/test_engine_cuda tests/test_engine_links bench_kernels)

cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DAXONN_TESTS=ON -DAXONN_MPI=off -DAXONN_CUDA=on >/dev/null
if ! log=$(cmake --build "$build" -j "$(nproc)" --target libaxonn axonn axonn_cuda test_dev_backend test_engine_cuda \
    test_engine_links bench_kernels 2>&1); then
    printf '%s\n' "$log" >&2
    exit 1
fi

rm -rf "$dir"
mkdir -p "$dir"
for program in "${programs[@]}"; do
    cp "$build/$program" "$dir/"
done
cp "$build"/libaxonn.so.0 "$build"/libaxonn_cuda.so "$dir/"
for program in "$dir"/*; do
    LD_LIBRARY_PATH=$dir ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}'
done | sort -u | while read -r name path; do
    case $name in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
        libcu* | libnv* | libaxonn*) ;;
        *) cp -L "$path" "$dir/$name" ;;
    esac
done
echo "bundle: $dir, $(du -sh "$dir" | cut -f1)"
