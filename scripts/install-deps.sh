#!/usr/bin/env bash
# Installs the Debian 12 packages that building axonn needs; with --test also those that its tests and checks need. Run it
# as root, or as a user with sudo. It asks no questions, and does nothing if all packages are installed.
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git libpcre2-dev libutf8proc-dev libjansson-dev
    libyaml-dev libxxhash-dev libhwloc-dev zlib1g-dev libzstd-dev libopenmpi-dev openmpi-bin gzip xz-utils)
case "${1:-}" in
    "") ;;
    --test) packages+=(bubblewrap libcmocka-dev clang clang-format clang-tidy llvm libclang-rt-14-dev iproute2 ccache libmpich-dev mpich procps) ;;
    *)
        echo "usage: install-deps.sh [--test]" >&2
        exit 2
        ;;
esac

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "install-deps: run as root, or install sudo; missing: ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi
echo "install-deps: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
{ apt update && apt install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || {
    cat "$log" >&2
    echo "install-deps: apt-get failed; the packages are those of Debian 12" >&2
    exit 1
}
