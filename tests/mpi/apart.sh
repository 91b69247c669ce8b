#!/usr/bin/env bash
# apart.sh COMMAND…: runs the command as a rank in a PID namespace of its own, as in a container: it does not see the
# other ranks' processes. Each rank has another PID there. Exits with 77 if the namespace cannot be created.
if [ "${1:-}" != --apart ]; then
    unshare --pid --fork --mount-proc true 2>/dev/null || exit 77
    exec unshare --pid --fork --mount-proc "$0" --apart "$@"
fi
shift
for ((i = 0; i < 3 * ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}; i++)); do
    /bin/true
done
"$@"
