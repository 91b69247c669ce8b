#!/usr/bin/env bash
# scripts/quickstart.sh with a tiny model on the sources of this tree: a run is interrupted and continued, follows the clock,
# its result is printed again, and wrong commands are refused. With `time`: checks that --seconds 15 is kept, not counting the time that
# other programs of a busy machine take.
#   tests/quickstart.sh AXONN [time]
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export AXONN=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=("$root/scripts/quickstart.sh" "$root/src" --dir "$work/run" --seconds 30 --prompt "int main(" model.layers=1
    model.hidden=16 model.heads=2 model.vocab=384 model.seq_len=32 train.precision=fp32 threads=1 run.eval_batches=1)

fail() {
    echo "$*" >&2
    cat "$work/log" >&2
    exit 1
}
# expect CODE TEXT COMMAND...: the command must end with this exit code and print TEXT.
expect() {
    local code=0 wanted=$1 text=$2
    shift 2
    "$@" >"$work/log" 2>&1 || code=$?
    [ "$code" -eq "$wanted" ] || fail "exit code $code, expected $wanted: $*"
    grep -qF -- "$text" "$work/log" || fail "it does not say \"$text\": $*"
}

# Adds two processor times in seconds to the file `usage`: what all processes and other guests of the hypervisor took since
# the machine started, and what the children of this script took.
note_usage() {
    times >"$work/times"
    awk -v ticks="$(getconf CLK_TCK)" 'FNR == NR && /^cpu / { all = ($2 + $3 + $4 + $7 + $8 + $9) / ticks }
        FNR != NR && FNR == 2 { split($1 "m" $2, t, /[ms]+/); own = 60 * (t[1] + t[3]) + t[2] + t[4] }
        END { print all, own }' /proc/stat "$work/times" >>"$work/usage"
}

if [ "${2:-}" = time ]; then
    note_usage
    SECONDS=0
    expect 0 "Trained on /usr/include" "$root/scripts/quickstart.sh" --dir "$work/run" --seconds 15
    note_usage
    took=$(paste -sd ' ' "$work/usage" | awk -v s=$SECONDS '{ printf "%.1f", s * ($4 - $2) / ($3 - $1) }')
    [ "$(awk "BEGIN { print ($took <= 20) }")" -eq 1 ] || fail "--seconds 15 took $SECONDS s, without other programs $took s"
    echo "quickstart: --seconds 15 took $SECONDS s, without other programs $took s"
    exit
fi

# Starts a run and interrupts it during training.
"${run[@]}" >"$work/log" 2>&1 &
script=$!
until grep -qs '"step": 1,' "$work/run/metrics.jsonl"; do
    kill -0 $script 2>/dev/null || fail "it ended before a step was made"
    sleep 0.05
done
kill "$(cat "$work/run/lock")"
! wait $script || fail "a signal stopped it, but its exit code is 0"
grep -q "run the same command to continue" "$work/log" || fail "it does not say how to continue"

! grep -q "integer expr" "$work/log" || fail "a calculation failed"
steps=$(sed -n 's/^steps=//p' "$work/run/quickstart.plan")
grep -q "^interval=$((steps / 8 + 1))$" "$work/run/quickstart.plan" || fail "not eight evaluations, with time enough"

# Continues the run, as if the machine had become much slower: its time is nearly over, and a million steps are left. It
# makes fewer of them, and the learning rate is zero at the last one all the same.
sed -i "s/^steps=.*/steps=1000000/" "$work/run/quickstart.plan"
echo 29 >"$work/run/quickstart.clock"
expect 0 "continuing the interrupted run" "${run[@]}" --seconds 50
grep -q "keeps its plan; with --again it starts again and takes 50 s" "$work/log" || fail "the new time is ignored"
grep -q "the machine has become slower: [0-9]* steps instead of 1000000" "$work/log" || fail "it does not follow the clock"
steps=$(sed -n 's/^steps=//p' "$work/run/quickstart.plan")
grep '"loss"' "$work/run/metrics.jsonl" | tail -n 1 | grep -q "\"step\": $steps, .*\"lr\": 0," ||
    fail "the learning rate of the last step is not zero"
for line in "$steps steps" "validation loss" "gzip -9" "xz -9e" "ckpt/step-$steps" "int main("; do
    grep -qF -- "$line" "$work/log" || fail "the summary has no \"$line\""
done
grep -q "^<svg" "$work/run/loss.svg" || fail "loss.svg is no picture"
# There was no time for the whole validation text.
"$AXONN" data show "$work/run/data/part.tok" --text --tokenizer "$work/run/data/tokenizer" >"$work/text"
[ "$(wc -c <"$work/text")" -eq "$(sed 's/.*"bytes":\([0-9]*\).*/\1/' "$work/run/eval.json")" ] ||
    fail "the compressors' text is not what was evaluated"

# A wrong key is reported before anything is created.
expect 2 "did you mean model.layers?" "$root/scripts/quickstart.sh" "$root/src" --dir "$work/wrong" model.layer=3
[ ! -e "$work/wrong" ] || fail "a refused command made a directory"

# The result of a finished run is printed again. A run with other settings, or another directory, is not overwritten.
before=$(stat -c %y "$work/run/metrics.jsonl")
expect 0 "was finished before" "${run[@]}"
[ "$before" = "$(stat -c %y "$work/run/metrics.jsonl")" ] || fail "a finished run was changed"
expect 1 "holds a run with other settings (there: none; here: optim.lr=0.1):" "${run[@]}" optim.lr=0.1
expect 1 "optim.lr is given twice, as 1 and as 2" "${run[@]}" optim.lr=1 optim.lr=2
expect 1 "is not empty and holds no quick start" "${run[@]}" --dir "$work"
expect 1 "is no directory" "$root/scripts/quickstart.sh" "$AXONN" --dir "$work/new"
expect 2 "--no-such-option: unknown flag" "${run[@]}" --no-such-option

# With no time at all the script says that it takes longer, and evaluates only twice.
expect 0 "longer than the 0 s asked for: 20 steps" "${run[@]}" --seconds 0 --again
grep -q "^interval=11" "$work/run/quickstart.plan" || fail "evaluations outlast the training"

# The model fits the time: with no time it is the smallest one. A file and its copies are on the same side of the split.
# The measurement evaluates once, even if an evaluation is due every three of its eight steps.
mkdir "$work/twice"
cp -r "$root/src/data" "$work/twice/a"
cp -r "$root/src/data" "$work/twice/b"
expect 0 "longer than the 0 s asked for" "$root/scripts/quickstart.sh" "$work/twice" --dir "$work/small" --seconds 0 \
    model.vocab=384 model.seq_len=32 train.precision=fp32 threads=1 run.eval_batches=1 run.eval_interval=3
! grep -q "awk\|integer expr" "$work/log" || fail "a calculation failed"
grep -q "^key=model.hidden=64$" "$work/small/quickstart.plan" || fail "not the smallest model, with no time"
grep -q "gpt2 2 x 64" "$work/log" || fail "the model is not the planned one"
valid=$work/small/data/valid.tok
documents=$("$AXONN" data show "$valid" --json | sed 's/.*"documents":\([0-9]*\).*/\1/')
[ "$documents" -ge 2 ] || fail "nothing to validate with"
for i in $(seq 0 $((documents - 1))); do
    "$AXONN" data show "$valid" --document "$i" --tokenizer "$work/small/data/tokenizer" | cksum
done | sort | uniq -c | awk '$1 != 2 { exit 1 }' || fail "a file is to validate with, and its copy to train on"
echo "quickstart: good"
