#!/usr/bin/env python3
"""Tokens that are generated one by one, beside the rate at which this machine reads memory.

A token of batch 1 reads every weight once: time per token times the rate of reading, over the bytes of the weights, is
how much of that rate is used. Makes a GPT-2 124M with random weights, then for --rounds rounds measures reading
(bench/peers/read.c) and generation (axonn, bf16) by turns. A token's time is that of a long text less that of a
short one, over the tokens between. Prints a markdown table.
Usage:  python3 bench/generate.py [--rounds 5] [--threads 2] [--tokens 200]
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import time

import scaling
from scaling import run

ROOT = pathlib.Path(__file__).resolve().parent.parent
READ = ROOT / "bench" / "peers" / "read.c"
LAYERS, HIDDEN, VOCAB, POSITIONS = 12, 768, 50257, 1024
# What a token reads: the matrices and vectors of the blocks, the last norm, and the head, which is the embedding.
WEIGHTS = LAYERS * (12 * HIDDEN * HIDDEN + 13 * HIDDEN) + 2 * HIDDEN + VOCAB * HIDDEN
BYTES = 2 * WEIGHTS


def model(args, work):
    scaling.tokens(args.axonn, work)
    (work / "config.yaml").write_text(
        f"model: {{family: gpt2, layers: {LAYERS}, hidden: {HIDDEN}, heads: {HIDDEN // 64}, vocab: {VOCAB}, "
        f"seq_len: {POSITIONS}}}\ndata: {{train: t.tok}}\n"
        "train: {steps: 1, global_batch: 1, micro_batch: 1, precision: bf16}\n"
        f"run: {{dir: {work / 'run'}, checkpoint_interval: 1, eval_start: false}}\n")
    run([args.axonn, "train", work / "config.yaml"])
    return work / "run"


def seconds(args, directory, tokens):
    start = time.monotonic()
    run([args.axonn, "generate", directory, "--tokens", "1,2,3,4", "--max-tokens", tokens, "--temperature", "0",
         "--ignore-end", "--precision", "bf16", "--threads", args.threads])
    return time.monotonic() - start


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--read", default=str(ROOT / "build" / "read"))
    for name, default in [("rounds", 5), ("threads", 2), ("tokens", 200)]:
        p.add_argument(f"--{name}", type=scaling.positive, default=default, help=f"default {default}")
    args = p.parse_args()
    if not shutil.which(args.read):
        line = re.search(r"gcc .* -o build/read", READ.read_text()).group()
        sys.exit(f"{args.read} is missing: in {ROOT}, {line}")
    read, token = [], []
    with tempfile.TemporaryDirectory() as directory:
        source = model(args, pathlib.Path(directory))
        for at in range(args.rounds):
            read.append(json.loads(run([args.read, args.threads, BYTES >> 20]))["gb_per_s"])
            short, long = (seconds(args, source, n) for n in (8, 8 + args.tokens))
            token.append((long - short) / args.tokens * 1e3)
            print(f"round {at + 1}: read {read[-1]:.1f} GB/s, {token[-1]:.2f} ms a token", file=sys.stderr, flush=True)
    shares = [BYTES / ms / 1e6 / rate for ms, rate in zip(token, read)]
    print("| threads | reading, GB/s | ms a token | tokens/s | weights, GB/s | of reading |\n|---|---|---|---|---|---|")
    ms, rate = statistics.median(token), statistics.median(read)
    print(f"| {args.threads} | {rate:.1f} [{min(read):.1f}, {max(read):.1f}] | {ms:.2f} [{min(token):.2f}, "
          f"{max(token):.2f}] | {1e3 / ms:.0f} | {BYTES / ms / 1e6:.1f} | {statistics.median(shares):.2f} "
          f"[{min(shares):.2f}, {max(shares):.2f}] |")


if __name__ == "__main__":
    main()
