#!/usr/bin/env bash
# Checks that each public header compiles alone: gcc and clang, as C11 and as C++17, no warning.
set -euo pipefail
cd "$(dirname "$0")/.."

flags=(-Iinclude -fsyntax-only -Wall -Wextra -Werror -pedantic)
tried=0 failed=0
for header in include/axonn/*.h; do
    for compiler in gcc clang; do
        for language in c/c11 c++/c++17; do
            tried=$((tried + 1))
            # Compiles a file that only includes the header, so that include guards work as for users.
            if ! printf '#include "axonn/%s"\n' "${header##*/}" |
                "$compiler" "${flags[@]}" -x "${language%%/*}" -std="${language#*/}" -; then
                echo "$header: does not compile alone with $compiler as ${language#*/}"
                failed=$((failed + 1))
            fi
        done
    done
done
echo "check-headers: $tried compilations, $failed failed"
[ "$failed" -eq 0 ]
