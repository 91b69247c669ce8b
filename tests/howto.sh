#!/usr/bin/env bash
# Runs the commands of docs/howto.md as they stand there, in their order, in a directory that has what they take for
# granted: a corpus, a tokenizer, token files, models and runs. Sizes are made small by the table below. Commands that
# need what this machine lacks are skipped, with the reason.
# Usage: howto.sh AXONN BUILD_DIR
set -euo pipefail
export LC_ALL=C
source=$(cd "$(dirname "$0")/.." && pwd) page=$source/docs/howto.md
axonn=$(realpath "$1") build=$(realpath "$2")

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
die() {
  echo "howto: $*" >&2
  exit 1
}

fail() { # with what was printed last
  cat log >&2
  die "$@"
}

# ---- the page, with small sizes -----------------------------------------------------------------------------------

# WHAT STANDS THERE|WHAT IS RUN. A row that the page does not have is a mistake.
sizes=(
  'layers: 6, hidden: 384, heads: 6, vocab: 8192, seq_len: 256|layers: 2, hidden: 32, heads: 2, vocab: 400, seq_len: 64'
  'layers: 6, hidden: 384, heads: 6, kv_heads: 2, vocab: 8192, seq_len: 256|layers: 2, hidden: 32, heads: 4, kv_heads: 2, vocab: 400, seq_len: 160'
  'steps: 2000, global_batch: 32, micro_batch: 8|steps: 4, global_batch: 8, micro_batch: 4'
  'train.steps=2400|train.steps=6'
  'epochs: 3|epochs: 1'
  'step-2000|step-4'
  '--vocab 32000|--vocab 400'
  '--valid-fraction 0.01|--valid-fraction 0.1'
  '--max-tokens 64|--max-tokens 8'
  '--prompt 900 --tokens 32 --rounds 3|--prompt 9 --tokens 4 --rounds 1'
  'bench generate runs/gpt|bench generate runs/gpt --tokens 4 --rounds 1'
  '--runs 25|--runs 1'
  'bench comm --ranks 4|bench comm --ranks 4 --max 4096 --runs 1'
  'bench comm --ranks 2|bench comm --ranks 2 --max 4096 --runs 1'
  '--min 1048576|--min 2048'
  'bench pipe --ranks 4 --seeds 1|bench pipe --ranks 4 --seeds 1 --forward 1 --backward 2 --micro-batches 4'
)
text=$(<"$page")
for row in "${sizes[@]}"; do
  [[ $text == *"${row%%|*}"* ]] || die "$page has no \"${row%%|*}\""
  text=${text//"${row%%|*}"/"${row#*|}"}
done

# Blocks as files: 01.yaml, 02.sh, …
mkdir blocks
awk '/^```/ { if (open) { open = 0; close(file) } else if (match($0, /^```(sh|yaml)$/)) {
                open = 1; file = sprintf("blocks/%02d.%s", ++n, substr($0, 4)); printf "" > file } next }
     open { print > file }' <<<"$text"

# ---- what the page takes for granted ------------------------------------------------------------------------------

mkdir -p bin home tmp corpus path/to
ln -s "$axonn" bin/axonn
ln -s "$build" build
ln -s "$source/examples" examples
export PATH=$dir/bin:$PATH HOME=$dir/home TMPDIR=$dir/tmp # of launchers
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
cat "$page" "$source"/examples/*.c | split -l 12 -a 3 --additional-suffix=.txt - corpus/
for ((i = 0; i < 200; i++)); do echo "{\"text\": \"line $i of a text that is fine-tuned on\"}"; done >mine.jsonl
for ((i = 0; i < 200; i++)); do echo "{\"question\": \"say $i\", \"answer\": \"$i it is\"}"; done >chats.jsonl
gzip -c mine.jsonl >dump.jsonl.gz
for file in blocks/*.yaml; do
  name=$(sed -n '1s/^# \([a-z]*\.yaml\).*/\1/p' "$file")
  [[ -z $name ]] || cp "$file" "$name"
done
make_all() {
  axonn tok train --input corpus/ --vocab 400 --out tok &&
    axonn data build --input corpus/ --tokenizer tok --out train.tok --valid valid.tok --valid-fraction 0.1 &&
    axonn train gpt.yaml run.dir=runs/a && axonn train gpt.yaml run.dir=runs/b train.seed=2 &&
    cp -r runs/a/ckpt/step-4 path/to/gpt2 && rm -r path/to/gpt2/training &&
    axonn train llama.yaml run.dir=runs/l && cp -r runs/l/ckpt/step-4 path/to/llama && rm -r path/to/llama/training
}
make_all >log 2>&1 </dev/null || fail "what the page takes for granted cannot be made"

# ---- running ------------------------------------------------------------------------------------------------------

absent() { axonn info 2>/dev/null | grep "^ *$1  *absent" >/dev/null; }

skip_reason() { # COMMAND
  case $1 in
  *python*) echo "tests use no Python" ;;
  *cuda*) ! absent cuda || echo "there is no GPU" ;;
  *--hosts*) echo "there are no other hosts" ;;
  *mpirun* | *--ranks*) ! absent mpi || echo "axonn was built without MPI" ;;
  *jq*) [[ -n $(type -P jq) ]] || echo "jq is not installed" ;;
  esac
}

run=0 skipped=0
run_block() { # FILE: each command of it, in one shell
  local line command='' reason
  {
    echo 'set -euo pipefail'
    while IFS= read -r line; do
      command+=$line
      if [[ $line == *\\ ]]; then
        command+=$'\n'
        continue
      fi
      reason=$(skip_reason "$command")
      if [[ -n $reason ]]; then
        echo "skipped: $command: $reason" >&3
        skipped=$((skipped + 1))
      elif [[ -n $command ]]; then
        printf 'echo %q\n%s\n' "+ $command" "$command"
        run=$((run + 1))
      fi
      command=''
    done <"$1"
  } 3>&1 >script
  timeout 300 bash script >log 2>&1 </dev/null || fail "the last command above failed, of ${1#blocks/}"
}

for file in blocks/*.sh; do
  run_block "$file"
done

# Configurations that no command names: keys that exist, with values that may be.
axonn train tune.yaml >log 2>&1 || fail "tune.yaml cannot be trained"
for file in blocks/*.yaml; do
  axonn train "$file" >log 2>&1 || true
  ! grep -E 'unknown key|: must ' log || die "$file is no part of a configuration"
done
echo "$run commands ran, $skipped were skipped"
((run > 30)) || die "so few commands: has the page another form?"
