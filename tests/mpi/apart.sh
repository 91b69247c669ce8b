#!/usr/bin/env bash
# apart.sh COMMAND…: runs it as a rank that does not see the other ranks' processes, as in a container of its own:
# in a name space of processes, where its number is another one in each rank. Exits with 77 where that cannot be.
if [ "${1:-}" != --apart ]; then
    unshare --pid --fork --mount-proc true 2>/dev/null || exit 77
    exec unshare --pid --fork --mount-proc "$0" --apart "$@"
fi
shift
for ((i = 0; i < 3 * ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}; i++)); do
    /bin/true
done
"$@"
