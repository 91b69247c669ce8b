#!/usr/bin/env bash
# Checks that each public header compiles alone: gcc and clang, as C11 and as C++17, no warning.
set -euo pipefail
cd "$(dirname "$0")/.."

# check HEADER COMPILER LANGUAGE: compiles a file that only includes the header, so that include guards work as for users.
check() {
    local flags=(-Iinclude -fsyntax-only -Wall -Wextra -Werror -pedantic)
    printf '#include "axonn/%s"\n' "${1##*/}" | "$2" "${flags[@]}" -x "${3%%/*}" -std="${3#*/}" - && return
    echo "$1: does not compile alone with $2 as ${3#*/}"
    return 1
}
export -f check

cases=()
for header in include/axonn/*.h; do
    for compiler in gcc clang; do
        cases+=("$header" "$compiler" c/c11 "$header" "$compiler" c++/c++17)
    done
done
printf '%s\0' "${cases[@]}" | xargs -0 -n3 -P"$(nproc)" bash -c 'check "$@"' _ || {
    echo "check-headers: failed"
    exit 1
}
echo "check-headers: $((${#cases[@]} / 3)) compilations"
