#!/usr/bin/env bash
# Shows axonn's main use on real input: builds axonn, trains a tokenizer and a GPT on the text files below PATH
# (default: the C and C++ headers in /usr/include), and prints the results. The size of the model depends on the time:
# 1.4 M parameters for the default of five minutes after the build on two cores. Installs missing packages on Debian 12
# (as root, or with sudo).
#
#   scripts/quickstart.sh [PATH] [--seconds N] [--prompt TEXT] [--dir DIR] [--again] [key=value ...]
#
#   --seconds N    time for everything after the build (default: 300, or more if a million tokens take longer). The number of
#                  steps follows the clock: it changes if the machine becomes slower or faster
#   --prompt TEXT  text that the model continues at the end (for headers e.g. "static inline int ")
#   --dir DIR      run directory (default: runs/quickstart in this tree)
#   --again        delete a finished or interrupted run, and start again
#   key=value      overrides a key of examples/quickstart.yaml
#
# The same command continues an interrupted run, and prints the result of a finished one again.
# AXONN=PROGRAM uses that program instead of building one.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
config=$root/examples/quickstart.yaml
source=/usr/include dir=$root/runs/quickstart seconds='' prompt='' again=false overrides=()
million=1000000

fail() {
    echo "quickstart: $*" >&2
    exit 1
}

usage() {
    sed -n '/^#   scripts/,/^# The same/s/^# \{0,1\}//p' "$0" | sed '$d'
    exit "$1"
}

value() { [ -n "${2:-}" ] || fail "$1 needs a value (--help says which)"; }

# setting KEY DEFAULT: prints the value that the command line gives for a key, or the default.
setting() {
    local word found=$2
    for word in ${overrides[@]+"${overrides[@]}"}; do
        [ "${word%%=*}" != "$1" ] || found=${word#*=}
    done
    echo "$found"
}

# Adds a key=value to the overrides; fails if the key was given before.
override() {
    local before
    before=$(setting "${1%%=*}" "")
    [ -z "$before" ] || fail "${1%%=*} is given twice, as $before and as ${1#*=}; keep one"
    overrides+=("$1")
}

given_path=false
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage 0 ;;
        --seconds) value "$@" && seconds=$2 && shift ;;
        --prompt) value "$@" && prompt=$2 && shift ;;
        --dir) value "$@" && dir=$(realpath -m "$2") && shift ;;
        --again) again=true ;;
        -*) echo "quickstart: $1: unknown flag" >&2 && usage 2 >&2 ;;
        run.dir=* | data.*=*) fail "$1: the script sets it (--dir, PATH)" ;;
        [a-z]*.[a-z]*=* | threads=* | device=*) override "$1" ;;
        *)
            $given_path && usage 2 >&2
            given_path=true source=$(realpath -m "$1")
            ;;
    esac
    shift
done
[[ $seconds =~ ^[0-9]*$ ]] || fail "--seconds needs a number, not \"$seconds\""
[ -d "$source" ] || fail "$source is no directory: give a directory with text files"
[ -n "$prompt" ] || [ "$source" != /usr/include ] || prompt="static inline int "

# ---- small helpers --------------------------------------------------------------------------------------

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { echo "$bold$*$plain"; }

# field KEY: prints the value of a key of the JSON object on stdin.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,}\"]*\).*/\1/p"; }
# calc FORMAT EXPRESSION: prints the value of an awk expression.
calc() { awk "BEGIN { printf \"$1\", $2 }"; }
thousands() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }
# Keeps the last line of each key among key=value lines.
last_of_each() { tac | awk -F= '!seen[$1]++' | tac; }
duration() { if [ "$1" -lt 100 ]; then echo "$1 s"; else calc "%d min %d s" "int($1 / 60), $1 % 60"; fi; }

# ---- an existing run ------------------------------------------------------------------------------------

settings=$dir/quickstart.settings summary=$dir/summary.txt plan=$dir/quickstart.plan clock=$dir/quickstart.clock
wanted=$(printf '%s\n' "$source" ${overrides[@]+"${overrides[@]}"})
# Prints the settings that only the run in the directory has (-23), or that only this command has (-13).
only() { comm "$1" <(sort "$settings") <(sort <<<"$wanted") | paste -sd ' '; }
if [ ! -e "$settings" ]; then
    [ -z "$(ls -A "$dir" 2>/dev/null)" ] || fail "$dir is not empty and holds no quick start: choose another --dir"
elif $again; then
    rm -rf "$dir"
elif had=$(only -23) has=$(only -13) && [ -n "$had$has" ]; then
    fail "$dir holds a run with other settings (there: ${had:-none}; here: ${has:-none}):" \
        "choose another --dir, or start again with --again"
elif [ -e "$summary" ]; then
    cat "$summary"
    echo
    echo "This run was finished before; to train again: $0 --again"
    exit
fi

# ---- 1: the program -------------------------------------------------------------------------------------

build() {
    local log=$root/build/quickstart.log
    "$root/scripts/install-deps.sh"
    mkdir -p "$root/build"
    if [ ! -e "$root/build/build.ninja" ] && [ ! -e "$root/build/Makefile" ]; then
        cmake --fresh -S "$root" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$log" 2>&1 ||
            { cat "$log" >&2 && fail "cmake failed"; }
    fi
    if [ -t 1 ]; then
        cmake --build "$root/build" --target axonn -j "$(nproc)" || fail "the build failed"
    else
        cmake --build "$root/build" --target axonn -j "$(nproc)" >"$log" 2>&1 ||
            { tail -n 40 "$log" >&2 && fail "the build failed"; }
    fi
}

if [ -z "${AXONN:-}" ]; then
    say "[1/6] packages and build"
    AXONN=$root/build/axonn
    build
else
    AXONN=$(realpath "$AXONN")
fi
SECONDS=0
spent=0 # seconds that the run took before it was interrupted
[ ! -e "$clock" ] || spent=$(<"$clock")

# Reports a wrong override before anything takes time. axonn exits with 2 for a wrong configuration; a correct one fails
# here too, but only because its data does not exist yet.
check_overrides() {
    local words said code=0
    mapfile -t words < <(printf '%s\n' {run.dir,data.train,data.valid,data.tokenizer}="$dir/none" \
        ${overrides[@]+"${overrides[@]}"} | last_of_each)
    said=$("$AXONN" train "$config" "${words[@]}" 2>&1) || code=$?
    [ "$code" -ne 2 ] || { echo "$said" >&2 && exit 2; }
}

if [ -e "$settings" ]; then
    echo "continuing the interrupted run in $dir (--again starts again)"
else
    check_overrides
    mkdir -p "$dir"
    echo "$wanted" >"$settings"
fi

# ---- 2, 3: tokenizer and data ---------------------------------------------------------------------------

data=$dir/data tokenizer=$dir/data/tokenizer
mkdir -p "$data"
if [ ! -e "$data/tokenizer.json" ]; then
    vocab=$(setting model.vocab 4096)
    say "[2/6] training a tokenizer of $vocab tokens on $source"
    "$AXONN" tok train --input "$source" --vocab "$vocab" --out "$tokenizer" --json >"$data/tokenizer.json.part"
    mv "$data/tokenizer.json.part" "$data/tokenizer.json"
    files=$(field files <"$data/tokenizer.json")
    echo "$files file$([ "$files" -eq 1 ] || echo s)," \
        "$(calc "%.1f MB" "$(field bytes <"$data/tokenizer.json") / 1e6")"
fi

# split FRACTION: builds the token files and prints the number of validation tokens. Files that are left out were logged
# when the tokenizer was trained, so only errors are logged here.
split() {
    AXONN_LOG=error "$AXONN" data build --input "$source" --tokenizer "$tokenizer" --out "$data/train.tok" \
        --valid "$data/valid.tok" --valid-fraction "$1" --json >/dev/null ||
        fail "no data from $source: it should hold at least some dozens of text files"
    "$AXONN" data show "$data/valid.tok" --json | field tokens
}

# Builds the token files for training and validation. A hash of its text decides whether a file is for validation, so
# copies of a file are on the same side. The goal is a million validation tokens, or fewer if time is short. File sizes
# differ a lot. So build_data tries fractions of the files, in at most a quarter of the time, until one gives a little more
# tokens than the goal. The first fraction has at least two dozen files; the largest is a fifth of all files. The next
# fraction is in proportion to the tokens of the last one.
build_data() {
    local low=0 high=0.2 fraction tokens goal time=${seconds:-300}
    goal=$(calc %d "$million * ($time < 1 ? 1 : $time > 300 ? 300 : $time) / 300")
    fraction=$(calc %.5f "3 * $goal / $(field bytes <"$data/tokenizer.json")")
    fraction=$(awk -v a="$fraction" -v b="$(field files <"$data/tokenizer.json")" -v high=$high \
        'BEGIN { if (a < 24 / b) a = 24 / b; printf "%.5f", a < high ? a : high }')
    for _ in 1 2 3 4 5; do
        tokens=$(split "$fraction")
        if [ "$tokens" -lt $((goal * 101 / 100)) ]; then
            low=$fraction
        else
            high=$fraction
            [ "$tokens" -gt $((goal * 13 / 10)) ] || break
        fi
        if [ $((4 * SECONDS)) -ge "$time" ]; then high=$fraction && break; fi
        fraction=$(awk -v f="$fraction" -v tokens="$tokens" -v goal="$goal" -v low="$low" -v high="$high" 'BEGIN {
            next_f = tokens ? f * 1.15 * goal / tokens : 1
            printf "%.5f", low < next_f && next_f < high ? next_f : (low + high) / 2 }')
    done
    if [ "$fraction" != "$high" ]; then split "$high" >/dev/null; fi
    touch "$data/complete"
}

if [ ! -e "$data/complete" ]; then
    say "[3/6] building token files for training and validation"
    build_data
fi
train_tokens=$("$AXONN" data show "$data/train.tok" --json | field tokens)
valid_tokens=$("$AXONN" data show "$data/valid.tok" --json | field tokens)
echo "$(thousands "$train_tokens") tokens to train on, $(thousands "$valid_tokens") to validate with"

# ---- 4: how many steps ----------------------------------------------------------------------------------

# Uses bf16 if the processor has instructions for it.
precision=fp32
if "$AXONN" info --json | grep -q '"kernels": *{"isa": *"avx512_\(amx\|bf16\)"'; then precision=bf16; fi
precision=$(setting train.precision $precision)
keys=("data.train=$data/train.tok" "data.valid=$data/valid.tok" "data.tokenizer=$tokenizer"
    "run.dir=$dir" "train.precision=$precision" ${overrides[@]+"${overrides[@]}"})

rows() { grep '"loss"' "$1/metrics.jsonl"; }
mean() { awk 'NR > skip { sum += $1 } END { print sum / (NR - skip) }' skip="$1"; } # of all numbers but the first SKIP

# Trains with these key=value words; the last one of a key counts.
train() {
    local words
    mapfile -t words < <(printf '%s\n' "$@" | last_of_each)
    "$AXONN" train "$config" "${words[@]}"
}

# Models from small to large: layers, hidden, heads, sequence length, rows per step, learning rate. The script takes the
# largest one that can read at least four tokens per parameter in the time. examples/quickstart.yaml has the one for five
# minutes on two cores.
models="2 64 2 128 8 8e-3
3 96 3 128 8 6e-3
4 128 4 128 8 4e-3
4 192 6 256 8 4e-3
6 256 8 256 8 3e-3
6 384 6 256 8 2e-3
8 512 8 256 16 1e-3
12 768 12 256 32 6e-4"

# Prints the keys of the model of this width.
model_keys() {
    awk -v width="$1" '$2 == width {
        print "model.layers=" $1 "\nmodel.hidden=" $2 "\nmodel.heads=" $3 "\nmodel.seq_len=" $4
        print "train.global_batch=" $5 "\ntrain.micro_batch=" $5 "\noptim.lr=" $6 }' <<<"$models"
}

# best_width WORK: prints the width of the largest model that reads four tokens per parameter, or of the smallest model.
# WORK is the number of tokens that fit into the whole time, times the parameters of the model, as the probe measured
# them. This product is about the same for all models.
best_width() {
    awk -v work="$1" -v vocab="$(setting model.vocab 4096)" '{
        parameters = (vocab + $4) * $2 + 12 * $1 * $2 * $2
        if (NR == 1 || work / parameters >= 4 * parameters) width = $2
    } END { print width }' <<<"$models"
}

# probe STEPS KEYS...: trains a few steps in another directory. Sets step_s and per_step (seconds and tokens of a step),
# parameters, evals_s (seconds of an evaluation between steps) and eval_s (seconds of the one at the end).
probe() {
    local probe=$dir/probe steps=$1
    shift
    rm -rf "$probe"
    train "${keys[@]}" "$@" run.dir="$probe" train.steps="$steps" run.eval_start=false run.eval_interval="$steps" \
        2>"$dir/probe.log" || { cat "$dir/probe.log" >&2 && exit 1; }
    step_s=$(rows "$probe" | field step_ms | mean 2)
    step_s=$(calc %.6f "$step_s / 1000")
    per_step=$(rows "$probe" | field tokens | tail -n 1)
    per_step=$(calc %.3f "$per_step / $steps")
    parameters=$(grep -m 1 parameters "$probe/metrics.jsonl" | field parameters)
    evals_s=$(grep eval_loss "$probe/metrics.jsonl" | field seconds)
    eval_s=$(calc %.3f "$evals_s * $valid_tokens / $(grep eval_loss "$probe/metrics.jsonl" | field targets)")
    rm -rf "$probe" "$dir/probe.log"
}

# Prints the plan: steps, expected seconds, and the model's keys if the model is not that of the configuration.
measure() {
    local step_s per_step parameters evals_s eval_s least steps rest reserve evals=8 size=() width
    probe 8
    # The model is not chosen if the user gave its size, the batch or the learning rate.
    if ! printf '%s\n' ${overrides[@]+"${overrides[@]}"} | grep -qE '^(model\.(layers|hidden|heads|ffn)|train\..*_batch|optim\.lr)='; then
        width=$(best_width "$(calc %.0f "$parameters * $per_step / $step_s * (${seconds:-300} - $SECONDS)")")
        mapfile -t size < <(model_keys "$width")
        grep -q "hidden: *$width\b" "$config" || probe 8 "${size[@]}"
    fi
    # Eight steps take too little time for a plan of minutes, so a hundredth of the time is measured too. The reserve
    # keeps the end within the time if the machine becomes slower.
    steps=$(calc %d "0.01 * ${seconds:-300} / $step_s")
    [ "$steps" -le 16 ] || probe "$steps" ${size[@]+"${size[@]}"}
    reserve=$(calc %.3f "0.04 * ${seconds:-300}")
    least=20
    [ -n "$seconds" ] || least=$(calc %d "$million / $per_step + 1")
    # If evaluations would take a tenth of the time or more, there are only two of them.
    [ "$(calc %d "(8 * $evals_s >= 0.1 * (${seconds:-300} - $SECONDS))")" -eq 0 ] || evals=2
    # Time after the steps: validation, compressors, a completion.
    rest=$(calc %.3f "$eval_s + ($evals + 1) * $evals_s + 1.5 + 5 * $valid_tokens / $million")
    steps=$(calc %d "(${seconds:-300} - $SECONDS - $rest - $reserve) / $step_s")
    [ "$steps" -ge "$least" ] || steps=$least
    steps=$(setting train.steps "$steps")
    echo "steps=$steps"
    echo "tokens=$(calc %d "$steps * $per_step")"
    echo "rate=$(calc %d "$per_step / $step_s")"
    echo "estimate=$(calc %d "$SECONDS + $steps * $step_s + $rest")"
    echo "interval=$((steps / evals + 1))"
    echo "least=$least"
    echo "step_s=$step_s"
    echo "rest=$rest"
    echo "seconds=$seconds"
    printf 'key=%s\n' ${size[@]+"${size[@]}"}
}

if [ ! -e "$plan" ]; then
    say "[4/6] measuring the speed of this machine"
    measure >"$plan.part"
    mv "$plan.part" "$plan"
fi
planned() { sed -n "s/^$1=//p" "$plan"; }
if [ -n "$seconds" ] && [ "$seconds" != "$(planned seconds)" ]; then
    echo "(the interrupted run keeps its plan; with --again it starts again and takes $seconds s)"
fi
steps=$(planned steps)
echo "plan: $steps steps, $(thousands "$(planned tokens)") tokens at $(thousands "$(planned rate)") per second in" \
    "$precision; $(duration "$(planned estimate)") in all"
if [ -n "$(planned seconds)" ] && [ "$(planned estimate)" -gt "$(planned seconds)" ]; then
    echo "(longer than the $(planned seconds) s asked for: $steps steps and the validation take that long)"
elif [ -z "$(planned seconds)" ] && [ "$(planned estimate)" -gt 400 ]; then
    echo "(longer than five minutes, because it reads a million tokens; with --seconds N --again it takes N seconds)"
fi

# ---- 5: training ----------------------------------------------------------------------------------------

# replan STEP PACE: prints how many steps fit into the time if a step takes PACE seconds after step STEP; nothing if the plan
# is good enough. It may err by a share of the time that is left: there is time to see whether the machine stays so.
replan() {
    awk -v step="$1" -v pace="$2" -v steps="$steps" -v least="$(planned least)" -v rest="$(planned rest)" \
        -v step_s="$(planned step_s)" -v now=$((spent + SECONDS)) -v time="$time" 'BEGIN {
        if (pace > step_s) rest *= pace / step_s
        end = now + (steps - step) * pace + rest
        late = end - 0.96 * time
        if (late <= 0.03 * time + 0.1 * (time - now) && late >= -0.05 * time - 0.2 * (time - now)) exit
        fit = int(step + (0.96 * time - now - rest) / pace)
        last = int(step + (step > 1000 ? step / 50 : 20)) # the learning rate falls to zero in some steps
        if (fit < last) fit = last
        if (fit < least) fit = least
        if (late < 0 ? fit > steps : fit < steps) print fit }'
}

# Follows the clock while axonn trains. If the machine has become slower or faster, so that the steps will not end with the
# time, notes the seconds of a step and stops axonn, which saves.
watch() {
    local before=0 step pace period=$((time / 30 > 0 ? time / 30 : 1))
    pace=$(planned step_s)
    [ ! -e "$dir/metrics.jsonl" ] || before=$(rows "$dir" | wc -l)
    while sleep "$period"; do
        echo $((spent + SECONDS)) >"$clock"
        step=$({ rows "$dir" || :; } | wc -l)
        [ "$step" -gt "$before" ] || continue
        pace=$(calc %.9f "($pace + $(rows "$dir" | head -n "$step" | field step_ms | mean "$before") / 1000) / 2")
        before=$step
        [ -n "$(replan "$step" "$pace")" ] || continue
        echo "$pace" >"$clock.pace"
        kill "$(<"$dir/lock")"
        return
    done
}

say "[5/6] training"
mapfile -t size < <(planned key | sed '/^$/d')
time=$(planned seconds)
time=${time:-300} watcher=
trap '[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || :' EXIT
while true; do
    code=0
    rm -f "$clock.pace"
    if [ -z "$(setting train.steps "")" ]; then
        watch >/dev/null 2>&1 &
        watcher=$!
    fi
    train ${size[@]+"${size[@]}"} run.{eval,checkpoint}_interval="$(planned interval)" "${keys[@]}" \
        "train.steps=$steps" || code=$?
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || :
    watcher=
    [ $code -eq 7 ] && [ -s "$clock.pace" ] || break
    fit=$(replan "$(sed 's/step-//' "$dir/latest")" "$(<"$clock.pace")")
    [ -n "$fit" ] || continue
    echo "(the machine has become $([ "$fit" -lt "$steps" ] && echo slower || echo faster): $fit steps instead of" \
        "$steps, to end in time)"
    steps=$fit
    sed -i "s/^steps=.*/steps=$steps/" "$plan"
done
[ $code -ne 7 ] || fail "stopped; run the same command to continue"
[ $code -eq 0 ] || exit $code

# ---- 6: the results -------------------------------------------------------------------------------------

# Prints the share of the validation text for which there is time, by how slow the last steps were; 1 if the plan did not fit
# into the time anyway.
share() {
    awk -v pace="$(rows "$dir" | tail -n 20 | field step_ms | mean 0)" -v step_s="$(planned step_s)" -v rest="$(planned rest)" \
        -v now=$((spent + SECONDS)) -v time="$time" -v estimate="$(planned estimate)" 'BEGIN {
        slow = pace / 1000 / step_s
        rest *= slow > 1 ? slow : 1
        share = estimate > time || rest <= time - now ? 1 : (time - now) / rest
        print (share > 0.05 ? share : 0.05) }'
}

# shorten SHARE: makes part.tok of the first documents of the validation text, of this share of its tokens or a little more.
shorten() {
    local document=0 bytes=0 file goal
    goal=$(calc %d "$1 * $("$AXONN" data show "$valid" --json | field text_bytes)")
    rm -rf "$data/part" && mkdir "$data/part"
    while [ "$bytes" -le "$goal" ]; do
        file=$data/part/$(printf %05d $document)
        "$AXONN" data show "$valid" --document $document --tokenizer "$tokenizer" >"$file"
        bytes=$((bytes + $(wc -c <"$file"))) document=$((document + 1))
    done
    AXONN_LOG=error "$AXONN" data build --input "$data/part" --tokenizer "$tokenizer" --out "$data/part.tok" --json >/dev/null
    rm -r "$data/part"
}

valid=$data/valid.tok share=$(share)
if [ "$(calc %d "($share < 1)")" -eq 1 ]; then
    shorten "$share"
    valid=$data/part.tok
    valid_tokens=$("$AXONN" data show "$valid" --json | field tokens)
fi
say "[6/6] validation on $(thousands "$valid_tokens") tokens, compressors, a completion"
text() { "$AXONN" data show "$valid" --text --tokenizer "$tokenizer"; }
"$AXONN" eval "$dir" --data "$valid" --precision "$precision" --batch 8 --json >"$dir/eval.json"
"$AXONN" report "$dir" --out "$dir/loss.svg" >/dev/null
before=$(grep -m 1 eval_loss "$dir/metrics.jsonl")
start=$(field eval_loss <<<"$before") end=$(field loss <"$dir/eval.json") bytes=$(field bytes <"$dir/eval.json")
gzip=$(text | gzip -9 | wc -c)
xz=$(text | xz -9e | wc -c)
trained=$(rows "$dir" | tail -n 1)
context=$(sed -n 's/^ *seq_len: *\([0-9]*\).*/\1/p' "$dir/config.yaml")

summarize() {
    echo "Trained on $source"
    echo "  model            $(calc %.1f "$(grep -m 1 parameters "$dir/metrics.jsonl" | field parameters) / 1e6") M" \
        "parameters, $(field step <<<"$trained") steps, $(thousands "$(field tokens <<<"$trained")") tokens"
    echo "  validation loss  $(calc %.3f "$start") before training (over $(thousands "$(field targets <<<"$before")") tokens)," \
        "$(calc %.3f "$end") after it (over $(thousands "$(field targets <"$dir/eval.json")"))"
    echo "  bits per byte    $(calc %.3f "$(field bits_per_byte <"$dir/eval.json")") axonn," \
        "$(calc %.3f "8 * $gzip / $bytes") gzip -9, $(calc %.3f "8 * $xz / $bytes") xz -9e," \
        "on the same $(calc %.1f "$bytes / 1e6") MB"
    echo "                   (axonn predicts from the last $context tokens of the same file, about" \
        "$(calc %d "$context * $bytes / $valid_tokens") bytes;"
    echo "                   gzip copies what repeats from the last 32 KiB of all files, xz from all of them)"
    echo "  checkpoint       $dir/$(sed 's,^,ckpt/,' "$dir/latest")"
    echo "  loss curve       $dir/loss.svg"
    echo "  completion       $AXONN generate $dir ${prompt:+--prompt \"$prompt\" }--temperature 0.7 --top-p 0.95"
    echo
    "$AXONN" generate "$dir" ${prompt:+--prompt "$prompt"} --temperature 0.7 --top-p 0.95 --max-tokens 120 |
        sed 's/^/    /'
}

echo
summarize >"$summary.part"
mv "$summary.part" "$summary"
cat "$summary"
echo
echo "done in $(duration $SECONDS)"
