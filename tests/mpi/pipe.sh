#!/usr/bin/env bash
# Pipeline stages over MPI: an untied model has the bits of one stage, over shared memory and by messages, and a run goes on
# with another number of stages. eval, generate and logits print what one rank prints.
# Usage: pipe.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/jobs.sh"

keys=(model.tie=false optim.schedule=constant)
weights=ckpt/step-4/model.safetensors
expect 0 '' "$axonn" train a.yaml "${keys[@]}" run.dir=one

same_weights() { # RUN KEYS…
  local run=$1
  shift
  expect 0 'pipeline of' "${launch[@]}" -n "$1" "$axonn" train a.yaml "${keys[@]}" run.dir="$run" "${@:2}"
  cmp one/$weights "$run/$weights" || die "$run: other weights than on one stage: $*"
}
same_weights two 2 grid.pipe=2
same_weights four 4 grid.pipe=4 pipe.schedule=1f1b pipe.slack=1
same_weights off 2 grid.pipe=2 runtime.shared_memory=off
same_weights chunks 2 grid.pipe=2 pipe.schedule=interleaved
same_weights nodes 3 grid.pipe=3 pipe.schedule=gpipe runtime.ranks_per_node=1

# With grid.data=2 sums are those of two ranks, so the reference is another run with grid.data=2 and one stage.
expect 0 '' "${launch[@]}" -n 2 "$axonn" train a.yaml "${keys[@]}" run.dir=data grid.data=2
expect 0 '' "${launch[@]}" -n 4 "$axonn" train a.yaml "${keys[@]}" run.dir=both grid.data=2 grid.pipe=2 train.steps=2
expect 0 'resuming' "${launch[@]}" -n 2 "$axonn" train a.yaml "${keys[@]}" run.dir=both grid.data=2
cmp data/$weights both/$weights || die "other weights with two stages for two steps"

# On an emulated GPU: messages go through pinned memory, to processes of the same node and of another one.
if [[ -n ${AXONN_PLUGINS:-} ]]; then
  keys+=(device=cuda)
  expect 0 '' "$axonn" train a.yaml "${keys[@]}" run.dir=gpu
  for way in runtime.ranks_per_node=0 runtime.ranks_per_node=1; do
    expect 0 'pipeline of' "${launch[@]}" -n 2 "$axonn" train a.yaml "${keys[@]}" run.dir="gpu-$way" grid.pipe=2 "$way"
    cmp gpu/$weights "gpu-$way/$weights" || die "other weights than on one stage on a GPU: $way"
  done
fi

same_output() { # VERB AND ARGUMENTS…
  expect 0 '' "$axonn" "$@"
  cp out one.out
  expect 0 '' "$axonn" "$@" --ranks 2 --grid pipe=2
  cmp out one.out || die "$*: the output differs from that of one rank"
}
same_output generate two --prompt 'the 1' --max-tokens 9 --temperature 0
same_output logits two --tokens 3,4,5
expect 0 '' "$axonn" eval two --data text --ranks 3 --grid pipe=3
