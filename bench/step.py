#!/usr/bin/env python3
"""Times a training step in several programs, interleaved in one run, and compares it with the machine's limit.

Parties:
  limit    the limit of this machine (bench/peers/limit.c)
  axonn    one rank
  before   --before PROGRAM, the program of another commit, on one rank. A line below the table has the median over the
           rounds of each round's ratio: the time of axonn divided by that of before
  ranks    axonn on two ranks that share the threads and the rows of a step (grid.data=2, ZeRO 1)
  tensor   axonn on two ranks that share the threads and each layer's weights (grid.x=2)
  torch    PyTorch with its fastest settings, or once with each --torch-with
  llm.c    its trainer (GPT-2 in fp32; cases other than 124m-4x256 only if --parties names it)
Cases are models, rows x tokens: GPT-2 124m has 12 layers of width 768, small 6 layers of 384; llama has 12 layers of width
768, 4 key heads, an MLP of width 2048 and a vocabulary of 32000 (party torch then runs the model of transformers). Parties
take turns for --rounds rounds; a party's figure is the median over the rounds of each round's median. Prints markdown
tables with these columns: ms per step (median, minimum and maximum over the rounds), tokens/s, the share of the limit, the
time relative to axonn's, and peak memory (not for two ranks, because each counts pages of the other). Progress goes to
stderr. --isa makes axonn's kernels, torch and the libraries of the limit use that instruction set. A round of all parties
takes about five minutes on two cores with the default cases.
Usage:  python3 bench/step.py --torch PYTHON --llmc DIR [--rounds 5] [--cases 124m-4x256,small-8x256]
                              [--precisions bf16,fp32] [--parties limit,axonn] [--before PROGRAM] [--threads 2]
                              [--isa avx2] [--json]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import scaling

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
CASES = {  # layers, hidden, heads, vocab, tokens of a row, rows; a Llama's key heads and width of the MLP
    "124m-4x64": (12, 768, 12, 50257, 64, 4),
    "124m-4x256": (12, 768, 12, 50257, 256, 4),
    "124m-1x1024": (12, 768, 12, 50257, 1024, 1),
    "small-8x256": (6, 384, 6, 4096, 256, 8),
    "small-1x4096": (6, 384, 6, 4096, 4096, 1),
    "llama-4x256": (12, 768, 12, 32000, 256, 4, 4, 2048),
    "llama-1x1024": (12, 768, 12, 32000, 1024, 1, 4, 2048),
}
DEFAULT = ["124m-4x64", "124m-4x256", "124m-1x1024", "small-8x256"]
# Environment variables that make axonn, oneDNN, libxsmm, PyTorch and MKL use this instruction set. PyTorch and MKL know
# only these.
ISAS = {
    name: {"AXONN_ISA": name, "ONEDNN_MAX_CPU_ISA": onednn, "LIBXSMM_TARGET": xsmm, "ATEN_CPU_CAPABILITY": aten,
           "MKL_ENABLE_INSTRUCTIONS": mkl}
    for name, onednn, xsmm, aten, mkl in [
        ("avx512_amx", "AVX512_CORE_AMX", "cpx", "avx512", "AVX512"),
        ("avx512_bf16", "AVX512_CORE_BF16", "cpx", "avx512", "AVX512"),
        ("avx512", "AVX512_CORE", "skx", "avx512", "AVX512"),
        ("avx2", "AVX2", "hsw", "avx2", "AVX2"),
        ("generic", "SSE41", "wsm", "default", "SSE4_2"),
    ]
}
PARTIES = ["limit", "axonn", "before", "ranks", "tensor", "torch", "llm.c"]
SHAPE = ["layers", "hidden", "heads", "vocab", "seq", "batch", "kv-heads", "ffn"]
ROWS = SHAPE.index("batch")


def is_llama(case):
    return len(CASES[case]) == len(SHAPE)


class Failed(SystemExit):
    """A program failed. Ends this script with its output, unless the caller catches it."""


def run(command, **environment):
    """Runs a command. Returns its output, and the peak memory of its process or of a process that it waited for."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err,
                                 env=dict(os.environ, **environment))
        _pid, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode:
            raise Failed(f"{' '.join(map(str, command))}\nexit code {child.returncode}\n{err.read()[-3000:]}")
        return out.read(), usage.ru_maxrss * 1024


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def limit(args, case, precision, _settings):
    layers, hidden, heads, vocab, seq, batch, *llama = CASES[case]
    if llama:
        kv_heads, ffn = llama
        llama = [hidden // heads * kv_heads, ffn]
    out, _memory = run([args.limit, precision, args.threads, layers, hidden, vocab, seq, batch, *llama],
                       OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="20000")
    return {"ms": last_json(out)["step_ms"]}


def bench_step(args, shape, precision, rows, words, before=(), **environment):
    """Runs axonn bench step for a shape of CASES. Returns its JSON object and its peak memory."""
    layers, hidden, heads, vocab, seq, batch, *llama = shape
    family = "llama, kv_heads: {}, ffn: {}".format(*llama) if llama else "gpt2"
    with tempfile.TemporaryDirectory() as directory:
        config = pathlib.Path(directory) / "step.yaml"
        config.write_text(
            f"model: {{family: {family}, layers: {layers}, hidden: {hidden}, heads: {heads}, vocab: {vocab}, "
            f"seq_len: {seq}}}\ndata: {{mask_documents: false}}\n"
            f"train: {{global_batch: {batch}, micro_batch: {rows}, precision: {precision}}}\n")
        out, memory = run([*before, args.axonn, "bench", "step", config, "--steps", args.steps, "--warm-up",
                           args.warmup, "--json", *words], **environment)
    return last_json(out), memory


def step_of(args, case, precision, rows, words):
    row, memory = bench_step(args, CASES[case], precision, rows, words)
    return {"ms": row["median"], "memory": memory, "planned": row["mem_planned"]}


def axonn(args, case, precision, _settings):
    return step_of(args, case, precision, CASES[case][ROWS], [f"threads={args.threads}"])


def before(args, case, precision, settings):
    return axonn(argparse.Namespace(**dict(vars(args), axonn=args.before)), case, precision, settings)


def two_ranks(args, case, precision, rows, grid):
    row = step_of(args, case, precision, rows, ["--ranks", "2", f"threads={args.threads // 2}"] + grid)
    return {"ms": row["ms"]}


def ranks(args, case, precision, _settings):
    return two_ranks(args, case, precision, CASES[case][ROWS] // 2, ["grid.data=2", "zero=1"])


def tensor(args, case, precision, _settings):
    return two_ranks(args, case, precision, CASES[case][ROWS], ["grid.x=2"])


def shape(args, case):
    words = [word for name, value in zip(SHAPE, CASES[case]) for word in (f"--{name}", value)]
    return words + ["--threads", args.threads, "--steps", args.steps, "--warmup", args.warmup]


def torch(args, case, precision, settings):
    words = ["--with", settings] if settings else ["--best"]
    row = last_json(run([args.torch, PEERS / "torch_step.py", "--precision", precision] + words
                        + shape(args, case))[0])
    return {"ms": row["step_ms"], "memory": row["rss_bytes"]}


def llmc(args, case, _precision, _settings):
    row = last_json(run([sys.executable, PEERS / "llmc.py", "--source", args.llmc] + shape(args, case))[0])
    return {"ms": row["step_ms"], "memory": row["rss_bytes"]}


RUN = {"limit": limit, "axonn": axonn, "before": before, "ranks": ranks, "tensor": tensor, "torch": torch, "llm.c": llmc}


def takes_part(args, party, case, precision):
    if party == "llm.c":
        return precision == "fp32" and not is_llama(case) and (case == "124m-4x256" or args.named)
    if party in ("ranks", "tensor") and args.threads % 2:
        return False
    return party != "ranks" or CASES[case][ROWS] % 2 == 0


def check(args):
    """Exits with a line of advice if a party is not available."""
    if {"axonn", "ranks", "tensor"} & set(args.parties) and not shutil.which(args.axonn):
        sys.exit(f"{args.axonn} is missing: cmake --preset release && cmake --build build -j")
    if "before" in args.parties and not shutil.which(args.before):
        sys.exit(f"{args.before} is missing: build the other commit, and give its program as --before")
    if "limit" in args.parties and not shutil.which(args.limit):
        line = re.search(r"gcc (.*\\\n)*.*", (PEERS / "limit.c").read_text()).group()
        sys.exit(f"{args.limit} is missing: apt install libdnnl-dev libxsmm-dev, then in {ROOT}\n"
                 + line.replace("\n *", "\n"))
    packages = ["torch"] + ["transformers"] * any(map(is_llama, args.cases))
    if "torch" in args.parties and (not shutil.which(args.torch) or subprocess.run(
            [args.torch, "-c", "import " + ", ".join(packages)], capture_output=True).returncode):
        sys.exit(f"{args.torch} cannot import {' and '.join(packages)}: python3 -m venv DIR && DIR/bin/pip install "
                 f"{' '.join(packages)}, then --torch DIR/bin/python; or leave torch out of --parties")
    if "llm.c" in args.parties and not (args.llmc and pathlib.Path(args.llmc, "train_gpt2.c").is_file()):
        sys.exit("--llmc DIR, a checkout of llm.c, is missing: git clone --depth 1 https://github.com/karpathy/llm.c; "
                 "or leave llm.c out of --parties")


def chosen(text, known, parser, option):
    words = text.split(",")
    for word in words:
        if word not in known:
            parser.error(f"{option}: no {word}; there are {', '.join(known)}")
    return words


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cases", default=",".join(DEFAULT),
                   help=f"of {', '.join(CASES)}; default: %(default)s")
    p.add_argument("--precisions", default="bf16,fp32")
    p.add_argument("--parties", help=f"default: all, {','.join(PARTIES)}")
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--before", metavar="PROGRAM", help="axonn of another commit, the party before")
    p.add_argument("--limit", default=str(ROOT / "build" / "limit"))
    p.add_argument("--torch", default="python3", metavar="PYTHON", help="an interpreter that has torch")
    p.add_argument("--torch-with", metavar="LIST", action="append", help="settings for torch in place of its best; "
                   "several: each takes part; a comma: none (torch_step.py --settings lists them)")
    p.add_argument("--llmc", metavar="DIR", help="a checkout of llm.c")
    for name, default in [("rounds", 5), ("steps", 5), ("threads", 2)]:
        p.add_argument(f"--{name}", type=scaling.positive, default=default, help=f"default {default}")
    p.add_argument("--warmup", type=int, default=3, help="default 3")
    p.add_argument("--isa", choices=ISAS, help="instruction set of all parties but llm.c, which takes no part then; "
                   "default: the best of each")
    p.add_argument("--json", action="store_true", help="one object per row instead of tables")
    args = p.parse_args()
    args.named = args.parties is not None
    args.cases = chosen(args.cases, CASES, p, "--cases")
    args.precisions = chosen(args.precisions, ["bf16", "fp32"], p, "--precisions")
    args.parties = chosen(args.parties or ",".join(PARTIES), PARTIES, p, "--parties")
    if args.before and "before" not in args.parties:
        args.parties.append("before")
    elif not args.before and "before" in args.parties:
        if args.named:
            p.error("--parties before: --before PROGRAM is missing")
        args.parties.remove("before")
    if args.isa and "llm.c" in args.parties:
        if args.named:
            p.error("--isa: llm.c is compiled for this machine's processor; leave it out of --parties")
        args.parties.remove("llm.c")
    os.environ.update(ISAS.get(args.isa, {}))
    check(args)
    if args.torch_with and "torch" in args.parties:
        at = args.parties.index("torch")
        args.parties[at:at + 1] = [f"torch {settings}" for settings in args.torch_with]
    return args


def rows_of(results, case, precision, isa):
    median = {party: statistics.median(r["ms"] for r in rounds) for party, rounds in results.items()}
    tokens = CASES[case][ROWS] * CASES[case][ROWS - 1]
    for party, rounds in results.items():
        ms = [r["ms"] for r in rounds]
        row = {"case": case, "precision": precision, "isa": isa, "party": party, "ms": median[party], "min": min(ms),
               "max": max(ms), "rounds": ms, "tokens_per_s": tokens / median[party] * 1e3}
        if "limit" in median:
            row["of_limit"] = median["limit"] / median[party]
        if "axonn" in median:
            row["times_axonn"] = median[party] / median["axonn"]
        if party == "before" and "axonn" in results:
            row["ratios"] = [a["ms"] / b["ms"] for a, b in zip(results["axonn"], rounds)]
        for key in ("memory", "planned"):
            if key in rounds[0]:
                row[key] = max(r[key] for r in rounds)
        yield row


def print_table(rows):
    isa = f", {rows[0]['isa']}" if rows[0]["isa"] else ""
    print(f"\n**{rows[0]['case']}, {rows[0]['precision']}{isa}**\n\n"
          "| | ms a step | tokens/s | of the limit | times axonn's | peak memory, MiB | planned |\n"
          "|---|---|---|---|---|---|---|")
    for r in rows:
        memory, planned = (f"{r[key] / 2**20:.0f}" if key in r else "" for key in ("memory", "planned"))
        of_limit, times = (f"{r[key]:.2f}" if key in r else "" for key in ("of_limit", "times_axonn"))
        print(f"| {r['party']} | {r['ms']:.1f} [{r['min']:.1f}, {r['max']:.1f}] | {r['tokens_per_s']:.0f} | {of_limit} "
              f"| {times} | {memory} | {planned} |", flush=True)
    for ratios in (r["ratios"] for r in rows if "ratios" in r):
        print(f"\naxonn / before: {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]", flush=True)


def main():
    args = arguments()
    pairs = [(case, precision) for case in args.cases for precision in args.precisions]
    results = {pair: {p: [] for p in args.parties if takes_part(args, p, *pair)} for pair in pairs}
    for pair in pairs:
        for party in set(args.parties) - set(results[pair]):
            print(f"{' '.join(pair)}: {party} takes no part", file=sys.stderr)
    for at in range(args.rounds):
        for pair in pairs:
            for party in results[pair]:
                name, _space, settings = party.partition(" ")
                results[pair][party].append(RUN[name](args, *pair, settings))
                print(f"round {at + 1}: {' '.join(pair)} {party} {results[pair][party][-1]['ms']:.1f} ms",
                      file=sys.stderr, flush=True)
    for pair in pairs:
        rows = list(rows_of(results[pair], *pair, args.isa))
        if args.json:
            print("\n".join(map(json.dumps, rows)))
        elif rows:
            print_table(rows)


if __name__ == "__main__":
    main()
