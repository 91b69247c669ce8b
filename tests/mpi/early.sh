#!/usr/bin/env bash
# Jobs of 1, 2 and 4 ranks get a signal at a random moment of their first half second. Each must end with exit code 7
# within SECONDS and leave no process. Exit code 128 + n is allowed only if the program did not catch the signal yet.
# Usage: early.sh SIGNALS SECONDS AXONN LAUNCHER [FLAG…]
signals=$1 seconds=$2
shift 2
source "$(dirname "$0")/program.sh"

for ((i = 0; i < 300; i++)); do echo "the $((i % 7)) of $((i * i % 11)) and $((i % 5))"; done >text
"$axonn" tok train --input text --vocab 270 --out tok >/dev/null 2>&1 || die "no tokenizer"
cat >a.yaml <<'END'
model: {family: gpt2, layers: 1, hidden: 16, heads: 2, vocab: 270, seq_len: 16}
data:  {train: text, tokenizer: tok}
train: {steps: 1000000000, global_batch: 4, micro_batch: 1}
optim: {schedule: constant}
run:   {dir: run, checkpoint_interval: 0, log_interval: 1000000000}
threads: 1
END
grid=([1]="" [2]="--ranks 2 grid.z=2" [4]="--ranks 4 grid.data=4")
number=([1]=HUP [2]=INT [10]=USR1 [12]=USR2 [15]=TERM)
order=(15 2 10 1 12 15 2)

# Prints the processes that have the mark in their environment.
marked() { grep -alz "^AXONN_TEST_MARK=$1\$" /proc/[0-9]*/environ 2>/dev/null; }

# Whether the process catches the signal.
catches() { # PROCESS NUMBER
  local mask
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [[ -n $mask ]] && ((0x$mask >> ($2 - 1) & 1))
}

RANDOM=1
uncaught=0
for ((i = 0; i < signals; i++)); do
  ranks=$((1 << i % 3)) n=${order[i % 7]} ms=$((RANDOM % 500)) mark=early-$$-$i caught=false
  rm -rf run
  # A shell makes background processes ignore SIGINT; env undoes that.
  AXONN_TEST_MARK=$mark env --default-signal=INT "$axonn" train a.yaml ${grid[ranks]} >out 2>log &
  job=$!
  # Waits until env has executed the program: before that SIGINT is ignored.
  until [[ /proc/$job/exe -ef $axonn ]] || ! kill -0 $job 2>/dev/null; do sleep 0.001; done
  sleep "$(printf 0.%03d $ms)"
  catches $job $n && caught=true
  begin=$(date +%s%N)
  kill -$n $job
  for ((t = 0; t < seconds * 20; t++)); do
    kill -0 $job 2>/dev/null || break
    sleep 0.05
  done
  kill -KILL $job 2>/dev/null && die "$ranks ranks, SIG${number[n]} after $ms ms: still running after $seconds s"
  wait $job
  code=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  what="$ranks ranks, SIG${number[n]} after $ms ms: exit code $code after $took ms"
  # A process that was killed is seen until it has run once more, which takes a while on a busy machine.
  for ((t = 0; t < 200; t++)); do
    left=$(marked $mark)
    [[ -n $left ]] || break
    sleep 0.05
  done
  [[ -z $left ]] || die "$what; left running: $left"
  ((code == 7)) || { ((code == 128 + n)) && ! $caught && uncaught=$((uncaught + 1)); } || die "$what"
  ((took <= seconds * 1000)) || die "$what"
  [[ $(grep -c '^axonn: error' log) == 0 ]] || die "$what, and an error"
done
echo "$signals signals: $((signals - uncaught)) exit codes 7; $uncaught before the program caught signals"
rm -f log
