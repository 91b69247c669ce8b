#!/usr/bin/env python3
"""Times steps that train low-rank adapters, interleaved in one run, on the same GPT-2 with random weights.

Parties:
  full   axonn, all weights
  lora   axonn, adapters of all matrices (tune.method: lora)
  qv     axonn, adapters of q and v alone
  peft   PEFT on PyTorch with its fastest settings, adapters of all matrices
Parties take turns for --rounds rounds; a figure is the median over the rounds of each round's median. Prints a markdown
table: ms a step (median, minimum and maximum over the rounds), the ratio to `full`, memory that axonn planned, and peak
memory. Progress goes to stderr.
Usage:  python3 bench/lora.py --torch PYTHON [--rounds 5] [--rank 16] [--rows 4] [--tokens 256] [--precision bf16]
                              [--layers 12 --hidden 768 --heads 12 --vocab 50257] [--threads 2] [--parties full,lora]
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import scaling
from step import PEERS, ROOT, last_json, run

PARTIES = {"full": ["tune.method=full"], "lora": ["tune.method=lora"],
           "qv": ["tune.method=lora", "tune.targets=[q,v]"], "peft": None}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--torch", default="python3", metavar="PYTHON", help="an interpreter that has torch and peft")
    p.add_argument("--parties", default=",".join(PARTIES))
    p.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    for name, default in [("rounds", 5), ("steps", 5), ("warmup", 3), ("threads", 2), ("rank", 16), ("rows", 4),
                          ("tokens", 256), ("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257)]:
        p.add_argument(f"--{name}", type=scaling.positive, default=default, help=f"default {default}")
    args = p.parse_args()
    args.parties = args.parties.split(",")
    for party in args.parties:
        if party not in PARTIES:
            p.error(f"--parties: no {party}; there are {', '.join(PARTIES)}")
    return args


def axonn(args, model, words):
    rank = [] if "tune.method=full" in words else [f"tune.rank={args.rank}", f"tune.alpha={2 * args.rank}"]
    config = pathlib.Path(model).parent / "step.yaml"
    config.write_text(f"model: {{from: {model}, seq_len: {args.tokens}}}\ndata: {{mask_documents: false}}\n"
                      f"train: {{global_batch: {args.rows}, micro_batch: {args.rows}, precision: {args.precision}}}\n")
    out, memory = run([args.axonn, "bench", "step", config, "--steps", args.steps, "--warm-up", args.warmup, "--json",
                       f"threads={args.threads}", *rank, *words])
    row = last_json(out)
    return {"ms": row["median"], "memory": memory, "planned": row["mem_planned"]}


def peft(args, model):
    row = last_json(run([args.torch, PEERS / "peft_step.py", "--model", model, "--precision", args.precision, "--batch",
                         args.rows, "--seq", args.tokens, "--rank", args.rank, "--threads", args.threads, "--steps",
                         args.steps, "--warmup", args.warmup, "--best"])[0])
    return {"ms": row["step_ms"], "memory": row["rss_bytes"]}


def main():
    args = arguments()
    results = {party: [] for party in args.parties}
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory) / "model"
        run([args.torch, PEERS / "peft_step.py", "--make", model, "--layers", args.layers, "--hidden", args.hidden,
             "--heads", args.heads, "--vocab", args.vocab, "--positions", args.tokens])
        for at in range(args.rounds):
            for party in args.parties:
                words = PARTIES[party]
                results[party].append(peft(args, model) if words is None else axonn(args, model, words))
                print(f"round {at + 1}: {party} {results[party][-1]['ms']:.1f} ms", file=sys.stderr, flush=True)
    median = {party: statistics.median(r["ms"] for r in rounds) for party, rounds in results.items()}
    print(f"**GPT-2 {args.layers} x {args.hidden}, {args.rows} x {args.tokens}, {args.precision}, rank {args.rank}**\n\n"
          "| | ms a step | of full tuning | planned, MiB | peak memory, MiB |\n|---|---|---|---|---|")
    for party, rounds in results.items():
        ms = [r["ms"] for r in rounds]
        planned = f"{rounds[0]['planned'] / 2**20:.0f}" if "planned" in rounds[0] else ""
        share = f"{median[party] / median['full']:.2f}" if "full" in median else ""
        print(f"| {party} | {median[party]:.1f} [{min(ms):.1f}, {max(ms):.1f}] | {share} | {planned} "
              f"| {max(r['memory'] for r in rounds) / 2**20:.0f} |")


if __name__ == "__main__":
    main()
