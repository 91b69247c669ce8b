#!/usr/bin/env python3
"""A peer to compare with: training steps of GPT-2 in llm.c's CPU trainer (train_gpt2.c, fp32, OpenMP).

--source is a checkout of github.com/karpathy/llm.c. A copy of it is built with its own Makefile (-Ofast
-march=native -fopenmp) after the sizes of a batch and the number of steps, which it has as constants, are set; it
reads weights and tokens from files, which are written here, at random. Prints one JSON object.
Usage:  python3 bench/peers/llmc.py --source llm.c --batch 4 --seq 256 --threads 2
"""

import argparse
import array
import json
import os
import pathlib
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

HEADER = 256  # int32 words before the contents of either file


def run(command, cwd, **environment):
    done = subprocess.run(command, cwd=cwd, env=dict(os.environ, **environment), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def build(args, work):
    if not (args.source / "train_gpt2.c").is_file():
        sys.exit(f"{args.source} is no checkout of llm.c: git clone --depth 1 https://github.com/karpathy/llm.c")
    shutil.copytree(args.source, work, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    text = (work / "train_gpt2.c").read_text()
    for old, new in [("int B = 4;", f"int B = {args.batch};"), ("int T = 64;", f"int T = {args.seq};"),
                     ("step <= 40;", f"step < {args.warmup + args.steps};"),
                     ("int val_num_batches = 5;", "int val_num_batches = 1;")]:
        if text.count(old) != 1:
            sys.exit(f"{args.source}/train_gpt2.c: expected '{old}' once: a version that this script does not know")
        text = text.replace(old, new)
    (work / "train_gpt2.c").write_text(text)
    run(["make", "train_gpt2", f"CC={args.cc}"], work)


def header(file, *words):
    array.array("i", words + (0,) * (HEADER - len(words))).tofile(file)


def write_weights(args, path):
    """In the order of its ParameterTensors, the vocabulary padded to a multiple of 128. Values repeat."""
    v, d, n = -(-args.vocab // 128) * 128, args.hidden, args.layers
    noise = array.array("f", [random.gauss(0, 0.02) for _ in range(100003)])
    noise *= 10

    def fill(file, count):
        for at in range(0, count, len(noise)):
            noise[:count - at].tofile(file)

    with open(path, "wb") as file:
        header(file, 20240326, 3, args.seq, args.vocab, n, args.heads, d, v)
        for count, value in [(v * d, None), (args.seq * d, None), (n * d, 1), (n * d, 0), (n * 3 * d * d, None),
                             (n * 3 * d, 0), (n * d * d, None), (n * d, 0), (n * d, 1), (n * d, 0),
                             (n * 4 * d * d, None), (n * 4 * d, 0), (n * d * 4 * d, None), (n * d, 0), (d, 1), (d, 0)]:
            if value is None:
                fill(file, count)
            else:
                array.array("f", [value] * count).tofile(file)


def write_tokens(args, path):
    count = (args.warmup + args.steps + 1) * args.batch * args.seq + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        header(file, 20240520, 1, count)
        array.array("H", random.choices(range(args.vocab), k=count)).tofile(file)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--source", type=pathlib.Path, required=True, help="a checkout of llm.c")
    p.add_argument("--cc", default="gcc", help="compiler, default gcc")
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("seq", 256),
                          ("batch", 4), ("steps", 5), ("warmup", 2), ("threads", 2)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    args = p.parse_args()
    if args.warmup + args.steps > 20:
        p.error("--steps and --warmup: at most 20 in all, as the trainer then generates text")
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        build(args, work)
        write_weights(args, work / "gpt2_124M.bin")
        for part in ["train", "val"]:
            write_tokens(args, work / f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin")
        out = run([work / "train_gpt2"], work, OMP_NUM_THREADS=str(args.threads))
    ms = [float(x) for x in re.findall(r"\(took ([0-9.]+) ms\)", out)][args.warmup:]
    if len(ms) != args.steps:
        sys.exit(f"expected {args.steps} timed steps, found {len(ms)} in\n{out}")
    print(json.dumps({
        "case": "llm.c.gpt2.fp32", "unit": "ms", "runs": args.steps, "median": statistics.median(ms), "min": min(ms),
        "max": max(ms), "step_ms": statistics.median(ms), "loss": float(re.findall(r"train loss ([0-9.]+)", out)[-1]),
        "rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
