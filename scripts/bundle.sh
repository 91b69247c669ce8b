#!/usr/bin/env bash
# Makes a folder for a machine with the same processors on which nothing is installed: axonn, its library and plugin, the
# programs and scripts that test and time devices, and the shared libraries that they need, except the C library, CUDA,
# cuDNN and MPI. There, DIR/scripts/test-gpu.sh runs them. Fails if the folder is larger than 60 MB.
#   scripts/bundle.sh [DIR]                     default: build-bundle
#   scripts/bundle.sh --emulated BUILD [DIR]    takes the programs of a build that exists, and its emulated GPU
# Environment: LLMC, a checkout of llm.c, whose trainer is built (CUDNN_FRONTEND, a checkout of cudnn-frontend: with cuDNN),
# or a trainer that was built before. It becomes DIR/train_gpt2cu.
set -euo pipefail
cd "$(dirname "$0")/.."

build="build-portable" plugin="build-portable/libaxonn_cuda.so" most=60000000
programs=(axonn tests/test_dev_backend tests/test_engine_cuda tests/test_engine_links bench_kernels)
scripts=(scripts/test-gpu.sh scripts/python-packages.sh bench/gpu.py bench/step.py bench/scaling.py
    bench/peers/llmc.py bench/peers/torch_step.py bench/peers/torch_model.py bench/peers/torch_settings.py)
if [ "${1:-}" = --emulated ]; then
    build=$2 plugin=$2/tests/cuda/libaxonn_cuda.so
    shift 2
else
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DAXONN_TESTS=ON -DAXONN_MPI=off -DAXONN_CUDA=on >/dev/null
    if ! log=$(cmake --build "$build" -j "$(nproc)" --target libaxonn_open axonn axonn_cuda test_dev_backend test_engine_cuda \
        test_engine_links bench_kernels 2>&1); then
        printf '%s\n' "$log" >&2
        exit 1
    fi
fi
dir=${1:-build-bundle}

rm -rf "$dir"
mkdir -p "$dir"
for program in "${programs[@]}"; do
    cp "$build/$program" "$dir/"
done
# The library of the tests, which hides no function.
cp "$build"/open/libaxonn.so.0 "$plugin" "$dir/"
for program in "$dir"/*; do
    LD_LIBRARY_PATH=$dir ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}'
done | sort -u | while read -r name path; do
    case $name in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*) ;;
        libcu* | libnv* | libaxonn*) ;;
        *) cp -L "$path" "$dir/$name" ;;
    esac
done
for script in "${scripts[@]}"; do
    install -D "$script" "$dir/$script"
done
if [ -d "${LLMC:-}" ]; then
    python3 bench/peers/llmc.py --device cuda --source "$LLMC" ${CUDNN_FRONTEND:+--cudnn-frontend "$CUDNN_FRONTEND"} \
        --program "$dir/train_gpt2cu" --build
elif [ -n "${LLMC:-}" ]; then
    cp "$LLMC" "$dir/train_gpt2cu"
fi
bytes=$(du -sb "$dir" | cut -f1)
if [ "$bytes" -gt $most ]; then
    {
        echo "bundle: $dir has $((bytes / 1000000)) MB, more than $((most / 1000000)) MB; its largest files, in bytes:"
        find "$dir" -type f -printf '%s %p\n' | sort -rn | head -n 5
    } >&2
    exit 1
fi
echo "bundle: $dir, $(du -sh --apparent-size "$dir" | cut -f1)"
