#!/usr/bin/env bash
# Installs a build into a fresh prefix, and compiles and runs an example as a user of the library would: with
# what pkg-config says and nothing of the source tree's headers.
#   tests/installed.sh BUILD EXAMPLE.c COMPILER [FLAG...]
set -euo pipefail
build=$1 example=$2 compiler=$3
shift 3
prefix=$(mktemp -d "$build/installed.XXXXXX")
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --prefix "$prefix" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name axonn.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir axonn)
read -ra flags <<<"$(pkg-config --cflags --libs axonn)"

"$compiler" -std=c11 -Wall -Wextra -Werror "$example" -o "$prefix/example" "$@" "${flags[@]}" "-Wl,-rpath,$libdir"
"$prefix/example" "$example"
