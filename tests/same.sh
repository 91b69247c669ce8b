#!/usr/bin/env bash
# same.sh TOLERANCE COMMAND… -- COMMAND…: both commands must succeed and write the same lines, in which numbers may
# differ by TOLERANCE.
set -uo pipefail
tolerance=$1
shift
one=()
while [ "$1" != -- ]; do
    one+=("$1")
    shift
done
shift
first=$("${one[@]}") || { echo "$first" && echo "${one[*]} failed" && exit 1; }
second=$("$@") || { echo "$second" && echo "$* failed" && exit 1; }
paste <(printf '%s\n' "$first" | tr -s ' ' '\n') <(printf '%s\n' "$second" | tr -s ' ' '\n') |
    awk -v tolerance="$tolerance" '
        function number(text) { return text ~ /^[-+]?[0-9.]+$/ }
        { words++ }
        $1 == $2 { next }
        number($1) && number($2) && ($1 - $2) ^ 2 <= tolerance ^ 2 { next }
        { print "\"" $1 "\" of the one is \"" $2 "\" of the other"; bad = 1 }
        END { exit bad || words < 10 }'
