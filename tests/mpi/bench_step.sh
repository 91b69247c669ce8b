#!/usr/bin/env bash
# axonn bench step on one rank and on two: the parts and the rest add up to the step, the GEMMs are those of the
# model, nothing is written, and a failure on one rank ends all.
# Usage: bench_step.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/program.sh"

small_model

number() { grep -o "\"$1\":[-0-9.e+]*" out | head -1 | cut -d: -f2; }

check() { # COMMAND…
  "$@" --steps 3 --json >out 2>log || die "exit code $?: $*"
  [[ $(wc -l <out) == 1 && $(number runs) == 3 && $(number tokens) == 256 ]] || die "another output: $*"
  # Kernels, waiting and the rest add up to the mean step, which lies between minimum and maximum.
  sed 's/.*"parts"://; s/"kernels".*//' out | grep -o '"ms":[0-9.e+-]*' | cut -d: -f2 |
    awk -v more="$(number exposed_ms)" -v rest="$(number rest_ms)" -v min="$(number min)" -v max="$(number max)" \
      '{sum += $1} END {sum += more + rest; exit !(NR == 4 && sum >= min * 0.999 && sum <= max * 1.001)}' ||
    die "the parts are not the step: $*"
}

check "$axonn" bench step a.yaml
check "$axonn" bench step a.yaml data.train=nothing # data.train is not read
check "$axonn" bench step a.yaml train.precision=bf16 optim.name=sgd
check "${launch[@]}" "$axonn" bench step a.yaml grid.x=2
check "${launch[@]}" "$axonn" bench step a.yaml grid.data=2 zero=1
"$axonn" bench step a.yaml --steps 1 --warm-up 0 >out 2>log || die "exit code $?"
for part in matmuls attention memory-bound optimizer 'the rest' 'step  ' 'at best'; do
  grep -q "^$part" out || die "no line \"$part\""
done
"$axonn" bench step a.yaml --steps 1 device=ref >out 2>log || die "exit code $?"
grep -q '^at best' out && die "a ratio to what is not known"
"$axonn" bench step a.yaml model.heads=5 >out 2>log
[[ $? == 2 ]] && grep -q 'model.heads' log || die "a wrong key: exit code $?"
# All ranks use rank 0's environment variables and the keys on the command line: here the level at which rank 1 logs.
steps=("$axonn" bench step a.yaml grid.x=2 --steps 1)
"${launch[@]:0:${#launch[@]}-2}" -n 1 env AXONN_LOG=debug "${steps[@]}" : -n 1 "${steps[@]}" >out 2>log || die "exit code $?"
grep -q 'debug: rank 1: start: threads' log || die "rank 1 has another level of the log than rank 0"
"${launch[@]:0:${#launch[@]}-2}" -n 1 "${steps[@]}" : -n 1 env AXONN_LOG=debug "${steps[@]}" >out 2>log || die "exit code $?"
grep -q 'debug: rank 1: start: threads' log && die "rank 1 has a level of the log of its own"
"${launch[@]}" "${steps[@]}" runtime.log=debug >out 2>log || die "exit code $?"
grep -q 'debug: rank 1: start: threads' log || die "rank 1 does not have the level of the command line"
"${launch[@]:0:${#launch[@]}-2}" -n 1 "${steps[@]}" runtime.pin=off : -n 1 "${steps[@]}" runtime.pin=auto >out 2>log
[[ $? == 2 ]] && grep -q 'rank 1: runtime.pin is auto here (command line) and off on rank 0' log || die "ranks with different keys: exit code $?"
# Kernels that sleep, on a machine of as many ranks and on one with fewer; the nodes are not those of the plan.
sleeps() {
  printf 'ranks_per_node: %s\ndevice: {memory: 1000000000, host_access: true, stream: 1e9, gemm: {bf16: 1e9, f32: 1e9}}\nlinks: {node: {rate: 1e9}}\n' "$1" >m.yaml
  "${launch[@]}" "$axonn" bench step a.yaml grid.data=2 --steps 1 --sleep m.yaml --json "${@:2}" >out 2>log
}
sleeps 2 || die "exit code $?"
[[ $(number planned_ms) ]] && ! grep -q 'the planned time is that of' log || die "no planned time, or a warning"
sleeps 2 runtime.ranks_per_node=1 || die "exit code $?"
grep -q 'the planned time is that of nodes with 2 ranks, as machine m.yaml has them; this run has 1' log || die "no warning of other nodes"
sleeps 1
[[ $? == 2 ]] && grep -q 'fewer than the 2 of the grid' log || die "too few ranks: exit code $?"
rm m.yaml
[[ $(ls) == $'a.yaml\nlog\nout' ]] || die "files were made: $(ls)"
