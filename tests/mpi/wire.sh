#!/usr/bin/env bash
# wire.sh HOSTS.SH PROGRAM: on two emulated hosts of two ranks each, and on three of one rank, the bytes that the ranks
# count as sent to other nodes agree within 5 % with the counters of the hosts' network interfaces. Exits with 77 if the
# hosts cannot be emulated, or are in use.
set -uo pipefail
hosts=$1 program=$2
why=$("$hosts" usable 2>&1) || {
    echo "$why"
    exit 77
}
if [ -n "$("$hosts" bytes 2>/dev/null)" ]; then
    echo "the emulated hosts are in use"
    exit 77
fi
trap '"$hosts" down' EXIT
out=$(mktemp)
bad=0
for shape in "2 2" "3 1"; do
    read -r n per <<<"$shape"
    "$hosts" up "$n" 2gbit || exit 77
    before=$("$hosts" bytes)
    "$hosts" run "$per" "$program" 16777216 >"$out" 2>&1 || {
        cat "$out"
        exit 1
    }
    after=$("$hosts" bytes)
    while read -r host end; do
        begin=$(awk -v h="$host" '$1 == h { print $2 }' <<<"$before")
        said=$(awk -v h="$host" '$1 == "wire" && $2 == h { n += $3 } END { print n + 0 }' "$out")
        sent=$((end - begin))
        echo "$n hosts of $per: $host sent $sent bytes, of which its ranks counted $said"
        [ $((said * 100)) -ge $((sent * 95)) ] && [ $((said * 100)) -le $((sent * 105)) ] || bad=1
    done <<<"$after"
    "$hosts" down
done
rm -f "$out"
exit $bad
