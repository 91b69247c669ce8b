#!/usr/bin/env bash
# A rank that starts 33 seconds late: MPI cannot connect the ranks before, so rank 0 warns after 30 seconds, and the run then
# goes on.
# Usage: late.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/jobs.sh"

train=("$axonn" train a.yaml grid.data=2)
expect 0 'warning: rank 0: MPI has not connected the ranks for 30 seconds' \
  "${launch[@]}" -n 1 "${train[@]}" : -n 1 bash -c 'sleep 33 && exec "$@"' late "${train[@]}"
[[ $(grep -c 'MPI has not connected' log) == 1 ]] || die "not one warning"
[[ $(<run/latest) == step-4 ]] || die "the run did not end"
