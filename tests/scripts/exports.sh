#!/usr/bin/env bash
# libaxonn.so exports the functions and variables that the public headers declare, and no other symbol. Which functions are
# declared is asked of gcc.
#   tests/scripts/exports.sh SOURCE-DIR LIBRARY
set -euo pipefail
include=$1/include library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

gcc -I"$include" -fsyntax-only -aux-info "$work/functions" -x c "$include/axonn/axonn.h"
{
    # Lines of -aux-info: /* FILE:LINE:… */ extern TYPE name (…);
    sed -nE '/^\/\*.*\/include\/axonn\//!d; s/^.* extern [^(]*\b(ax_[a-z0-9_]+) \(.*/\1/p' "$work/functions"
    sed -nE 's/^extern const [^;]*\b(ax_[a-z0-9_]+)(\[[^]]*\])?;.*/\1/p' "$include"/axonn/*.h
} | LC_ALL=C sort -u >"$work/declared"
nm -D --defined-only "$library" | awk '{ print $NF }' | LC_ALL=C sort -u >"$work/exported"

echo "declared: $(wc -l <"$work/declared"), exported: $(wc -l <"$work/exported")"
diff "$work/declared" "$work/exported" || {
    echo "(< declared by a header, and not exported; > exported, and declared by no public header)"
    exit 1
}
