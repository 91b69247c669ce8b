#!/usr/bin/env bash
# Prints the version script of libaxonn.so: it exports the functions and variables that the public headers declare, and hides
# all others. clang-format leaves declarations at the left margin, and a line holds one.
# Usage: exports.sh HEADER…
set -euo pipefail
printf '{\nglobal:\n'
sed -nE 's/^extern const [^;]*\b(ax_[a-z0-9_]+)(\[[^]]*\])?;.*/    \1;/p; t
    /^(static|typedef|AX_INLINE)/d
    s/^[A-Za-z][^=(]*\b(ax_[a-z0-9_]+)\(.*/    \1;/p; t
    s/^AX_[A-Z_0-9]+\([^)]*\) [^=(]*\b(ax_[a-z0-9_]+)\(.*/    \1;/p' "$@" | LC_ALL=C sort -u
printf 'local:\n    *;\n};\n'
