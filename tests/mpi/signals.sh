#!/usr/bin/env bash
# Signals and faults during jobs of several ranks: a training is saved, other verbs end as the signal, a rank that is killed
# or does not answer ends the job, and no process is left running.
# Usage: signals.sh AXONN LAUNCHER [FLAG…]     with AXONN_TEST_ALL also a second way to give up a step
source "$(dirname "$0")/jobs.sh"

expect 0 '' "$axonn" train a.yaml run.dir=two # a model to evaluate
# Signals to the supervisor (the process with --ranks) and to one rank: the run is saved.
# Prints the PID of the launcher that axonn has started: its child with another program. Fails if there is none yet.
launcher_of() { ps -o pid=,comm= --ppid "$1" | awk '$2 !~ /^axonn/ {print $1; found = 1} END {exit !found}'; }
# Ends the test if the job that should still run has ended.
still_runs() {
  kill -0 $long 2>/dev/null && return
  wait $long
  die "line ${BASH_LINENO[*]}: the job ended by itself with exit code $?"
}
start_long() { # starts a run in the background; returns when two steps are done
  rm -rf run
  "$axonn" train a.yaml --ranks 2 grid.z=2 train.steps=1000000 optim.schedule=constant 2>log &
  long=$!
  until [[ $(losses run 2>/dev/null | wc -l) -ge 2 ]]; do
    still_runs
    sleep 0.05
  done
}
for signal in TERM USR1 USR2; do
  start_long
  kill -$signal $long
  wait $long
  code=$?
  [[ $code == 7 && -s run/latest && $(grep -c 'stopped by' log) == 1 ]] || die "SIG$signal: exit code $code"
  none_left
done
start_long
kill -TERM "$(rank_of "$long")"
wait $long
code=$?
[[ $code == 7 && -s run/latest ]] || die "a rank's SIGTERM: exit code $code"
none_left
# After a signal, a rank that does not answer within two seconds ends the job.
start_long
stopped=$(rank_of "$long")
kill -STOP "$stopped"
begin=$(date +%s%N)
kill -TERM $long
wait $long
code=$?
took=$((($(date +%s%N) - begin) / 1000000))
[[ $code == 5 ]] && grep -Eq 'no answer from|does not answer' log || die "a rank that does not answer: exit code $code"
((took < 15000)) || die "a rank that does not answer was waited for $took ms"
kill -KILL "$stopped" 2>/dev/null
none_left
# Ranks that read an input which stays open: the launcher closes it when a signal comes, which is no end of the text.
mkfifo pipe
"$axonn" eval two --data /dev/stdin --ranks 2 <pipe >out 2>log &
long=$!
exec 3>pipe
sleep 1
kill -TERM $long
wait $long
code=$?
exec 3>&-
[[ $code == 143 ]] || die "ranks that wait for their input: exit code $code"
none_left
# A signal after rank 0 has ended, while the launcher still runs: the job has finished. The launcher is stopped while rank 0
# waits for its text, until rank 0 has noted its exit code in the supervisor's memory.
start_finished() { # VERB AND ARGUMENTS…
  local started note
  rm -rf run pipe && mkfifo pipe
  "$axonn" "$@" --ranks 2 >out 2>log &
  long=$!
  exec 3>pipe # waits until rank 0 reads
  started=$(launcher_of $long)
  kill -STOP "$started"
  cat text >&3 && exec 3>&-
  note=$(find /proc/$long/fd -lname '/memfd:axonn-note*')
  until [[ $(od -An -t d4 -j 8 -N 4 "$note") -eq 1 ]]; do
    still_runs
    sleep 0.05
  done
  launcher=$started
}
start_finished eval two --data pipe --json
kill -TERM $long
sleep 0.2
kill -CONT "$launcher"
wait $long
code=$?
[[ $code == 0 && $(<out) == '{"loss":'* ]] || die "a signal after an evaluation: exit code $code"
none_left
start_finished train a.yaml data.train=pipe grid.data=2
kill -TERM $long
sleep 0.2
kill -KILL "$launcher"
wait $long
code=$?
[[ $code == 0 && $(<run/latest) == step-4 ]] || die "a signal after a training: exit code $code"
none_left
# A launcher that hangs: no rank acknowledges the signal, so the supervisor ends the job. A FIFO without a writer, in place of
# a file that the launcher reads first, keeps it from starting the ranks before it is stopped.
rm -rf run home
mkdir -p home/.openmpi && mkfifo home/.openmpi/mca-params.conf home/hosts
HOME=$dir/home HYDRA_HOST_FILE=$dir/home/hosts "$axonn" train a.yaml --ranks 2 grid.z=2 2>log &
long=$!
until started=$(launcher_of $long); do
  still_runs
  sleep 0.01
done
kill -STOP $started
kill -TERM $long
wait $long
code=$?
[[ $code == 7 && ! -e run ]] && grep -q 'before any rank had begun; nothing was changed' log ||
  die "a launcher that does nothing: exit code $code"
! kill -0 $started 2>/dev/null || die "a launcher that does nothing is left"
none_left
# A very long step is given up ten seconds after a signal, which only one rank received, also one of the last stage. The
# ranks end by themselves, so one MPI library is enough.
give_up() { # SECONDS RANK KEYS…
  rm -rf run
  "$axonn" train a.yaml --ranks 2 "${@:3}" 2>log &
  long=$!
  until [[ -e run/metrics.jsonl ]]; do
    still_runs
    sleep 0.05
  done
  sleep "$1"
  begin=$(date +%s%N)
  kill -TERM "$(pid_of "$2")"
  wait $long
  code=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  [[ $code == 7 && $(<run/latest) == step-0 ]] && grep -q 'step 1 still ran ten seconds later' log ||
    die "a long step: exit code $code"
  ((took > 9000 && took < 30000)) || die "a long step ended after $took ms"
  none_left
}
[[ -z ${AXONN_TEST_ALL:-} ]] || give_up 0.5 1 grid.data=2 train.global_batch=10000000
[[ -z ${AXONN_TEST_ALL:-} && ${AXONN_MPI_KIND:-openmpi} != openmpi ]] || give_up 2 1 grid.pipe=2 train.global_batch=1000000 train.micro_batch=100
# A verb that has nothing to save is ended by the signal, without an error message.
rm log # it has the last job's memory
"$axonn" bench step a.yaml --ranks 2 grid.z=2 --steps 100000 2>log &
long=$!
until grep -qs '^memory' log; do
  still_runs
  sleep 0.05
done
kill -TERM $long
wait $long
code=$?
[[ $code == 143 ]] && ! grep -q error log || die "SIGTERM of a bench: exit code $code"
none_left
# Killing a rank ends the job.
start_long
kill -KILL "$(rank_of "$long")"
wait $long
code=$?
[[ $code == 5 ]] && grep -q '^axonn: error: ' log || die "a rank's SIGKILL: exit code $code"
none_left
# A token file that is truncated while all ranks read it is reported once, with its name.
start_long
: >"$(echo run/data/*.tok)"
wait $long
code=$?
[[ $code == 4 && $(grep -c '^axonn: error:' log) == 1 ]] && grep -q 'data/.*\.tok became shorter' log ||
  die "a token file that shrinks: exit code $code"
none_left
rm -rf run
# The job's exit code is the one that the aborted ranks noted, whatever the launcher returns.
start_long
started=$(launcher_of $long)
kill -STOP "$started"
note=$(find /proc/$long/fd -lname '/memfd:axonn-note*')
: >"$(echo run/data/*.tok)"
until [[ $(od -An -t d4 -j 8 -N 4 "$note") -eq 1 ]]; do
  still_runs
  sleep 0.05
done
kill -KILL "$started"
wait $long
code=$?
[[ $code == 4 ]] && grep -q 'error: the ranks ended with exit code 4; the launcher was ended by signal 9' log ||
  die "ranks that end before their launcher: exit code $code"
none_left
rm -rf run
# Killing the supervisor ends the job too.
start_long
kill -KILL $long
wait $long 2>/dev/null
none_left
rm -f log
