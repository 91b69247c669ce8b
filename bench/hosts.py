#!/usr/bin/env python3
"""Times training across emulated hosts (scripts/hosts.sh; needs root): the cost of each grid, and the effect of overlap.

  grids    every grid of 4 hosts x 2 ranks that is legal for the model: seconds per step, fastest first, compared with
           tensor parallelism inside hosts (x=2) and data parallelism across them (data=4)
  overlap  two hosts of one rank: for each of OAR, ORS and OAG the time of its collectives without overlap, the CPU time
           of the kernels that run at the same time with overlap, and how much of the communication is hidden
  recompute
           two hosts of two ranks, x=2 inside them and y=2 between them: without recomputation, with recomputation that
           communicates again, and with one that keeps the results (train.recompute_comm): ms and bytes of a step, and the
           memory of a rank
  experts  two hosts of two ranks, x=2 inside them and experts divided between them (grid.expert=2), capacity 1.25: with and
           without duplicate token dropping (overlap.dtd) and kept results (train.recompute_comm): ms of a step, ms in which
           a rank waits for the all-to-all, and their share of the step
  capacity the same grid: dropless experts, for which tokens are gathered, beside capacity 1.25; 2 and 8 of 16 experts are
           chosen, by tokens that spread over the experts, and by tokens that all choose the same ones

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
MODELS = {  # name: (model, rows of a step)
    "wide": ("{family: gpt2, layers: 4, hidden: 512, heads: 8, vocab: 2048, seq_len: 128}", 16),
    "deep": ("{family: gpt2, layers: 12, hidden: 256, heads: 8, vocab: 2048, seq_len: 256}", 32),
}
OFF = ["overlap.oar=false", "overlap.ors=false", "overlap.oag=false"]
# name: (grid, the collective that is overlapped, whether only calls in the backward pass count, rows per step by model).
# With these rows communication is a third of the step.
OVERLAPS = {
    "oar": ("grid.x=2", "all_reduce", True, {"wide": 16, "deep": 16}),
    "ors": ("grid.z=2", "reduce_scatter", False, {"wide": 12, "deep": 4}),
    "oag": ("grid.z=2", "all_gather", False, {"wide": 12, "deep": 4}),
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
    """Trains, and returns the metrics of the steps after two warm-up steps."""
    directory = work / "run"
    run(["rm", "-rf", directory])
    run([HOSTS, "run", per_host, args.axonn, "train", work / f"{model}.yaml", f"run.dir={directory}",
         f"train.steps={args.steps + 2}", *words])
    rows = [json.loads(line) for line in open(directory / "metrics.jsonl")]
    return [r for r in rows if r.get("step", 0) > 2 and "step_ms" in r]


def median_of(rows, key):
    return statistics.median(r[key] for r in rows)


def grids(args, work):
    ranks, heads = 8, 8
    every = [g for g in itertools.product([1, 2, 4, 8], repeat=4) if g[0] * g[1] * g[2] * g[3] == ranks]
    for model, (_text, batch) in MODELS.items():
        times = {g: [] for g in every if g[0] <= heads}
        for _ in range(args.rounds):
            for g in times:
                x, y, z, data = g
                words = [f"grid.x={x}", f"grid.y={y}", f"grid.z={z}", f"grid.data={data}",
                         f"train.global_batch={batch}", f"train.micro_batch={batch // (z * data)}"]
                times[g].append(median_of(train(args, work, model, 2, words), "step_ms") / 1e3)
        base = (2, 1, 1, 4)
        order = sorted(times, key=lambda g: statistics.median(times[g]))
        for g in order:
            t = times[g]
            yield {"case": f"{model} x={g[0]} y={g[1]} z={g[2]} data={g[3]}", "median": statistics.median(t),
                   "min": min(t), "max": max(t), "unit": "s/step", "runs": len(t),
                   "of best": statistics.median(t) / statistics.median(times[order[0]]),
                   "of x=2 data=4": statistics.median(t) / statistics.median(times[base])}


def collectives(path, name, in_backward):
    """Returns ms per step: the time that the rank waits for a collective, and the CPU time of kernels that overlap it."""
    events = [e for e in json.load(open(path))["traceEvents"] if e["ph"] == "X"]
    spans = {kind: [(e["ts"], e["ts"] + e["dur"], e["args"]["value"]) for e in events if e["cat"] == kind]
             for kind in ("step", "kernel", "backward")}
    steps = sorted(spans["step"])[2:]
    calls = {kind: sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == kind and e["name"] == name)
             for kind in ("start", "wait")}
    backward = sorted(spans["backward"], key=lambda b: b[1] - b[0], reverse=True)

    def counts(begin):
        return begin >= steps[0][0] and (not in_backward or any(b[0] <= begin <= b[1] for b in backward))

    pairs = [(s, w) for s, w in zip(calls["start"], calls["wait"]) if counts(s[0])]
    waiting = sum(s[1] - s[0] + w[1] - w[0] for s, w in pairs)
    beside = sum(cpu / 1e3 for begin, end, cpu in spans["kernel"] if any(s[1] <= begin and end <= w[0] for s, w in pairs))
    return waiting / 1e3 / len(steps), beside / 1e3 / len(steps)


def overlap(args, work):
    for model in MODELS:
        for name, (grid, collective, in_backward, rows) in OVERLAPS.items():
            batch = rows[model]
            words = [grid, "run.trace=true", f"train.global_batch={batch}",
                     f"train.micro_batch={batch // 2 if 'z' in grid else batch}"]
            seen = {True: [], False: []}
            for _ in range(args.rounds):
                for on in seen:
                    switch = [w.replace("false", "true") if on and name in w else w for w in OFF]
                    step = median_of(train(args, work, model, 1, words + switch), "step_ms")
                    seen[on].append((step, *collectives(work / "run" / "trace" / "rank-0.json", collective, in_backward)))
            step, waiting, beside = ({on: statistics.median(v[i] for v in seen[on]) for on in seen} for i in range(3))
            hidden = waiting[False] - waiting[True]
            yield {"case": f"{model} {name}", "unit": "ms", "runs": args.rounds, "step off": step[False],
                   "step on": step[True], "communication": waiting[False], "compute beside": beside[True],
                   "hidden": hidden, "of what can be": hidden / min(waiting[False], beside[True]),
                   "share of the step": waiting[False] / step[False]}


RECOMPUTES = {
    "none": ["train.recompute=none"],
    "again": ["train.recompute=full", "train.recompute_comm=again"],
    "keep": ["train.recompute=full", "train.recompute_comm=keep"],
}


def recompute(args, work):
    for model, (_text, batch) in MODELS.items():
        seen = {how: [] for how in RECOMPUTES}
        for _ in range(args.rounds):
            for how, words in RECOMPUTES.items():
                rows = train(args, work, model, 2, ["grid.x=2", "grid.y=2", f"train.global_batch={batch}",
                                                    f"train.micro_batch={batch // 2}", *words])
                first = json.loads(open(work / "run" / "metrics.jsonl").readline())
                seen[how].append((median_of(rows, "step_ms"), sum(rows[-1]["comm_bytes"].values()), first["mem_planned"]))
        for how, values in seen.items():
            times = [v[0] for v in values]
            yield {"case": f"{model} {how}", "median": statistics.median(times), "min": min(times), "max": max(times),
                   "unit": "ms/step", "runs": len(times), "bytes": values[0][1], "mem_planned": values[0][2],
                   "of again": statistics.median(times) / statistics.median(v[0] for v in seen["again"])}


def mixture(args, work):
    """Writes the configuration of the model with experts, and a text whose tokens are all alike."""
    (work / "same.txt").write_text("the " * 200000)
    run([args.axonn, "data", "build", "--input", work / "same.txt", "--tokenizer", work / "tok", "--out", work / "same.tok"])
    (work / "mixture.yaml").write_text(
        "model: {family: mixtral, layers: 4, hidden: 512, heads: 8, ffn: 256, experts: 16, top_k: 2, vocab: 2048, seq_len: 256}\n"
        "data: {train: t.tok, tokenizer: tok, order: sequential}\n"
        f"train: {{precision: {args.precision}, resume: none, global_batch: 8, micro_batch: 4}}\n"
        "grid: {x: 2, data: 2, expert: 2}\n"
        "run: {checkpoint_interval: 0, eval_start: false}\nthreads: 1\n")


# name: (duplicate token dropping, keys of recomputation)
EXPERTS = {
    "neither": (False, ["train.recompute=full", "train.recompute_comm=again"]),
    "dtd": (True, ["train.recompute=full", "train.recompute_comm=again"]),
    "kept": (False, ["train.recompute=full", "train.recompute_comm=keep"]),
    "dtd, kept": (True, ["train.recompute=full", "train.recompute_comm=keep"]),
    "neither, no recomputation": (False, []),
    "dtd, no recomputation": (True, []),
}


def experts(args, work):
    mixture(args, work)
    seen = {how: [] for how in EXPERTS}
    for _ in range(args.rounds):
        for how, (dropping, words) in EXPERTS.items():
            rows = train(args, work, "mixture", 2, ["run.trace=true", "moe.capacity=1.25",
                                                    f"overlap.dtd={str(dropping).lower()}", *words])
            waiting, _beside = collectives(work / "run" / "trace" / "rank-0.json", "all_to_all", False)
            seen[how].append((median_of(rows, "step_ms"), waiting, {axis: n for axis, n in rows[-1]["comm_bytes"].items() if n}))
    for how, values in seen.items():
        base = seen["neither, no recomputation" if "no recomputation" in how else "neither"]
        step, waiting = (statistics.median(v[i] for v in values) for i in range(2))
        yield {"case": how, "median": step, "min": min(v[0] for v in values), "max": max(v[0] for v in values),
               "unit": "ms/step", "runs": len(values), "all-to-all": waiting, "share of the step": waiting / step,
               "bytes": values[0][2], "step of neither": step / statistics.median(v[0] for v in base),
               "all-to-all of neither": waiting / statistics.median(v[1] for v in base)}


def capacity(args, work):
    mixture(args, work)
    cases = {(k, data, c): [] for k in (2, 8) for data in ("t", "same") for c in (0, 1.25)}
    for _ in range(args.rounds):
        for k, data, c in cases:
            rows = train(args, work, "mixture", 2, [f"model.top_k={k}", f"data.train={work}/{data}.tok", f"moe.capacity={c}"])
            first = json.loads(open(work / "run" / "metrics.jsonl").readline())
            cases[k, data, c].append((median_of(rows, "step_ms"), {axis: n for axis, n in rows[-1]["comm_bytes"].items() if n}, first["mem_planned"],
                                      rows[-1]["expert_load"], rows[-1].get("expert_dropped", 0.0)))
    for (k, data, c), values in cases.items():
        times = [v[0] for v in values]
        yield {"case": f"{k} of 16 chosen, {'spread' if data == 't' else 'all alike'}, " + (f"capacity {c}" if c else "gathered"),
               "median": statistics.median(times), "min": min(times), "max": max(times), "unit": "ms/step",
               "runs": len(times), "of gathered": statistics.median(times) / statistics.median(v[0] for v in cases[k, data, 0]),
               "bytes": values[0][1], "mem_planned": values[0][2], "expert_load": values[0][3], "dropped": values[0][4]}


CASES = {"grids": grids, "overlap": overlap, "recompute": recompute, "experts": experts, "capacity": capacity}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=list(CASES))
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
            for row in CASES[args.what](args, work):
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        finally:
            run([HOSTS, "down"])


if __name__ == "__main__":
    main()
