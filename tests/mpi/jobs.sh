# Sourced by tests of jobs of several ranks, whose arguments are AXONN LAUNCHER [FLAG…]: functions that run a job and check
# what it leaves, a text, its tokenizer, and the configuration a.yaml of a small model.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
source "$(dirname "$0")/program.sh"

# expect CODE PATTERN COMMAND…: the command must end with this exit code and print the pattern on standard error. There is
# exactly one error line if the code says error (not 0 or 7), else none.
expect() {
  local code=$1 pattern=$2 got errors
  shift 2
  timeout 60 "$@" >out 2>log
  got=$?
  [[ $got == "$code" ]] || die "exit code $got, not $code: $*"
  [[ -z $pattern ]] || grep -Eq -- "$pattern" log || die "\"$pattern\" is not in the log: $*"
  errors=$(grep -c '^axonn: error:' log)
  ((errors == (code != 0 && code != 7))) || die "$errors error lines: $*"
  none_left
}

# Prints the PIDs of this test's processes: those that run in its directory.
left() {
  local p
  for p in $(pgrep -x axonn); do
    [[ $(readlink "/proc/$p/cwd" 2>/dev/null) == "$dir"* ]] && echo "$p"
  done
}

# Prints the PID of a rank of the job whose supervisor is $1. PIDs wrap around, so their order says nothing.
rank_of() { left | grep -vx "$1" | tail -1; }

# Prints the PID of rank $1, which has its number from the launcher of Open MPI or of MPICH.
pid_of() {
  local p
  for p in $(left); do
    grep -Eqz "^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1$" "/proc/$p/environ" && echo "$p"
  done
}

none_left() {
  local i
  for ((i = 0; i < 100; i++)); do
    [[ -z $(left) ]] && return
    sleep 0.1
  done
  die "still running: $(left)"
}

losses() { grep -o '"loss": [0-9.]*' "$1/metrics.jsonl" | cut -c9-; }

same_losses() { # within 1e-5
  paste <(losses "$1") <(losses "$2") |
    awk '{d = $1 - $2; if (d < 0) d = -d; if (NF != 2 || d > 1e-5 * $1) bad = 1} END {exit bad || !NR}' ||
    die "the losses of $1 and $2 differ"
}

for ((i = 0; i < 1500; i++)); do echo "the $((i % 7)) of $((i * i % 11)) and $((i % 5))"; done >text
"$axonn" tok train --input text --vocab 280 --out tok >/dev/null 2>&1 || die "no tokenizer"
cat >a.yaml <<'END'
model: {family: gpt2, layers: 2, hidden: 32, heads: 4, vocab: 280, seq_len: 32}
data:  {train: text, tokenizer: tok}
train: {steps: 4, global_batch: 8, micro_batch: 2, precision: fp32}
run:   {dir: run, checkpoint_interval: 0, log_interval: 1000}
threads: 1
END
