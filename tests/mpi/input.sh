#!/usr/bin/env bash
# Rank 0 waits for standard input longer than the watchdog's timeout of 30 seconds: the other ranks wait without a warning,
# in generate and in eval.
# Usage: input.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/jobs.sh"

expect 0 '' "$axonn" train a.yaml train.steps=1 model.seq_len=256 run.dir=run
expect 0 '' "$axonn" generate run --chat --template alpaca --max-tokens 3 --json --ranks 2 < <(sleep 33 && echo 'the 1')
[[ $(wc -l <out) == 1 ]] || die "not one answer: $(<out)"
grep 'has waited' log && die "a warning although rank 0 waits for the user"

expect 0 '' "$axonn" eval run --data /dev/stdin --ranks 2 < <(sleep 33 && echo 'the 1 the 2 the 3')
grep 'has waited' log && die "a warning although rank 0 waits for text"
:
