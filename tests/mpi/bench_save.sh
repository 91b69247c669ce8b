#!/usr/bin/env bash
# axonn bench gemm --save and bench comm --save: each writes its part of a description and keeps the other, with as many ranks as the
# run has; what is missing is listed; the file is one that axonn plan reads.
# Usage: bench_save.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/program.sh"

small_model
rows() { grep -cE -- "$1" m.yaml; }
run=("$axonn")
gemm() { "${run[@]}" bench gemm a.yaml model.seq_len=4 train.micro_batch=4 --runs 1 --save m.yaml "$@" >out 2>log || die "gemm: exit code $?"; }

# One rank measures its device.
gemm train.precision=fp32
points=$(rows '^ +- "(NN|NT|TN) [0-9]+x[0-9]+x[0-9]+ f32 ')
((points > 10)) || die "$points points"
for row in '^ranks_per_node: 1$' '- "adamw [0-9.e+]+ B/s"' '- "attention [0-9.e+]+ FLOP/s"' '^  launch: ' '^  stream: ' '^  scratch: [1-9]' \
  '^  host_access: true' '^  all_reduce: node' 'gemm: "axonn .* 1 rank of a node at work, 1 thread each"' '^# missing: links.network: '; do
  [[ $(rows "$row") == 1 ]] || die "no row $row"
done
[[ $(rows '"gemm') == 0 ]] || die "GEMMs have points, no rate of their kernel"
# Others join them, and those that are timed again replace theirs.
sed -i 's/\(f32 +bias gelu\) .*"/\1 7"/' m.yaml
[[ $(rows 'gelu 7"') == 1 ]] || die "nothing to replace"
gemm train.precision=fp32 model.vocab=150
[[ $(rows '^ +- "(NN|NT|TN) [0-9x]+ f32 ') == $((points + 4)) && $(rows 'gelu 7"') == 0 ]] || die "points are lost, or not replaced"
"$axonn" plan a.yaml --machine m.yaml >out 2>log || die "plan: exit code $?"
grep -q '^machine: .*; nodes: 1, ranks of a node: 1, ' out || die "another machine"

# A shipped name stands for no file, but a path does.
"$axonn" bench gemm a.yaml model.seq_len=4 --runs 1 --save summit >out 2>log
[[ $? == 2 && ! -e summit ]] && grep -q -- '--save: summit is the name of a description that comes with axonn' log || die "exit code $?"

# Two ranks are another machine.
"${launch[@]}" "$axonn" bench comm --max 4096 --runs 1 --save m.yaml >out 2>log
[[ $? == 2 && ! -s out ]] && grep -q 'm.yaml is of 1 nodes with 1 ranks each, and this run has 1 with 2' log || die "exit code $?"
rm m.yaml
"${launch[@]}" "$axonn" bench comm --max 16384 --runs 1 --save m.yaml >out 2>log || die "comm: exit code $?"
for name in all_reduce all_gather reduce_scatter all_to_all broadcast message; do
  [[ $(rows "^ +- \"$name 1 2 (4096|16384) [0-9.e-]+\"") == 2 ]] || die "not two rows of $name"
done
[[ $(rows '"barrier 1 2 0 ') == 1 && $(rows '^# missing: device: axonn bench gemm') == 1 ]] || die "other rows"
run=("${launch[@]}" "$axonn")
gemm grid.data=2
[[ $(rows '- "all_reduce 1 2') == 2 && $(rows '"adamw ') == 1 && $(rows '^# missing: device') == 0 ]] || die "a part is lost"
# As if there were two nodes: messages and collectives between them.
rm m.yaml
AXONN_RANKS_PER_NODE=1 "${launch[@]}" "$axonn" bench comm --max 4096 --runs 1 --collective message all_reduce --save m.yaml >out 2>log ||
  die "nodes: exit code $?"
[[ $(rows '^nodes: 2$') == 1 && $(rows '"message 1 2 4096') == 1 && $(rows '^# missing: links.network') == 0 ]] || die "no nodes"
"$axonn" bench gemm a.yaml --save no/m.yaml >out 2>log
[[ $? == 4 && ! -s out ]] && grep -q 'no file can be written in no' log || die "a folder that is missing: exit code $?"
