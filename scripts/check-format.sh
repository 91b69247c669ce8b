#!/usr/bin/env bash
# Checks that all files of C, C++ and CUDA are formatted as .clang-format says; --fix formats them.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs ls -d 2>/dev/null)
if [ "${1:-}" = --fix ]; then
    clang-format -i "${files[@]}"
elif ! printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P "$(nproc)" clang-format --dry-run -Werror; then
    echo "check-format: run scripts/check-format.sh --fix"
    exit 1
fi
echo "check-format: ${#files[@]} files"
