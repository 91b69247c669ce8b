#!/usr/bin/env bash
# Runs clang-tidy over the library, the program and the examples, or over the given files; any finding is an error
# (.clang-tidy). A file is checked again only if it, a header that it includes or .clang-tidy has changed.
#   scripts/check-tidy.sh [FILE...]      BUILD=build-dev names the directory with compile_commands.json
#                                        NODES=3000 limits the states that the analyzer explores in a function
set -euo pipefail
cd "$(dirname "$0")/.."

export BUILD=${BUILD:-build-dev}
[ -f "$BUILD/compile_commands.json" ] || {
    echo "check-tidy: no $BUILD/compile_commands.json; run: cmake --preset dev" >&2
    exit 1
}
export STAMPS=$BUILD/tidy
mkdir -p "$STAMPS"
export NODES=${NODES:-3000} # 10000 takes half as long again, 75000 six times; the default of clang-tidy is 225000
CONFIG=$({ cat .clang-tidy && clang-tidy --version && echo "$NODES"; } | sha256sum)
export CONFIG

check_one() {
    local inputs key log
    # The headers that the file includes; all headers if that depends on macros of the build.
    inputs=$(gcc -MM -D_GNU_SOURCE -Iinclude -Isrc "$1" 2>/dev/null | sed 's/^[^:]*://; s/\\$//') ||
        inputs="$1 $(find include src -name '*.h')"
    # shellcheck disable=SC2086  # one word per file
    key=$({ echo "$CONFIG" && sha256sum $inputs; } | sha256sum | cut -c1-40)
    [ -e "$STAMPS/$key" ] && return
    if log=$(clang-tidy -p "$BUILD" --quiet --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang \
        --extra-arg=max-nodes="$NODES" "$1" 2>&1); then
        touch "$STAMPS/$key"
    else
        printf '%s\n' "$log" | grep -v 'warnings generated'
        return 1
    fi
}
export -f check_one

if [ $# -eq 0 ]; then
    mapfile -t files < <(find src examples -name '*.c' 2>/dev/null | LC_ALL=C sort)
    set -- "${files[@]}"
fi
printf '%s\0' "$@" | xargs -0 -n1 -P"$(nproc)" bash -c 'check_one "$1"' _
echo "check-tidy: $# files"
