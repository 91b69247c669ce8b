#!/usr/bin/env python3
"""What attention of few keys costs a model: perplexity with full attention, with the exact top K, and with Loki in
the basis of keys before and after the rotary embedding, by the same command and weights; and rank@90 on one or more
corpora. With --torch PYTHON, bench/peers/few_keys.py then computes the same rows with transformers, and H2O, attention
in the D elements alone, and how far Loki's choices are the exact ones as well. Prints Markdown.

    python3 bench/loki.py MODEL --calibrate train.txt [other.txt ...] --data valid.txt [--keys 0.25] [--dims 0.25]
                          [--torch venv/bin/python]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile


PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "few_keys.py")


def run(command):
    """Runs a command, and returns the JSON of its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def axonn(args, *command):
    return run([args.axonn, *command, "--json", *args.flags])


def perplexity(args, *flags):
    return axonn(args, "eval", args.model, "--data", args.tokens_file, "--pack", "stream", "--cross-documents",
                 "--seq-len", str(args.seq_len), *flags)["perplexity"]


def print_peer(args, bases):
    ways = ["full", "exact", "h2o", "h2o fixed", "loki", "dims alone"]
    for rotary, basis in bases.items():
        found = run([args.torch, PEER, "--model", args.model, "--data", args.tokens_file, "--loki", basis, "--keys", args.keys,
                     "--dims", args.dims, "--seq", str(args.seq_len), "--ways", *ways])
        ways = ["exact", "loki", "dims alone"]  # the others are without the basis
        print(f"\n| PyTorch, keys {rotary} RoPE | perplexity | of exact top K |\n|---|---|---|")
        for way, value in found.items():
            if way != "jaccard":
                print(f"| {way} | {value:.4f} | {value / found['exact']:.4f} |")
        print(f"\nJaccard of Loki's and the exact choice: {found['jaccard']:.3f}", flush=True)


def calibrate(args, directory, corpus, rotary):
    out = os.path.join(directory, f"{rotary}.safetensors")
    found = axonn(args, "loki", "calibrate", args.model, "--data", corpus, "--out", out, "--rotary", rotary,
                  "--tokens", str(args.tokens))
    return out, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--calibrate", nargs="+", required=True, help="corpora; the first gives the basis")
    parser.add_argument("--data", required=True)
    parser.add_argument("--keys", default="0.25")
    parser.add_argument("--dims", default="0.25")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--torch", help="a Python with torch and transformers")
    parser.add_argument("--rotary", nargs="+", default=["after", "before"])
    parser.add_argument("--axonn", default="build/axonn")
    parser.add_argument("--flags", nargs="*", default=[], help="further flags, e.g. --precision=bf16")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        args.tokens_file = args.data
        if not args.data.endswith(".tok"):
            args.tokens_file = os.path.join(directory, "data.tok")
            run([args.axonn, "data", "build", "--input", args.data, "--tokenizer", args.model, "--out", args.tokens_file,
                 "--json"])
        print("| corpus | keys | rank@90, mean | of | by layer |\n|---|---|---|---|---|")
        bases = {}
        for corpus in args.calibrate:
            for rotary in args.rotary:
                out, found = calibrate(args, directory, corpus, rotary)
                if corpus == args.calibrate[0]:
                    bases[rotary] = out + ".kept"
                    os.rename(out, bases[rotary])
                layers = " ".join(f"{rank:.1f}" for rank in found["rank90"])
                print(f"| {corpus} | {rotary} RoPE | {found['mean']:.1f} | {found['head_dim']} | {layers} |", flush=True)
        print(f"\n| attention, K = {args.keys}, D = {args.dims} | perplexity | of exact top K |\n|---|---|---|")
        print(f"| full | {perplexity(args):.4f} | |", flush=True)
        exact = perplexity(args, "--keys", args.keys)
        print(f"| exact top K | {exact:.4f} | 1 |", flush=True)
        for per in ("head", "group"):
            for rotary, basis in bases.items():
                value = perplexity(args, "--loki", basis, "--keys", args.keys, "--dims", args.dims, "--per", per)
                print(f"| Loki, keys {rotary} RoPE, per {per} | {value:.4f} | {value / exact:.4f} |", flush=True)
        if args.torch:
            print_peer(args, bases)


if __name__ == "__main__":
    main()
