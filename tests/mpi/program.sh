# Sourced by the tests of the program, whose arguments are AXONN LAUNCHER [FLAG…]: works in a directory that goes with
# the test, and ends it with what was printed last.
set -uo pipefail
axonn=$1
shift
launch=("$@")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

die() {
  local file
  echo "$(basename "$0"): $*" >&2
  for file in step out log; do
    [[ -f $file ]] && cat "$file" >&2
  done
  exit 1
}

# A configuration whose steps take milliseconds, for benchmarks.
small_model() {
  cat >a.yaml <<'END'
model: {family: gpt2, layers: 2, hidden: 48, heads: 4, vocab: 300, seq_len: 32}
train: {global_batch: 8, micro_batch: 2}
threads: 1
END
}
