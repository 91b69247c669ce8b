#!/usr/bin/env bash
# Runs each harness of tests/fuzz on its seeds and on RUNS mutants of them, and prints how many lines of the reader's files
# were executed. Builds the harnesses in build-coverage. If a harness stays far below the others, a first check rejects its
# inputs: the harness needs seeds that pass the check, or must correct its inputs.
#   scripts/fuzz-coverage.sh [RUNS]     default: 20000
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-20000}

# HARNESS PATTERN…: the files of src/ that read the harness's inputs
readers='
safetensors   ckpt/header.c ckpt/store.c ckpt/store_io.c ckpt/match.c
index         ckpt/shards.c
checkpoint    ckpt/manifest.c ckpt/find.c
model_config  model/family.c model/gpt2.c model/llama*.c model/mistral.c model/qwen*.c model/r*.c base/json.c
tokenizer     token/load.c token/files.c token/parts.c token/beside.c token/pattern.c token/translate.c token/normal.c token/tokenizer.c
encode        token/encode.c token/merge.c token/text.c
options       base/option_yaml.c base/option_value.c base/option_text.c config/config.c config/rules.c
tokens        data/format.c data/headerless.c data/source.c data/row.c data/check.c
corpus        data/corpus.c data/corpus_json.c data/corpus_read.c data/unpack.c base/json.c
metrics       trace/history.c trace/metrics.c
words         base/option_flags.c'

mapfile -t names < <(awk 'NF { print $1 }' <<<"$readers")
cmake -S . -B build-coverage -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug -DAXONN_MPI=off \
    -DAXONN_SANITIZE=address,undefined -DAXONN_TESTS=ON -DAXONN_FUZZ_COVERAGE=ON >/dev/null
cmake --build build-coverage -j "$(nproc)" --target "${names[@]/#/fuzz_}" >/dev/null

cd build-coverage
awk 'NF' <<<"$readers" | while read -r name files; do
    LLVM_PROFILE_FILE=$PWD/$name.profraw ASAN_OPTIONS=quarantine_size_mb=16 "tests/fuzz/fuzz_$name" -runs="$runs" -seed=1 \
        -max_len=65536 -len_control=0 -verbosity=0 >"$name.log" 2>&1 || {
        echo "fuzz-coverage: fuzz_$name failed: build-coverage/$name.log" >&2
        exit 1
    }
    llvm-profdata merge -o "$name.profdata" "$name.profraw"
    # Columns 8 to 10 of a report: lines, missed lines, cover.
    # shellcheck disable=SC2046,SC2086  # one word per file, and patterns
    llvm-cov report open/libaxonn.so -instr-profile="$name.profdata" $(printf '../src/%s ' $files) |
        awk -v name="$name" '/\.c / { printf "%-13s %-22s %4d of %4d lines, %s\n", name, $1, $8 - $9, $8, $10 }'
done
