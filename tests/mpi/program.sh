# Sourced by tests of the program, whose arguments are AXONN LAUNCHER [FLAG…]. Changes to a temporary directory, which is
# removed at the end, and defines die, which prints the last output and ends the test.
set -uo pipefail
axonn=$1
shift
launch=("$@")
dir=$(mktemp -d)
# A child that a signal ends before it executes its program runs the trap too, and must leave the directory alone.
trap '[[ $BASHPID != $$ ]] || rm -rf "$dir"' EXIT
cd "$dir" || exit 1

die() {
  local file
  echo "$(basename "$0"): $*" >&2
  for file in step out log; do
    [[ -f $file ]] && cat "$file" >&2
  done
  exit 1
}

# Writes a configuration whose steps take milliseconds, for benchmarks.
small_model() {
  cat >a.yaml <<'END'
model: {family: gpt2, layers: 2, hidden: 48, heads: 4, vocab: 300, seq_len: 32}
train: {global_batch: 8, micro_batch: 2}
threads: 1
END
}
