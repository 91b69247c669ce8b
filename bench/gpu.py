#!/usr/bin/env python3
"""Times a training step on one GPU in several programs, interleaved in one run; all in bf16.

Parties: axonn, llm.c (GPT-2's shapes only; --llmc is a checkout, or a trainer that bench/peers/llmc.py --build made),
torch (with its fastest settings, or once with each --torch-with). They take turns for --rounds rounds; a party's figure
is the median over the rounds of each round's median. Prints markdown tables with these columns: ms per step (median,
minimum and maximum over the rounds), tokens/s, MFU relative to --peak with attention counted causally and in full, the
time relative to axonn's, peak memory as the driver reports it (including about 500 MiB of CUDA itself), memory that axonn
planned, rows of a micro-batch, and the median clock while busy. Progress goes to stderr.

If memory is too small, a party tries half the micro-batch. A party that fails is left out from then on; the others
continue, and the exit code is 1. If --seconds ends the measurement, only a party without any figure is an error.
The cases llama-* are GPT-2 models with the dims and the vocabulary of Llama 3; --layers applies to llama-8b.
Usage:  python3 bench/gpu.py --llmc DIR [--cudnn-frontend DIR] [--torch PYTHON] [--axonn build-bundle/axonn]
                             [--cases gpt2-1.5b,llama-1b] [--parties axonn,torch] [--rounds 3] [--seconds 540] [--json]
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
import threading
import time

from step import PEERS, ROOT, SHAPE, Failed, bench_step, chosen, last_json, run

CASES = {  # layers, hidden, heads, vocab, tokens of a row, rows; rows of a micro-batch
    "gpt2-1.5b": ((48, 1600, 25, 50257, 1024, 256), 16),
    "llama-1b": ((16, 2048, 16, 128256, 4096, 64), 4),
    "llama-8b": ((8, 4096, 32, 128256, 4096, 64), 2),
    "gpt2-124m": ((12, 768, 12, 50257, 1024, 256), 64),
    "tiny": ((2, 64, 2, 515, 32, 4), 2),  # only if named: to try out this script on an emulated GPU
}
DEFAULT = [case for case in CASES if case != "tiny"]
PARTIES = ["axonn", "llm.c", "torch"]
QUERY = ["nvidia-smi", "--id=0", "--query-gpu=memory.used,clocks.sm,utilization.gpu", "--format=csv,noheader,nounits"]
NO_MEMORY = re.compile("out of memory|not enough memory|are available here", re.IGNORECASE)


def shape_of(args, case):
    layers, *others = CASES[case][0]
    return (args.layers if case == "llama-8b" else layers, *others)


def flops_per_token(shape, causal=True):
    """Returns the FLOPs of the GEMMs, forward and backward. Attention counts causally or in full, lookups do not count."""
    layers, hidden, _heads, vocab, seq, _batch = shape
    return 6 * (12 * layers * hidden * hidden + vocab * hidden) + (6 if causal else 12) * layers * hidden * seq


# ---- the parties: each function runs a turn and returns {"ms": …}, and if known "planned" and "about" ----------


def limited(seconds):
    return [] if seconds is None else ["timeout", "--kill-after=10", f"{max(seconds, 0.1):.1f}"]


def axonn(args, shape, micro, _settings, before):
    row, _memory = bench_step(args, shape, "bf16", micro, ["device=cuda"], before, LD_LIBRARY_PATH=args.libraries)
    return {"ms": row["median"], "planned": row["mem_planned"]}


def peer(args, shape, micro, command):
    words = [word for name, value in zip(SHAPE, shape) for word in (f"--{name}", value)]
    return last_json(run([*command, "--device", "cuda", "--micro", micro, "--steps", args.steps, "--warmup",
                          args.warmup] + words)[0])


def torch(args, shape, micro, settings, before):
    words = ["--with", settings] if settings else ["--best"]
    row = peer(args, shape, micro, [*before, args.torch, PEERS / "torch_step.py", "--precision", "bf16"] + words)
    return {"ms": row["step_ms"], "about": f"torch {row['torch']}, {','.join(row['settings']['settings'])}"}


def llmc(args, shape, micro, source, before):
    source = pathlib.Path(source)
    words = ["--program", source]
    if source.is_dir():  # built once, in the first turn
        words = ["--source", source, "--program", args.work / source.resolve().relative_to("/")]
        if args.cudnn_frontend:
            words += ["--cudnn-frontend", args.cudnn_frontend]
    row = peer(args, shape, micro, [*before, sys.executable, PEERS / "llmc.py"] + words)
    return {"ms": row["step_ms"], "about": f"llm.c, {source.name}"}


RUN = {"axonn": axonn, "llm.c": llmc, "torch": torch}


def missing(args, party):
    """Returns a line of advice if the party is not available, else None."""
    name, _space, settings = party.partition(" ")
    if name == "axonn" and not shutil.which(args.axonn):
        return f"{args.axonn} is missing: scripts/bundle.sh makes build-bundle, --axonn names another one"
    if name == "torch" and not (shutil.which(args.torch) and subprocess.run(
            [args.torch, "-c", "import torch"], capture_output=True).returncode == 0):
        return f"{args.torch} has no torch: --torch names a Python that has; or leave torch out of --parties"
    if name == "llm.c" and not (settings and pathlib.Path(settings).exists()):
        return (f"{settings or '--llmc DIR, a checkout of llm.c,'} is missing: git clone --depth 1 "
                "https://github.com/karpathy/llm.c; or leave llm.c out of --parties")
    return None


# ---- watching the driver -------------------------------------------------------------------------------------


def ask_driver():
    """Returns (MiB used, MHz, utilization in percent), or None if nvidia-smi does not report them."""
    try:
        words = subprocess.run(QUERY, capture_output=True, text=True, timeout=20).stdout.split(", ")
        return tuple(int(word) for word in words) if len(words) == 3 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


class Watch:
    """Asks the driver every two seconds. Finds the peak memory, less the memory used before, and the clock while busy."""

    def __init__(self, before):
        self.before, self.seen, self.over = before, [], threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.over.wait(2):
            self.seen.append(ask_driver())

    def __enter__(self):
        if self.before:
            self.thread.start()
        return self

    def __exit__(self, *_error):
        self.over.set()
        if self.before:
            self.thread.join()

    def figures(self):
        seen = [s for s in self.seen if s]
        busy = [mhz for _mib, mhz, percent in seen if percent > 50]
        memory = {"memory": (max(s[0] for s in seen) - self.before[0]) * 2**20} if seen else {}
        return dict(memory, mhz=statistics.median(busy)) if busy else memory


def say(what):
    print(what, file=sys.stderr, flush=True)


# ---- turns ---------------------------------------------------------------------------------------------------


class Turns:
    """The figures of all parties, and their errors."""

    def __init__(self, args):
        self.args, self.start, self.idle = args, time.monotonic(), ask_driver()
        self.results = {case: {p: [] for p in args.parties if p.split(" ")[0] != "llm.c" or case.startswith("gpt2")}
                        for case in args.cases}
        self.micro = {(c, p): args.micro or CASES[c][1] for c in args.cases for p in args.parties}
        self.out = {}  # parties that failed: the last line of their error

    def fail(self, case, party, what):
        say(f"{case}, {party}: {what}")
        self.out[case, party] = f"{case}, {party}: {what.strip().splitlines()[-1]}"

    def left(self):
        """Returns the seconds that are left, or None without a limit."""
        return self.args.seconds and max(self.args.seconds - (time.monotonic() - self.start), 0)

    def take(self, case, party):
        """Runs one turn, halving the micro-batch while memory is too small; returns its figures."""
        name, _space, settings = party.partition(" ")
        while True:
            micro = self.micro[case, party]
            try:
                with Watch(self.idle) as watch:
                    row = RUN[name](self.args, shape_of(self.args, case), micro, settings, limited(self.left()))
                return dict(row, micro=micro, **watch.figures())
            except Failed as error:
                if micro % 2 or not NO_MEMORY.search(str(error)):
                    raise
                self.micro[case, party] //= 2
                say(f"{case}, {party}: too little memory for micro-batches of {micro}, {micro // 2} are tried")

    def turn(self, case, party, at):
        began = time.monotonic()
        try:
            row = self.take(case, party)
        except (Failed, Exception) as error:  # an error of one party must not lose the figures of the others
            if self.args.seconds and self.left() < 1:
                say(f"round {at}: {case} {party}: no time was left")
                if not self.results[case][party]:
                    self.fail(case, party, "stopped: raise --seconds, or lower --steps or --rounds")
                return
            return self.fail(case, party, str(error) or repr(error))
        self.results[case][party].append(row)
        say(f"round {at}: {case} {party} {row['ms']:.1f} ms, took {time.monotonic() - began:.0f} s")

    def all(self):
        for party in self.args.parties:
            advice = missing(self.args, party)
            for case in self.args.cases:
                if advice and party in self.results[case]:
                    self.fail(case, party, advice)
        for at in range(self.args.rounds):
            for case, parties in self.results.items():
                for party in parties:
                    if (case, party) not in self.out:
                        self.turn(case, party, at + 1)


def rows_of(args, case, results):
    shape = shape_of(args, case)
    tokens = shape[-1] * shape[-2]
    median = {party: statistics.median(r["ms"] for r in turns) for party, turns in results.items() if turns}
    for party, turns in results.items():
        if not turns:
            continue
        ms = [r["ms"] for r in turns]
        rate = tokens / median[party] * 1e3
        row = {"case": case, "layers": shape[0], "precision": "bf16", "party": party, "ms": median[party],
               "min": min(ms), "max": max(ms), "rounds": ms, "steps": args.steps, "tokens_per_s": rate,
               "mfu": rate * flops_per_token(shape) / args.peak / 1e12,
               "mfu_full": rate * flops_per_token(shape, causal=False) / args.peak / 1e12}
        if "axonn" in median:
            row["times_axonn"] = median[party] / median["axonn"]
        for key in ("memory", "planned", "mhz", "micro", "about"):
            values = [r[key] for r in turns if key in r]
            if values:
                row[key] = values[-1] if key in ("micro", "about") else max(values)
        yield row


def print_table(args, case, rows):
    layers, hidden, heads, vocab, seq, batch = shape_of(args, case)
    print(f"\n**{case}: {layers} x {hidden}, {heads} heads, vocabulary {vocab}, {batch} x {seq} tokens a step**\n"
          "\n| bf16 | ms a step | tokens/s | MFU | full attention | times axonn's | memory, MiB | planned | micro "
          "| MHz |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        memory, planned = (f"{r[key] / 2**20:.0f}" if key in r else "" for key in ("memory", "planned"))
        times, mhz = f"{r['times_axonn']:.2f}" if "times_axonn" in r else "", f"{r['mhz']:.0f}" if "mhz" in r else ""
        print(f"| {r.get('about', r['party'])} | {r['ms']:.1f} [{r['min']:.1f}, {r['max']:.1f}] "
              f"| {r['tokens_per_s']:.0f} | {100 * r['mfu']:.1f} % | {100 * r['mfu_full']:.1f} % | {times} "
              f"| {memory} | {planned} | {r['micro']} | {mhz} |", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--cases", default=",".join(DEFAULT), help="default: %(default)s")
    p.add_argument("--parties", default=",".join(PARTIES), help="default: all, %(default)s")
    p.add_argument("--axonn", default=str(ROOT / "build-bundle" / "axonn"), help="default %(default)s")
    p.add_argument("--libraries", metavar="PATHS", help="axonn's LD_LIBRARY_PATH; default: its own folder, what is "
                   "set, and CUDA's")
    p.add_argument("--torch", default="python3", metavar="PYTHON", help="an interpreter that has torch")
    p.add_argument("--torch-with", metavar="LIST", action="append", help="settings for torch in place of its best; "
                   "several: each takes part (torch_step.py --settings lists them)")
    p.add_argument("--llmc", metavar="PATH", action="append", help="a checkout of llm.c, or a built trainer; several: "
                   "each takes part")
    p.add_argument("--cudnn-frontend", metavar="DIR", help="a checkout of cudnn-frontend, to build llm.c with cuDNN")
    p.add_argument("--peak", type=float, default=989, help="TFLOP/s of the GPU's bf16 matmuls, default %(default)s")
    for name, default in [("rounds", 3), ("steps", 5), ("warmup", 2), ("layers", 8)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--micro", type=int, help="rows of a micro-batch, for all parties; default: the case's")
    p.add_argument("--seconds", type=int, help="time for all of it; default: no limit")
    p.add_argument("--json", action="store_true", help="one object per row instead of tables")
    args = p.parse_args()
    args.cases = chosen(args.cases, CASES, p, "--cases")
    parties = chosen(args.parties, PARTIES, p, "--parties")
    several = {"torch": args.torch_with, "llm.c": args.llmc}
    args.parties = [f"{party} {words}".strip() for party in parties for words in several.get(party) or [""]]
    args.libraries = args.libraries or ":".join(filter(None, [
        str(pathlib.Path(args.axonn).resolve().parent), os.environ.get("LD_LIBRARY_PATH"), "/usr/local/cuda/lib64"]))
    return args


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as directory:
        args.work = pathlib.Path(directory)
        turns = Turns(args)
        turns.all()
    for case, results in turns.results.items():
        rows = list(rows_of(args, case, results))
        if args.json:
            print("\n".join(map(json.dumps, rows)), flush=True)
        elif rows:
            print_table(args, case, rows)
    if turns.out:
        sys.exit("\nwhat failed:\n" + "\n".join(turns.out.values()))


if __name__ == "__main__":
    main()
