#!/usr/bin/env bash
# scripts/quickstart.sh with a tiny model on the sources of this tree: a run that is interrupted and continued,
# the result shown again, refusals. With `time`: that --seconds 15 is kept, on an idle machine.
#   tests/quickstart.sh AXONN [time]
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export AXONN=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=("$root/scripts/quickstart.sh" "$root/src" --dir "$work/run" --seconds 60 --prompt "int main(" model.layers=1
    model.hidden=16 model.heads=2 model.vocab=384 model.seq_len=32 train.precision=fp32 threads=1 run.eval_batches=1)

fail() {
    echo "$*" >&2
    cat "$work/log" >&2
    exit 1
}
# expect CODE TEXT COMMAND...: its exit code, and that it says TEXT.
expect() {
    local code=0 wanted=$1 text=$2
    shift 2
    "$@" >"$work/log" 2>&1 || code=$?
    [ "$code" -eq "$wanted" ] || fail "exit code $code, expected $wanted: $*"
    grep -qF -- "$text" "$work/log" || fail "it does not say \"$text\": $*"
}

if [ "${2:-}" = time ]; then
    SECONDS=0
    expect 0 "Trained on /usr/include" "$root/scripts/quickstart.sh" --dir "$work/run" --seconds 15
    [ $SECONDS -le 20 ] || fail "--seconds 15 took $SECONDS s"
    echo "quickstart: --seconds 15 took $SECONDS s"
    exit
fi

# The first minute of it is interrupted in training.
"${run[@]}" >"$work/log" 2>&1 &
script=$!
until grep -qs '"step": 1,' "$work/run/metrics.jsonl"; do
    kill -0 $script 2>/dev/null || fail "it ended before a step was made"
    sleep 0.05
done
kill "$(cat "$work/run/lock")"
! wait $script || fail "a signal stopped it, and yet it ended well"
grep -q "run the same command to continue" "$work/log" || fail "it does not say how to continue"

! grep -q "integer expr" "$work/log" || fail "a sum went wrong"
steps=$(sed -n 's/^steps=//p' "$work/run/quickstart.plan")
grep -q "^interval=$((steps / 8 + 1))$" "$work/run/quickstart.plan" || fail "not eight evaluations, with time enough"

# Going on, to an end that is near.
saved=$(sed 's/step-//' "$work/run/latest")
sed -i "s/^steps=.*/steps=$((saved + 20))/" "$work/run/quickstart.plan"
expect 0 "continuing the interrupted run" "${run[@]}" --seconds 50
grep -q "keeps its plan; with --again it starts again and takes 50 s" "$work/log" || fail "the new time is ignored"
for line in "$((saved + 20)) steps" "validation loss" "gzip -9" "xz -9e" "ckpt/step-$((saved + 20))" "int main("; do
    grep -qF -- "$line" "$work/log" || fail "the summary has no \"$line\""
done
grep -q "^<svg" "$work/run/loss.svg" || fail "loss.svg is no picture"
"$AXONN" data show "$work/run/data/valid.tok" --text --tokenizer "$work/run/data/tokenizer" >"$work/text"
[ "$(wc -c <"$work/text")" -eq "$(sed 's/.*"bytes":\([0-9]*\).*/\1/' "$work/run/eval.json")" ] ||
    fail "the compressors' text is not what was evaluated"

# A wrong key is told before anything is made.
expect 2 "did you mean model.layers?" "$root/scripts/quickstart.sh" "$root/src" --dir "$work/wrong" model.layer=3
[ ! -e "$work/wrong" ] || fail "a refused command made a directory"

# A finished run is shown; another one, or something else, is not overwritten.
before=$(stat -c %y "$work/run/metrics.jsonl")
expect 0 "was finished before" "${run[@]}"
[ "$before" = "$(stat -c %y "$work/run/metrics.jsonl")" ] || fail "a finished run was changed"
expect 1 "holds a run with other settings (there: none; here: optim.lr=0.1):" "${run[@]}" optim.lr=0.1
expect 1 "optim.lr is given twice, as 1 and as 2" "${run[@]}" optim.lr=1 optim.lr=2
expect 1 "is not empty and holds no quick start" "${run[@]}" --dir "$work"
expect 1 "is no directory" "$root/scripts/quickstart.sh" "$AXONN" --dir "$work/new"
expect 2 "--no-such-option: unknown flag" "${run[@]}" --no-such-option

# No time at all, less than anything takes on the fastest machine: it says so, and looks at the loss no oftener
# than at half of the steps.
expect 0 "longer than the 0 s asked for: 20 steps" "${run[@]}" --seconds 0 --again
grep -q "^interval=11" "$work/run/quickstart.plan" || fail "evaluations outlast the training"

# The model is made for the time: the smallest in none. Files and their copies are on one side of the split.
mkdir "$work/twice"
cp -r "$root/src/base" "$work/twice/a"
cp -r "$root/src/base" "$work/twice/b"
expect 0 "longer than the 0 s asked for" "$root/scripts/quickstart.sh" "$work/twice" --dir "$work/small" --seconds 0 \
    model.vocab=384 model.seq_len=32 train.precision=fp32 threads=1 run.eval_batches=1
grep -q "^key=model.hidden=64$" "$work/small/quickstart.plan" || fail "not the smallest model, with no time"
grep -q "gpt2 2 x 64" "$work/log" || fail "the model is not the planned one"
valid=$work/small/data/valid.tok
documents=$("$AXONN" data show "$valid" --json | sed 's/.*"documents":\([0-9]*\).*/\1/')
[ "$documents" -ge 2 ] || fail "nothing to validate with"
for i in $(seq 0 $((documents - 1))); do
    "$AXONN" data show "$valid" --document "$i" --tokenizer "$work/small/data/tokenizer" | cksum
done | sort | uniq -c | awk '$1 != 2 { exit 1 }' || fail "a file is to validate with, and its copy to train on"
echo "quickstart: good"
