#!/usr/bin/env python3
"""Training across emulated hosts (scripts/hosts.sh; root): what a grid costs, and what overlap hides.

  grids    every grid of 4 hosts x 2 ranks that the model allows: seconds per step, best first, beside 1-D tensor
           parallelism in a host with data parallelism across
  overlap  two hosts of one rank: exposed communication with each overlap on and off

Rounds are interleaved; figures are medians. Usage:  python3 bench/hosts.py grids [--rounds 5] [--rate 1gbit]
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = ROOT / "scripts" / "hosts.sh"
MODELS = {  # name: (model, train keys)
    "wide": ("{family: gpt2, layers: 4, hidden: 512, heads: 8, vocab: 2048, seq_len: 128}",
             ["train.global_batch=16"]),
    "deep": ("{family: gpt2, layers: 12, hidden: 256, heads: 8, vocab: 2048, seq_len: 256}",
             ["train.global_batch=32"]),
}
OFF = ["overlap.oar=false", "overlap.ors=false", "overlap.oag=false"]
OVERLAPS = {  # name: grid
    "oar": ["grid.x=2"],
    "ors": ["grid.z=2"],
    "oag": ["grid.z=2"],
}


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def prepare(args, work):
    run([args.axonn, "tok", "train", "--input", ROOT / "src", "--vocab", "2048", "--out", work / "tok"])
    run([args.axonn, "data", "build", "--input", ROOT / "src", "--tokenizer", work / "tok", "--out", work / "t.tok"])
    for name, (model, _keys) in MODELS.items():
        (work / f"{name}.yaml").write_text(
            f"model: {model}\ndata: {{train: t.tok, tokenizer: tok, order: sequential}}\n"
            f"train: {{precision: {args.precision}, resume: none}}\n"
            "run: {checkpoint_interval: 0, eval_start: false}\nthreads: 1\n")


def train(args, work, model, per_host, words):
    """The metrics of the steps after two for warming up."""
    directory = work / "run"
    run(["rm", "-rf", directory])
    run([HOSTS, "run", per_host, args.axonn, "train", work / f"{model}.yaml", f"run.dir={directory}",
         f"train.steps={args.steps + 2}", *MODELS[model][1], *words])
    rows = [json.loads(line) for line in open(directory / "metrics.jsonl")]
    return [r for r in rows if r.get("step", 0) > 2 and "step_ms" in r]


def median_of(rows, key):
    return statistics.median(r[key] for r in rows)


def grids(args, work):
    ranks, heads = 8, 8
    every = [g for g in itertools.product([1, 2, 4, 8], repeat=4) if g[0] * g[1] * g[2] * g[3] == ranks]
    for model, (_text, keys) in MODELS.items():
        batch = int(keys[0].split("=")[1])
        times = {g: [] for g in every if g[0] <= heads}
        for _ in range(args.rounds):
            for g in times:
                x, y, z, data = g
                words = [f"grid.x={x}", f"grid.y={y}", f"grid.z={z}", f"grid.data={data}",
                         f"train.micro_batch={batch // (z * data)}"]
                times[g].append(median_of(train(args, work, model, 2, words), "step_ms") / 1e3)
        base = (2, 1, 1, 4)
        order = sorted(times, key=lambda g: statistics.median(times[g]))
        for g in order:
            t = times[g]
            yield {"case": f"{model} x={g[0]} y={g[1]} z={g[2]} data={g[3]}", "median": statistics.median(t),
                   "min": min(t), "max": max(t), "unit": "s/step", "runs": len(t),
                   "of best": statistics.median(t) / statistics.median(times[order[0]]),
                   "of x=2 data=4": statistics.median(t) / statistics.median(times[base])}


def overlap(args, work):
    for model, (_text, keys) in MODELS.items():
        batch = int(keys[0].split("=")[1])
        for name, grid in OVERLAPS.items():
            micro = batch // 2 if "grid.z=2" in grid else batch
            seen = {True: [], False: []}
            for _ in range(args.rounds):
                for on in (True, False):
                    switch = [w.replace("false", "true") if on and name in w else w for w in OFF]
                    rows = train(args, work, model, 1, grid + switch + [f"train.micro_batch={micro}"])
                    seen[on].append((median_of(rows, "step_ms"), median_of(rows, "comm_exposed_ms")))
            step, exposed = ({on: statistics.median(v[i] for v in seen[on]) for on in seen} for i in (0, 1))
            yield {"case": f"{model} {name}", "unit": "ms", "runs": args.rounds, "step off": step[False],
                   "step on": step[True], "exposed off": exposed[False], "exposed on": exposed[True],
                   "communication share": exposed[False] / step[False]}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=["grids", "overlap"])
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--rate", default="1gbit", help="of each host's link (default 1gbit)")
    p.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    args = p.parse_args()
    args.axonn = os.path.abspath(args.axonn)
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        prepare(args, work)
        run([HOSTS, "up", 4 if args.what == "grids" else 2, args.rate])
        try:
            for row in grids(args, work) if args.what == "grids" else overlap(args, work):
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        finally:
            run([HOSTS, "down"])


if __name__ == "__main__":
    main()
