#!/usr/bin/env bash
# axonn bench gemm on one rank and on two: the number of its GEMMs and their FLOPs are those of axonn bench step; each
# GEMM is listed once, sorted by time; nothing is written; a wrong configuration ends all ranks.
# Usage: bench_gemm.sh AXONN LAUNCHER [FLAG…]     with AXONN_TEST_ALL more configurations: each run fills buffers of twice the
# last-level cache for each GEMM
source "$(dirname "$0")/program.sh"

small_model

# Prints the values of a key, one per line of output.
numbers() { grep -o "\"$1\":[-0-9.e+]*" out | cut -d: -f2; }
names() { grep -o '"case":"[^"]*"' out; }

# check ROWS COMMAND KEY=VALUE…: COMMAND is the program, with a launcher or without.
check() {
  local rows=$1 command=$2
  shift 2
  $command bench step a.yaml --steps 1 --warm-up 0 --json "$@" >step 2>log || die "step: exit code $?: $*"
  $command bench gemm a.yaml --runs 1 --json "$@" >out 2>log || die "exit code $?: $*"
  [[ $(wc -l <out) == $((rows + 1)) && $(names | sort -u | wc -l) == $((rows + 1)) ]] || die "not $rows rows: $*"
  paste <(numbers calls) <(numbers flops) <(numbers median) <(numbers share) |
    awk -v step="$(grep -oE '"gemm(_grouped)?":\{[^}]*\}' step | tr '\n' ' ')" '
      { line[NR] = $0 }
      END {
        while (match(step, /"calls":[0-9]+,"flops":[0-9.e+]+/)) {
          split(substr(step, RSTART, RLENGTH), f, "[:,]"); calls += f[2]; want += f[4]
          step = substr(step, RSTART + RLENGTH)
        }
        for (i = 1; i < NR; i++) {
          split(line[i], f, "\t"); n += f[1]; flops += f[1] * f[2]; ms += f[1] * f[3]; share += f[4]
          if (i > 1 && f[4] > before) exit 1
          before = f[4]
        }
        split(line[NR], f, "\t")
        exit !(n == calls && f[1] == n && flops == want && f[2] == want && share > 0.999999 &&
               share < 1.000001 && ms > f[3] * 0.999999 && ms < f[3] * 1.000001)
      }' || die "not the GEMMs of the step: $*"
}

# GEMMs of the forward pass, of activation gradients, and of weight gradients, which the first micro-batch sets and the
# others add to.
check 20 "$axonn" train.precision=fp32 train.recompute=full
check 20 "${launch[*]} $axonn" grid.x=2
if [[ -n ${AXONN_TEST_ALL:-} ]]; then
  check 20 "$axonn"
  check 20 "${launch[*]} $axonn" grid.data=2 zero=1
fi
check 18 "$axonn" model.family=mixtral model.experts=4 model.top_k=2 train.micro_batch=8
grep -q '"groups":4' out || die "no grouped GEMM"
# As a table. A key of the configuration overrides the environment variable; a key on the command line overrides that of the
# file.
cat a.yaml - >b.yaml <<<'runtime: {isa: generic}'
AXONN_ISA=mmx AXONN_LOG=loud "$axonn" bench gemm b.yaml runtime.log=debug --runs 1 >out 2>log || die "exit code $?"
[[ $(grep -cE '^(NN|NT|TN) [0-9]+x[0-9]+x[0-9]+ bf16' out) == 20 ]] || die "another table"
grep -qE '^all GEMMs of a step .* 100.0 %$' out || die "no total"
grep -q 'AXONN_LOG' log && die "a variable that is not used is refused"
grep -q 'debug: version' log || die "runtime.log comes too late"
grep -q 'debug: cpu: kernels for generic' log || die "the key of the file does not count"
"$axonn" bench gemm b.yaml runtime.isa=mmx >out 2>log
[[ $? == 2 ]] && grep -q 'runtime.isa: must be auto, .* not "mmx"' log || die "a wrong key: exit code $?"
rm b.yaml
"$axonn" bench gemm a.yaml --runs 1 model.seq_len=4 device=ref train.precision=fp32 --json >out 2>log || die "exit code $?"
grep -q '"of_peak":null' out || die "a ratio to what is not known"
"$axonn" bench gemm a.yaml model.heads=5 >out 2>log
[[ $? == 2 ]] && grep -q 'model.heads' log || die "a wrong key: exit code $?"
AXONN_ISA=mmx "$axonn" bench gemm a.yaml >out 2>log
[[ $? == 2 && ! -s out ]] && grep -q 'AXONN_ISA' log || die "a wrong instruction set"
[[ $(ls) == $'a.yaml\nlog\nout\nstep' ]] || die "files were made: $(ls)"
