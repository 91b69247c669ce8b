#!/usr/bin/env bash
# axonn bench generate on one rank and on two: the figures of the model are right, rates and shares agree, nothing is
# written, and a prompt that does not fit ends all ranks. Also on device cuda if AXONN_PLUGINS provides one.
# Usage: bench_generate.sh AXONN LAUNCHER [FLAG…]
source "$(dirname "$0")/program.sh"

small_model
for ((i = 0; i < 400; i++)); do echo "line $i of some text"; done >text.txt
"$axonn" tok train --input text.txt --vocab 280 --out tok >out 2>log || die "no tokenizer"
"$axonn" train a.yaml data.train=text.txt data.tokenizer=tok train.steps=1 run.dir=run run.checkpoint_interval=1 \
  run.eval_start=false model.vocab=320 >out 2>log || die "no model"
files() { find . -type f | grep -v -e '/out$' -e '/log$' | sort; }
before=$(files)

number() { grep -o "\"$1\":[-0-9.e+]*" out | head -1 | cut -d: -f2; }
inner() { grep -o "\"$1\":{[^}]*}" out | grep -o "\"$2\":[-0-9.e+]*" | cut -d: -f2; }

# check BYTES GEMMS COMMAND…: BYTES is the size of the matrices that a token reads, with GEMMS GEMMs.
check() {
  local bytes=$1 gemms=$2
  shift 2
  "$@" bench generate run --prompt 4 --tokens 6 --rounds 3 --json "${more[@]}" >out 2>log || die "exit code $?: $* ${more[*]}"
  [[ $(wc -l <out) == 1 && $(number runs) == 18 && $(number prompt) == 4 && $(number rounds) == 3 ]] || die "another output: $*"
  awk -v got="$(number weights_bytes)" -v want="$bytes" -v ms="$(number median)" -v min="$(number min)" \
    -v max="$(number max)" -v rate="$(number weights_bytes_per_s)" -v per="$(number tokens_per_s)" \
    'function near(a, b) { return a > b * 0.999999 && a < b * 1.000001 }
     BEGIN { exit !(got == want && min > 0 && min <= ms && ms <= max && near(rate, got / ms * 1e3) && near(per, 1e3 / ms)) }' ||
    die "figures that do not fit: $* ${more[*]}"
  [[ $(inner gemm calls) == "$gemms" && $(inner attention calls) == 2 ]] || die "other kernels: $* ${more[*]}"
}

matrices=$((2 * 12 * 48 * 48 + 320 * 48)) # elements in two layers and in the head, which is tied to the embedding
more=()
check $((4 * matrices)) 9 "$axonn"
awk -v share="$(inner of_reading median)" -v read="$(inner read_bytes_per_s median)" \
  'BEGIN { exit !(share > 0 && read > 0) }' || die "no rate of reading"
more=(--precision bf16 --threads 2)
check $((2 * matrices)) 9 "$axonn"
more=(--device ref)
check $((4 * matrices)) 9 "$axonn"
grep -q '"read_bytes_per_s":null,"of_reading":null' out || die "a rate that nobody measured"
if [[ -n ${AXONN_PLUGINS:-} ]]; then # a device with its own clock: kernels are timed in a separate round
  more=(--device cuda)
  check $((4 * matrices)) 9 "$axonn"
  awk -v ms="$(inner gemm ms)" 'BEGIN { exit !(ms > 0) }' || die "GEMMs that take no time"
fi
more=(--threads 1) # two ranks: each has half of the matrices; a half of the biases of q, k and v is not a multiple of 64
                  # bytes, so q, k and v stay apart (decision 30)
check $((2 * matrices)) 13 "${launch[@]}" "$axonn"
"$axonn" bench generate run --prompt 4 --tokens 6 --rounds 1 >out 2>log || die "exit code $?"
for line in prompt token weights reading '  matmuls' '  attention' '  other kernels' '  the rest' '  mean' memory; do
  grep -q "^$line " out || die "no line \"$line\""
done
"$axonn" bench generate run --prompt 30 --tokens 3 >out 2>log
[[ $? == 2 && ! -s out ]] && grep -q -- "--prompt 30 and --tokens 3 need more than the model's 32 positions: --tokens 2 at most" log || die "too long"
"$axonn" bench generate run --prompt 30 --rounds 1 --json >out 2>log && [[ $(number tokens) == 2 ]] || die "not as many tokens as fit"
"${launch[@]}" "$axonn" bench generate run --prompt 33 --tokens 1 >out 2>log
[[ $? == 2 ]] || die "too long, on two ranks: exit code $?"
"$axonn" bench generate nothing >out 2>log
[[ $? == 4 && ! -s out ]] && grep -q nothing log || die "a model that is not there"
[[ $(files) == "$before" ]] || die "files were made: $(files)"
