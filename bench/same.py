#!/usr/bin/env python3
"""Compares the results of two programs, bit by bit: for changes that should change none.

Each of --models trains on the C headers of this machine for --steps steps: in each of --precisions, on one rank and on
each of --grids. The models are a small GPT-2 (gpt2), a Llama whose heads share keys (llama), and a LoRA adapter of that
Llama (lora), which the program BEFORE trains first. Both programs must give the same
  - tokenizer and token file;
  - weights and optimizer state, in the files of the last checkpoint;
  - losses, gradient norms and evaluations, digit for digit, and bytes of communication by axes (axes without any count
    as absent);
  - plans of memory, as the program prints them.
Then AFTER resumes the checkpoint that BEFORE wrote in the middle of the run, and must end with the same bits. Dropout is
0. Prints a line for each comparison; the exit code is 1 if any differs.
Usage:  python3 bench/same.py BEFORE AFTER [--steps 50] [--models gpt2,llama,lora] [--precisions fp32,bf16]
                              [--grids "x=2,y=2,z=2 pipe=2,data=2"]
"""

import argparse
import itertools
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

CONFIG = """\
data: {train: train.tok, valid: valid.tok, tokenizer: tok}
train: {global_batch: 8, micro_batch: 2}
optim: {lr: 2.0e-3, warmup: 5}
"""
SHAPE = ["model.layers=3", "model.hidden=72", "model.heads=4", "model.vocab=640", "model.seq_len=33"]
MODELS = {
    "gpt2": ["model.family=gpt2", *SHAPE],
    "llama": ["model.family=llama", "model.kv_heads=2", *SHAPE],
    "lora": ["model.from=base", "model.seq_len=33", "tune.method=lora", "tune.rank=4"],
}
MEASURED = {"step_ms", "tokens_per_s", "flops_per_s", "hw_flops_per_s", "mfu", "mem_bytes", "comm_exposed_ms", "pipe_wait_ms",
            "seconds"}


class Side:
    """One of the programs, with a directory for its runs."""

    def __init__(self, program, directory):
        self.program, self.directory = pathlib.Path(program).resolve(), directory
        directory.mkdir()

    def call(self, *words):
        """Runs the program in its directory. Returns what it writes to stderr, its log."""
        done = subprocess.run([self.program, *map(str, words)], cwd=self.directory, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.program} {' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
        return done.stderr

    def make_data(self, headers):
        self.call("tok", "train", "--input", headers, "--include", "a*.h", "--vocab", 600, "--out", "tok")
        self.call("data", "build", "--input", headers, "--include", "a*.h", "--tokenizer", "tok", "--out", "train.tok",
                  "--valid", "valid.tok", "--valid-fraction", "0.1")
        (self.directory / "same.yaml").write_text(CONFIG)

    def train(self, run, model, steps, precision, grid, *words):
        ranks = math.prod(int(size.partition("=")[2]) for size in grid)
        launch = ["--ranks", ranks] if grid else []
        log = self.call("train", "same.yaml", f"run.dir={run}", f"train.steps={steps}", f"train.precision={precision}",
                        f"run.checkpoint_interval={steps // 2}", "run.keep_latest=0", *launch,
                        *MODELS[model], *(f"grid.{size}" for size in grid), *words)
        return [line for line in log.splitlines() if line.startswith("memory:")]

    def checkpoint(self, run, step):
        return self.directory / run / "ckpt" / f"step-{step}"

    def metrics(self, run, after=0):
        """Returns the rows of metrics.jsonl for steps above `after`, without what is measured."""
        rows = map(json.loads, (self.directory / run / "metrics.jsonl").read_text().splitlines())
        kept = [{key: value for key, value in row.items() if key not in MEASURED} for row in rows if row.get("step", 0) > after]
        for row in kept:
            row["comm_bytes"] = {axes: n for axes, n in row.get("comm_bytes", {}).items() if n}
        return kept


def report(what, same):
    print(f"{'same' if same else 'DIFFERENT'}: {what}", flush=True)
    return same


def same_files(one, other, pattern):
    """Whether the files that match `pattern` in directory `one` are those in `other`, byte for byte, and are some."""
    names = [sorted(path.relative_to(side) for path in side.glob(pattern)) for side in (one, other)]
    return bool(names[0]) and names[0] == names[1] and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names[0])


def resumes_alike(writer, reader, run, model, steps, precision, grid, case):
    """Whether `reader` ends as `writer` did, if it starts from the checkpoint that `writer` has in the middle."""
    reader.train(f"{run}-resumed", model, steps, precision, grid, f"train.resume={writer.checkpoint(run, steps // 2)}")
    what = f"{case}, {reader.directory.name} resumes the checkpoint of {writer.directory.name}"
    arrays = same_files(writer.checkpoint(run, steps), reader.checkpoint(f"{run}-resumed", steps), "**/*.safetensors")
    losses = writer.metrics(run, steps // 2) == reader.metrics(f"{run}-resumed")
    return all([report(f"{what}: arrays", arrays), report(f"{what}: metrics", losses)])


def compare(before, after, model, steps, precision, grid):
    case = f"{model}, {precision}, {','.join(grid) or 'one rank'}, {steps} steps"
    run = f"{model}-{precision}-{'-'.join(grid)}"
    plans = [side.train(run, model, steps, precision, grid) for side in (before, after)]
    parts = [report(f"{case}: plan of memory", plans[0] == plans[1]),
             report(f"{case}: metrics", before.metrics(run) == after.metrics(run))]
    for step in (steps // 2, steps):
        arrays = same_files(before.checkpoint(run, step), after.checkpoint(run, step), "**/*.safetensors")
        parts.append(report(f"{case}: weights and optimizer state at step {step}", arrays))
    parts.append(resumes_alike(before, after, run, model, steps, precision, grid, case))
    return all(parts)


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("before", help="axonn of one commit")
    p.add_argument("after", help="axonn of another commit")
    p.add_argument("--steps", type=int, default=50, help="default 50")
    p.add_argument("--models", default=",".join(MODELS), help="default %(default)s")
    p.add_argument("--precisions", default="fp32,bf16", help="default %(default)s")
    p.add_argument("--grids", default="x=2,y=2,z=2 pipe=2,data=2", help="grids, separated by blanks; default %(default)s")
    p.add_argument("--headers", default="/usr/include/linux", help="a directory of C headers; default %(default)s")
    p.add_argument("--keep", metavar="DIR", help="a new directory in which the runs stay")
    args = p.parse_args()
    scratch = pathlib.Path(args.keep or tempfile.mkdtemp(prefix="same-"))
    scratch.mkdir(exist_ok=True)
    before, after = Side(args.before, scratch / "before"), Side(args.after, scratch / "after")
    for side in (before, after):
        side.make_data(args.headers)
    parts = [report(what, same_files(before.directory, after.directory, pattern))
             for what, pattern in (("tokenizer", "tok/*"), ("token files", "*.tok"))]
    before.train("start", "llama", 2, "fp32", [])
    for side in (before, after):
        shutil.copytree(before.checkpoint("start", 2), side.directory / "base")
    grids = [[]] + [grid.split(",") for grid in args.grids.split()]
    for case in itertools.product(args.models.split(","), [args.steps], args.precisions.split(","), grids):
        parts.append(compare(before, after, *case))
    if not args.keep:
        shutil.rmtree(scratch)
    sys.exit(not all(parts))


if __name__ == "__main__":
    main()
