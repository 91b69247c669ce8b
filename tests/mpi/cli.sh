#!/usr/bin/env bash
# The program on several ranks, started with --ranks and by the launcher: results equal those of one rank, mistakes are
# reported once with the documented exit code, standard input reaches the verbs that read it.
# Usage: cli.sh AXONN LAUNCHER [FLAG…]     with AXONN_TEST_ALL all of some like jobs
source "$(dirname "$0")/jobs.sh"
all=${AXONN_TEST_ALL:-}

# One rank, two ranks and four ranks have the same losses.
expect 0 '' "$axonn" train a.yaml run.dir=one
expect 0 '' "$axonn" train a.yaml --ranks 2 grid.x=2 run.dir=two --json
[[ $(wc -l <out) == 1 && $(<out) == '{"run":'*'"step":4,'* ]] || die "standard output is: $(<out)"
same_losses one two
expect 0 '' "${launch[@]}" -n 4 "$axonn" train a.yaml grid.y=2 grid.z=2 run.dir=four
same_losses one four
expect 0 'resuming .*step-4' "$axonn" train a.yaml --ranks 2 grid.data=2 run.dir=one train.steps=5

# Whether two files are equal except for the seventh digit of numbers, and for seconds.
same_numbers() { # FILE FILE
  awk -v FS='[][{},: ]+' '
    { sub(/"seconds":[^,}]*/, "") }
    NR == FNR { line[FNR] = $0; lines = FNR; next }
    { n = split(line[FNR], a, FS); if (n != split($0, b, FS)) exit 1 }
    { for (i = 1; i <= n; i++) {
        d = a[i] - b[i]; m = a[i] < 0 ? -a[i] : a[i]
        if (a[i] != b[i] && (a[i] !~ /^-?[0-9]+\.[0-9]/ || (d < 0 ? -d : d) > 1e-6 * (m > 1 ? m : 1))) {
          print line[FNR]; print; exit 1 } } }
    END { if (FNR != lines) exit 1 }' "$1" "$2"
}

# Output that cannot be written is an error, or the end that other programs have. The ranks' launcher says nothing.
"$axonn" train a.yaml --ranks 2 run.dir=two --json >/dev/full 2>log
[[ $? == 4 ]] && grep -q 'standard output cannot be written' log || die "a full standard output: $(<log)"
"$axonn" generate two --tokens 1 --ranks 2 --samples 1000 2>log | head -c 1 >/dev/null
[[ ${PIPESTATUS[0]} == 141 ]] || die "a closed standard output: ${PIPESTATUS[0]}, $(<log)"
mkdir left
(cd left && rmdir ../left && "$axonn" generate ../two --tokens 1 --ranks 2 2>../log)
[[ $? == 4 ]] && grep -q 'change to another directory' log || die "a directory that is gone: $(<log)"

# Evaluation, generation and logits on grids print what one rank prints.
same_output() { # VERB AND ARGUMENTS… ++ RANKS AND GRID…
  local words=() one
  while [[ $1 != ++ ]]; do words+=("$1") && shift; done
  shift
  "$axonn" "${words[@]}" >one.out 2>log || die "${words[*]}"
  expect 0 '' "$axonn" "${words[@]}" "$@"
  # Sums in another order: numbers may differ by a few units in the seventh digit, the last one of fp32.
  same_numbers one.out out ||
    die "${words[*]} $*: the output differs from that of one rank"
  :
}
for grid in '--grid x=2' ${all:+'--grid y=2'}; do
  same_output eval two --data text --json ++ --ranks 2 $grid
  same_output generate two --prompt 'the 1' --max-tokens 9 --temperature 0 ++ --ranks 2 $grid
  same_output logits two --tokens 3,4,5 --last ++ --ranks 2 $grid
done
same_output eval two --data text --json ++ --ranks 2
same_output generate two --tokens 9,8 --max-tokens 5 --seed 4 ++ --ranks 4 grid.x=2 grid.z=2
expect 2 'it has 3 ranks, not 2; the nearest grids' "$axonn" generate two --tokens 1 --ranks 2 --grid x=3
expect 4 'no such file' "$axonn" eval two --data nothing --ranks 2
expect 4 'nothing' "$axonn" eval nothing --data text --ranks 2

# Runtime settings reach the ranks, as keys and as variables.
comm=("$axonn" bench comm --ranks 2 --collective barrier --runs 1 --json)
expect 0 '' "${comm[@]}"
grep -q '"path":"node"' out || die "no shared memory: $(<out)"
expect 0 '' "${comm[@]}" runtime.shared_memory=off
grep -q '"path":"flat"' out || die "runtime.shared_memory=off does not reach the ranks: $(<out)"
expect 0 '' env AXONN_SHARED_MEMORY=off "${comm[@]}"
grep -q '"path":"flat"' out || die "AXONN_SHARED_MEMORY=off does not reach the ranks: $(<out)"
expect 0 '' env AXONN_SHARED_MEMORY=off "${comm[@]}" runtime.shared_memory=auto
grep -q '"path":"node"' out || die "the key does not win over the variable: $(<out)"
expect 0 '' env AXONN_SHARED_MEMORY=off "$axonn" train a.yaml --ranks 2 grid.data=2 run.dir=settings runtime.isa=generic
grep -q '^  isa: generic # command line' settings/config.yaml || die "config.yaml without the instruction set"
grep -q 'shared_memory' settings/config.yaml && die "config.yaml with settings of the machine"

# /dev/stdin as an argument works with --ranks too.
expect 0 '' "$axonn" eval two --data text --json
cp out one.out
expect 0 '' "$axonn" eval two --data /dev/stdin --json --ranks 2 < <(cat text)
same_numbers one.out out || die "text from a pipe on two ranks"
expect 0 '' "$axonn" eval two --data /proc/self/fd/0 --json --ranks 2 < <(cat text)
same_numbers one.out out || die "text from a pipe, by another name, on two ranks"
sed 's,train: text,train: /dev/stdin,' a.yaml >stdin.yaml
expect 0 '' "$axonn" train stdin.yaml --ranks 2 grid.data=2 run.dir=piped < <(cat text)
same_losses two piped

# A prompt from a pipe reaches rank 0. Verbs that do not read standard input leave it untouched.
expect 0 '' "$axonn" generate two --prompt 'the 1' --max-tokens 4 --seed 2
cp out one.out
expect 0 '' "$axonn" generate two --max-tokens 4 --seed 2 --ranks 2 < <(echo 'the 1')
cmp out one.out || die "a prompt from a pipe on two ranks"
expect 0 '' "${launch[@]}" -n 2 "$axonn" generate two --prompt - --max-tokens 4 --seed 2 < <(echo 'the 1')
cmp out one.out || die "a prompt from the pipe of a launcher"
{ expect 0 '' "$axonn" eval two --data text --ranks 2 && cat >rest; } <<<kept
[[ $(<rest) == kept ]] || die "eval on ranks has read its standard input"
{ expect 0 '' "$axonn" generate two --prompt the --max-tokens 2 --ranks 2 && cat >rest; } <<<kept
[[ $(<rest) == kept ]] || die "generate --prompt on ranks has read its standard input"
{ expect 0 '' "$axonn" train a.yaml --ranks 2 grid.data=2 run.dir=unpiped && cat >rest; } <<<kept
[[ $(<rest) == kept ]] || die "train on ranks has read its standard input"

# A parent that ignores SIGCHLD.
expect 0 '' bash -c 'trap "" CHLD; exec "$@"' - "$axonn" logits two --tokens 3,4 --last --ranks 2
# A child that a shell had started before it became this program is left alone.
expect 0 '' bash -c 'sleep 600 & echo $! >child; exec "$@"' - "$axonn" logits two --tokens 3,4 --last --ranks 2
kill "$(<child)" || die "a process that the job did not start was ended with it"

# Another run replaces its checkpoints meanwhile: all ranks start from the one that rank 0 found.
sed 's/^model:.*/model: {from: going}/' a.yaml >from.yaml
"$axonn" train a.yaml run.dir=going run.keep_latest=1 run.checkpoint_interval=1 train.steps=1000000 2>/dev/null &
going=$!
for ((i = 0; i < 200; i++)); do [[ ! -s going/latest ]] || break; sleep 0.05; done
starts=${all:+2}
for ((i = 0; i < ${starts:=1}; i++)); do
  timeout 60 "$axonn" train from.yaml run.dir="from$i" train.steps=1 --ranks 2 grid.data=2 2>log || break
done
kill $going
wait $going
((i == starts)) || die "a start from a run in training: $(tail -n 3 log)"
none_left

# Mistakes: one message, the documented exit code, no files.
expect 2 'needs 4 ranks but there are 2: .*--ranks 4.*nearest grids' "$axonn" train a.yaml --ranks 2 grid.x=4
expect 2 'heads' "$axonn" train a.yaml --ranks 2 grid.x=2 model.heads=5
expect 2 '--grid: unknown flag.*written without dashes \(grid\.x=2\)' "$axonn" train a.yaml --ranks 2 --grid x=2
expect 2 '--grid\.x: unknown flag; keys are written without dashes: grid\.x=' "$axonn" train a.yaml --ranks 2 --grid.x=2
expect 2 'zero: must be from 0 to 3' "$axonn" train a.yaml --ranks 2 grid.x=2 zero=9
expect 4 'cannot open no.yaml' "$axonn" train no.yaml --ranks 2
expect 4 'data.train: no such file or directory: ' "$axonn" train a.yaml --ranks 2 grid.data=2 data.train=nothing
expect 2 'rank 1: train.seed is 2 here \(command line\) and 1 on rank 0' \
  "${launch[@]}" -n 1 "$axonn" train a.yaml grid.data=2 train.seed=1 : -n 1 "$axonn" train a.yaml grid.data=2 train.seed=2
expect 4 'rank 1: cannot open b.yaml' \
  "${launch[@]}" -n 1 "$axonn" train a.yaml grid.data=2 : -n 1 "$axonn" train b.yaml grid.data=2
[[ ! -e run ]] || die "a refused run made its directory"
expect 2 '--ranks 3, but .* started 2' "${launch[@]}" -n 2 "$axonn" train a.yaml --ranks 3
expect 2 '"b" must be a number of ranks' "$axonn" train a.yaml --ranks 2 --hosts a:b
expect 2 '"0" must be a number of ranks' "$axonn" info --grid x=2 --hosts a:0
# A launcher of another MPI library: each rank would be a separate run of one rank, so that is an error.
expect 2 "mpirun started 4 ranks, but " env OMPI_COMM_WORLD_SIZE=4 "$axonn" train a.yaml

# One rank does not see the data. Needs the right to mount.
mkdir data && cp text data
if unshare -m mount -t tmpfs none data 2>/dev/null; then
  keys=(grid.data=2 run.dir=hidden data.train=data/text)
  expect 4 'rank 1: .*data/text' "${launch[@]}" -n 1 "$axonn" train a.yaml "${keys[@]}" \
    : -n 1 unshare -m sh -c 'mount -t tmpfs none data && exec "$@"' - "$axonn" train a.yaml "${keys[@]}"
  [[ ! -e hidden ]] || die "a refused run made its directory"
  # If ranks do not share a disk, each one tokenizes for itself. TMPDIR is set for the ranks only: the launcher's files
  # must be seen by all of them.
  mkdir disk
  "$axonn" eval two --data text --json >one.out 2>log || die "eval"
  eval_on_disk=(env TMPDIR="$dir/disk" "$axonn" eval two --data text --json)
  expect 0 '' "${launch[@]}" -n 1 "${eval_on_disk[@]}" \
    : -n 1 unshare -m sh -c 'mount -t tmpfs none disk && exec "$@"' - "${eval_on_disk[@]}"
  [[ -z $(ls disk) && $(grep -o '"targets":[0-9]*' out) == "$(grep -o '"targets":[0-9]*' one.out)" ]] ||
    die "eval where disks are not shared: $(ls disk; cat out)"
fi

# With a damaged or missing file in the checkpoint the run fails and overwrites nothing.
cp -r one/ckpt/step-5 kept
for damage in 'rm %' ${all:+'truncate -s 100 %' 'printf x | dd of=% bs=1 seek=3000 conv=notrunc status=none'}; do
  rm -rf one/ckpt/* && cp -r kept one/ckpt/step-5
  sh -c "${damage//%/one\/ckpt\/step-5\/training\/optim.safetensors}"
  cp one/metrics.jsonl before
  expect 4 'step-5' "$axonn" train a.yaml --ranks 2 grid.data=2 run.dir=one train.steps=6
  cmp -s one/metrics.jsonl before || die "a refused run wrote metrics"
done
