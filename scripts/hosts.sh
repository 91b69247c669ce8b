#!/usr/bin/env bash
# Emulates hosts on this machine, to test programs across a network. Each host is a network namespace with its own name,
# address, and a link of limited rate. Ranks of one host share memory; ranks of different hosts use TCP over the links.
# Needs root, iproute2 and Open MPI.
#
#   scripts/hosts.sh up N [RATE]          hosts axhost0 … with links of RATE each way (default 1gbit)
#   scripts/hosts.sh run K COMMAND...     COMMAND on K ranks of each host
#   scripts/hosts.sh bytes                bytes that each host has sent so far
#   scripts/hosts.sh rate RATE            changes the links' rate
#   scripts/hosts.sh cut HOST | heal HOST takes a host's link down, and up again
#   scripts/hosts.sh down
#   scripts/hosts.sh usable               checks whether this machine can emulate hosts; if not, prints why and fails
set -euo pipefail

self=$(realpath "$0")
prefix=axhost bridge=axhostbr net=10.213.57

fail() {
    echo "hosts.sh: $*" >&2
    exit 1
}

hosts() { ip netns list | sed -n "s/^\(${prefix}[0-9]*\).*/\1/p" | sort -V; }
some_hosts() {
    hosts | grep . || fail "there are no hosts: run '$0 up N' first"
}

# Bursts of up to 256 kB are not limited; longer messages are.
limit() {
    local host=$1 rate=$2
    ip netns exec "$host" tc qdisc replace dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
    tc qdisc replace dev "to-$host" root tbf rate "$rate" burst 256kb latency 50ms
}

down() {
    local host
    for host in $(hosts); do
        ip netns pids "$host" | xargs -r kill -KILL 2>/dev/null || true # they keep the namespace alive
        ip link delete "to-$host" 2>/dev/null || true
        ip netns delete "$host"
    done
    if ip link show "$bridge" >/dev/null 2>&1; then ip link delete "$bridge"; fi
}

up() {
    local n=$1 rate=$2 host
    [[ $n =~ ^[1-9][0-9]*$ ]] && [ "$n" -le 100 ] || fail "up needs a number of hosts, 1 to 100, not \"$n\""
    down
    ip link add "$bridge" type bridge
    ip address add "$net.254/24" dev "$bridge"
    ip link set "$bridge" up
    for ((i = 0; i < n; i++)); do
        host=$prefix$i
        ip netns add "$host"
        ip link add "to-$host" type veth peer name eth0 netns "$host"
        ip link set "to-$host" master "$bridge" up
        ip -n "$host" address add "$net.$((i + 1))/24" dev eth0
        ip -n "$host" link set eth0 up
        ip -n "$host" link set lo up
        limit "$host" "$rate"
    done
}

# mpirun calls this script instead of ssh, to start its daemon on a host: HOST COMMAND...
enter() {
    local host=$1
    shift
    exec ip netns exec "$host" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$host" "$@"
}

run() {
    local per_host=$1 list
    shift
    list=$(some_hosts | sed "s/\$/:$per_host/" | paste -sd,)
    agent=$(mktemp)
    trap 'rm -f "$agent"' EXIT
    printf '#!/bin/sh\nexec "%s" enter "$@"\n' "$self" >"$agent"
    chmod +x "$agent"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "${MPIRUN:-mpirun.openmpi}" --host "$list" --oversubscribe \
        --bind-to none --mca plm rsh --mca plm_rsh_agent "$agent" --mca plm_rsh_no_tree_spawn 1 \
        --mca oob_tcp_if_include "$net.0/24" --mca btl_tcp_if_include "$net.0/24" \
        --mca pml ob1 --mca btl self,vader,tcp --mca mpi_yield_when_idle 1 -wdir "$PWD" "$@"
}

bytes() {
    local host
    for host in $(some_hosts); do
        echo "$host $(ip netns exec "$host" cat /sys/class/net/eth0/statistics/tx_bytes)"
    done
}

usable() {
    [ "$(id -u)" -eq 0 ] || fail "emulated hosts need root"
    command -v ip >/dev/null && command -v tc >/dev/null || fail "emulated hosts need iproute2"
    command -v "${MPIRUN:-mpirun.openmpi}" >/dev/null || fail "emulated hosts need Open MPI"
    unshare --net true 2>/dev/null || fail "this kernel does not allow network namespaces"
    ip link add axhosttest0 type veth peer name axhosttest1 2>/dev/null || fail "this kernel does not allow virtual links (veth)"
    tc qdisc replace dev axhosttest0 root tbf rate 1gbit burst 256kb latency 50ms 2>/dev/null || {
        ip link delete axhosttest0
        fail "this kernel cannot limit the rate of a link (tbf)"
    }
    ip link delete axhosttest0
}

case ${1:-} in
    up) up "${2:-}" "${3:-1gbit}" ;;
    run) shift && run "$@" ;;
    enter) shift && enter "$@" ;;
    bytes) bytes ;;
    rate) for host in $(some_hosts); do limit "$host" "$2"; done ;;
    cut) ip link set "to-$2" down ;;
    heal) ip link set "to-$2" up ;;
    down) down ;;
    usable) usable ;;
    *)
        sed -n '/^#   scripts/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
esac
