#!/usr/bin/env bash
# small_shm.sh COMMAND…: runs the command with AXONN_SHARED_MEMORY on a tmpfs that is much too small, as in containers.
# The command must succeed, with at most one warning per rank. Exits with 77 if nothing can be mounted.
set -uo pipefail
if [ "${1:-}" != --mounted ]; then
    [ "$(id -u)" -eq 0 ] && unshare --mount true 2>/dev/null || {
        echo "only root can mount a small file system"
        exit 77
    }
    exec unshare --mount "$0" --mounted "$@"
fi
shift
dir=$(mktemp -d) out=$(mktemp)
trap 'umount "$dir"; rm -rf "$dir" "$out"' EXIT
mount -t tmpfs -o size=16m axonn "$dir" || exit 77
AXONN_SHARED_MEMORY=$dir "$@" >"$out" 2>&1
status=$?
cat "$out"
[ $status -eq 0 ] || exit 1
[ "$(grep -c "cannot get .* of shared memory in $dir/axonn-.*: No space left on device" "$out")" -ge 1 ] || exit 1
[ -z "$(ls "$dir")" ] || {
    echo "left in $dir: $(ls "$dir")"
    exit 1
}
