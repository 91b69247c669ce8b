#!/usr/bin/env python3
"""Scaling on one machine: two ranks of one thread compared with one rank of two threads, same model, same global batch.

Rounds are interleaved, so that a machine whose speed drifts affects all cases; ratios are those of medians over rounds.
With --torch PYTHON (an interpreter that has torch) PyTorch runs the same pair: one process, and DDP over gloo.
Usage:  python3 bench/scaling.py --axonn build/axonn [--rounds 5] [--steps 5] [--torch python3] [--json]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = "{family: gpt2, layers: 12, hidden: 768, heads: 12, vocab: 50257, seq_len: 256}"
CASES = {  # name: (command line of axonn, what its time is compared with)
    "1 rank x 2 threads": (["threads=2"], None),
    "2 ranks, data=2 zero=1": (["--ranks", "2", "threads=1", "grid.data=2", "zero=1", "train.micro_batch=2"],
                               "1 rank x 2 threads"),
    "2 ranks, x=2": (["--ranks", "2", "threads=1", "grid.x=2"], "1 rank x 2 threads"),
}
TORCH = {
    "torch, 1 process x 2 threads": (["--threads", "2"], None),
    "torch, DDP 2 processes": (["--threads", "1", "--ranks", "2"], "torch, 1 process x 2 threads"),
}


def positive(text):
    """Parses a command-line number that must be at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr}")
    return done.stdout


def tokens(axonn, work):
    """Makes a tokenizer, work/tok, and a token file, work/t.tok, from this project's source."""
    run([axonn, "tok", "train", "--input", ROOT / "src", "--vocab", "2048", "--out", work / "tok"])
    run([axonn, "data", "build", "--input", ROOT / "src", "--tokenizer", work / "tok", "--out", work / "t.tok"])


def prepare(axonn, work):
    tokens(axonn, work)
    (work / "config.yaml").write_text(
        f"model: {MODEL}\ndata: {{train: t.tok, tokenizer: tok, order: sequential}}\n"
        "train: {global_batch: 4, micro_batch: 4, precision: bf16, resume: none}\n"
        "run: {checkpoint_interval: 0, eval_start: false}\n")


def axonn_step(args, work, words):
    """Returns the median seconds of a step, after two warm-up steps."""
    directory = work / "run"
    run(["rm", "-rf", directory])
    run([args.axonn, "train", work / "config.yaml", f"run.dir={directory}", f"train.steps={args.steps + 2}"] + words)
    rows = [json.loads(line) for line in open(directory / "metrics.jsonl")]
    times = [r["step_ms"] for r in rows if r.get("step", 0) > 2 and "step_ms" in r]
    return statistics.median(times) / 1e3


def torch_step(args, words):
    script = ROOT / "bench" / "peers" / "torch_step.py"
    out = run([args.torch, script, "--precision", "bf16", "--steps", str(args.steps)] + words)
    return json.loads(out)["step_ms"] / 1e3


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--torch", help="a Python interpreter with torch")
    p.add_argument("--rounds", type=positive, default=5)
    p.add_argument("--steps", type=positive, default=5)
    p.add_argument("--json", action="store_true", help="one object per case")
    args = p.parse_args()
    args.axonn = os.path.abspath(args.axonn)
    cases = dict(CASES, **(TORCH if args.torch else {}))
    times = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        prepare(args.axonn, work)
        for _ in range(args.rounds):
            for name, (words, _base) in cases.items():
                times[name].append(torch_step(args, words) if name in TORCH else axonn_step(args, work, words))
    for name, (_words, base) in cases.items():
        t = times[name]
        row = {"case": name, "median": statistics.median(t), "min": min(t), "max": max(t), "unit": "s/step",
               "runs": len(t)}
        if base:
            row["speed against"], row["ratio"] = base, statistics.median(times[base]) / row["median"]
        if args.json:
            print(json.dumps(row))
        else:
            print(f"{name:30s} {row['median']:7.3f} s/step ({row['min']:.3f} ... {row['max']:.3f})"
                  + (f"   {row['ratio']:.2f} of {base}" if base else ""))


if __name__ == "__main__":
    main()
