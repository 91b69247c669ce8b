#!/usr/bin/env python3
"""Prints the published times of training steps on supercomputers beside what `axonn plan --machine` says.

  scaling   weak scaling of 2502.08145 (its tables) on Perlmutter, Frontier and Alps
  overlap   the same paper's ablation of overlap: 80B on 8,192 GCDs of Frontier
  pipeline  weak scaling of 2110.13005 on Summit, with its grids and micro-batches

Free parameters: one efficiency per machine, by which the rates of all kernels of its description (device.gemm.*,
device.stream) are multiplied. For scaling it is fitted on the machine's two smallest rows, for pipeline on the smallest,
for overlap on the published seconds of computation. Grids, micro-batches and weight caches that a paper does not publish are
those of the fastest plan that fits into memory. Everything else is the description that axonn comes with.

All grids over x, y, z and data are sorted by a sketch (the equations of 2502.08145, kernels hiding what goes along z and
data). Three splits into z and data of each of the first pairs of x and y are planned with 2 and 4 blocks, because time and
memory are linear in the number of blocks; of these the fastest are planned whole. Nothing is opened but the descriptions:
no GPU, no data.
Usage:  python3 bench/papers.py [scaling] [overlap] [pipeline] [--best 4] [--jobs 2]
"""

import argparse
import concurrent.futures
import functools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCAB = 51200
GUESS = 0.8  # efficiency at which grids are ranked
TRIES = 2  # micro-batches of a grid
ADVERTISED = {"perlmutter": 312e12, "frontier": 191.5e12, "alps": 989e12, "summit": 125e12}  # flop/s of a device

# ---- 2502.08145 ----------------------------------------------------------------------------------------------------
SEQ, ROWS = 2048, 8192  # 16.8 M tokens
GPT = {  # layers, hidden, heads
    "5B": (24, 4096, 32), "10B": (32, 5120, 40), "20B": (32, 7168, 56), "40B": (38, 9216, 72), "60B": (56, 9216, 72),
    "80B": (42, 12288, 96), "160B": (84, 12288, 96), "320B": (96, 16384, 128)}
WEAK = [  # machine, devices, model, published Pflop/s
    ("perlmutter", 512, "5B", 80.8), ("perlmutter", 1024, "10B", 197.8), ("perlmutter", 2048, "20B", 352.5),
    ("perlmutter", 4096, "40B", 620.1), ("frontier", 512, "5B", 40.4), ("frontier", 1024, "10B", 77.3),
    ("frontier", 2048, "20B", 145.7), ("frontier", 4096, "40B", 295.9), ("frontier", 8192, "80B", 571.4),
    ("frontier", 16384, "160B", 1019.9), ("frontier", 32768, "320B", 1381.0), ("alps", 1024, "10B", 310.0),
    ("alps", 2048, "20B", 621.6), ("alps", 4096, "40B", 1095.8), ("alps", 6144, "60B", 1423.1)]
OTHER_BATCH = ("alps", "60B")  # the plotted time says that its batch is larger: stated, not counted
ABLATION = {"compute": 12.0, "none": 22.7, "oar": 22.2, "oar, ors": 21.3, "oar, ors, oag": 18.5}  # seconds, read off a plot

# ---- 2110.13005 ----------------------------------------------------------------------------------------------------
PIPE_SEQ, PIPE_ROWS = 512, 16384
PIPE = [  # devices, (layers, hidden, heads), micro-batch, stages, data, published % of peak (24B and 50B off a plot)
    ("12B", 48, (48, 4512, 24), 8, 6, 8, 54.78), ("24B", 96, (48, 6336, 36), 4, 12, 8, 54.0),
    ("50B", 192, (96, 6528, 48), 4, 24, 8, 52.5), ("100B", 384, (96, 9360, 60), 2, 48, 8, 49.4)]


def flops_of(shape, rows, seq):
    """Operations of a step with recomputation, as both papers count them."""
    layers, hidden, _heads = shape
    return 96 * rows * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + VOCAB / (16 * layers * hidden))


class Planner:
    def __init__(self, args, work):
        self.axonn, self.jobs, self.work = args.axonn, args.jobs, work
        self.plans = 0

    def describe(self, machine, efficiency):
        """Writes the description with all rates of kernels multiplied, and returns its path."""
        text = (ROOT / "machines" / f"{machine}.yaml").read_text()
        scaled = re.sub(r"(?m)^( +(?:stream|bf16|f16|f32|f64): +)([0-9.e+]+)",
                        lambda m: f"{m[1]}{float(m[2]) * efficiency:.9g}", text)
        path = self.work / f"{machine}-{efficiency:.9g}.yaml"
        if not path.exists():
            path.write_text(scaled)
        return path

    @functools.lru_cache(maxsize=None)
    def plan(self, machine, efficiency, words):
        """Returns the plan, or None if the run is not legal or does not fit into the devices' memory."""
        self.plans += 1
        base = self.work / "run.yaml"
        done = subprocess.run([str(self.axonn), "plan", str(base), "--machine", str(self.describe(machine, efficiency)),
                               "--json", *words], capture_output=True, text=True,
                              env=dict(os.environ, AXONN_LOG="error"))
        if done.returncode in (2, 3):
            return None
        if done.returncode:
            sys.exit(f"axonn plan {' '.join(words)}\nexit code {done.returncode}\n{done.stderr[-2000:]}")
        plan = json.loads(done.stdout)
        if plan["step_ms"] is None:
            sys.exit(f"axonn plan {' '.join(words)} --machine {machine}: no time")
        return plan

    def all(self, function, items):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(function, items))


def model_words(shape, seq, rows, precision):
    layers, hidden, heads = shape
    return (f"model.layers={layers}", f"model.hidden={hidden}", f"model.heads={heads}", f"model.seq_len={seq}",
            f"model.vocab={VOCAB}", f"train.global_batch={rows}", f"train.precision={precision}",
            f"train.grad_dtype={precision}")


def grid_words(grid, micro_batch):
    return tuple(f"grid.{a}={n}" for a, n in zip(("x", "y", "z", "data"), grid)) + (f"train.micro_batch={micro_batch}",)


def seconds_of(plan):
    return plan["step_ms"] / 1e3


# ---- the best grid -------------------------------------------------------------------------------------------------

def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def grids_of(ranks, shape, rows):
    """All grids that the model and the batch can have: heads over x, width over y and x, rows over z and data."""
    _layers, hidden, heads = shape
    for x in divisors(math.gcd(ranks, heads)):
        for y in divisors(math.gcd(ranks // x, hidden)):
            for z in divisors(ranks // x // y):
                data = ranks // x // y // z
                if rows % (z * data) == 0:
                    yield x, y, z, data


class Sketch:
    """What choosing grids needs of a description, and the equations of 2502.08145."""

    def __init__(self, machine):
        text = (ROOT / "machines" / f"{machine}.yaml").read_text()
        number = lambda key: float(re.search(rf"(?m)^ *{key}: ([0-9.e]+)", text)[1])
        self.memory, self.node, self.peak = number("memory"), number("ranks_per_node"), number("bf16")
        self.network = float(re.search(r"network:\n +rate: ([0-9.e]+)", text)[1]) * number("at_once")
        self.table = {(int(m[1]), int(m[2])): float(m[3])
                      for m in re.finditer(r'- "(\d+) (\d+) ([0-9.e]+)"', text)}

    def beta(self, inner, size):
        """Bytes per second of a ring of `size` ranks at this distance."""
        return self.table.get((inner, size)) or self.network / min(self.node, inner)

    def seconds(self, shape, grid, hides):
        """A sketch of a step: collectives along x and y are awaited; those along z and data hide behind kernels, or not."""
        layers, hidden, _heads = shape
        x, y, z, data = grid
        rows = ROWS * SEQ / data / z
        weights = 2 * 12 * hidden * hidden / (x * y)  # bytes of a block's matrices, 16 bits
        reduce = lambda inner, n, count: 2 * (n - 1) / n * 2 * count / self.beta(inner, n) if n > 1 else 0
        # results of forward, of forward again, and gradients: 7, 7 and 5 times rows x hidden along y, 2, 2 and 2 along x
        tensor = reduce(x, y, 19 * rows * hidden / x) + reduce(1, x, 6 * rows * hidden / y)
        along = ((z - 1) / z * 3 * weights / self.beta(x * y, z) if z > 1 else 0) + reduce(
            x * y * z, data, weights / 2 / z)
        kernels = flops_of(shape, ROWS, SEQ) / layers / math.prod(grid) / self.peak
        return layers * (tensor + (max(kernels, along) if hides else kernels + along))


def cache_words(memory, plan, part=1):
    """The weight cache that fills the memory which the plan leaves: `part` of it."""
    room = int(0.98 * (memory - plan) * part)
    return (f"train.weight_cache={room}",) if room > 0 else ()


def estimate(planner, machine, shape, grid, more):
    """Returns the fastest of a few micro-batches, with and without weight cache, from plans of 2 and 4 blocks:
    (seconds, words of the grid and micro-batch), or None if none fits into memory."""
    layers, hidden, _heads = shape
    memory = Sketch(machine).memory

    def whole(micro_batch, cache):
        """Returns (seconds, memory) of all blocks; memory is what a plan without weight cache needs."""
        plans = [planner.plan(machine, GUESS, model_words((n, *shape[1:]), SEQ, ROWS, "bf16")
                              + grid_words(grid, micro_batch) + more
                              + (cache_words(memory, cache, n / layers) if cache else ())) for n in (2, 4)]
        return [plans[0][key] + (plans[1][key] - plans[0][key]) * (layers - 2) / 2
                for key in ("step_ms", "mem_planned")] if all(plans) else (0, math.inf)

    found, micro_batch = [], ROWS // (grid[2] * grid[3])
    while micro_batch >= 1 and len(found) < TRIES:
        kept = 2 * layers * micro_batch * SEQ * hidden / (grid[0] * grid[1])  # at least: the inputs of blocks
        ms, need = whole(micro_batch, None) if kept < memory else (0, math.inf)
        if need <= memory:
            cached = whole(micro_batch, need)[0] if grid[2] > 1 else ms
            found.append((min(ms, cached) / 1e3, grid_words(grid, micro_batch)))
        micro_batch = micro_batch // 2 if micro_batch % 2 == 0 else 0
    return min(found) if found else None


def candidates(planner, machine, ranks, shape, args, more=()):
    """Returns the words of the grids and micro-batches that are worth a whole plan."""
    sketch = Sketch(machine)
    state = 16 * 12 * shape[0] * shape[1] ** 2  # bytes: weights, gradients, AdamW's state of the blocks
    grids = [g for g in grids_of(ranks, shape, ROWS) if state / (g[0] * g[1] * g[2]) < sketch.memory]
    near = {}  # the best splits of the rest into z and data for each x and y: these differ little
    for grid in sorted(grids, key=lambda g: sketch.seconds(shape, g, not more)):
        near.setdefault(grid[:2], []).append(grid)
    grids = [grid for split in list(near.values())[:args.grids] for grid in split[:3]]
    found = sorted(f for f in planner.all(lambda g: estimate(planner, machine, shape, g, more), grids) if f)
    return [words + more for _s, words in found[:args.best]]


def fastest(planner, machine, efficiency, shape, choices):
    """Returns the fastest whole plan of these, and its words; each also with all the weight cache that fits."""
    memory = Sketch(machine).memory
    base = model_words(shape, SEQ, ROWS, "bf16")

    def best_of(words):
        plan = planner.plan(machine, efficiency, base + words[:5])  # with all overlap, which needs the most memory
        if not plan:
            return []
        cached = words + cache_words(memory, plan["mem_planned"])
        return [(seconds_of(p), w) for w in (words, cached) for p in [planner.plan(machine, efficiency, base + w)] if p]

    _s, words = min(sum(planner.all(best_of, choices), []))
    return planner.plan(machine, efficiency, base + words), words


def solve(excess):
    """Returns the efficiency at which excess(), ln of planned by published seconds, is 0: by secants."""
    a, b = GUESS, GUESS * math.exp(excess(GUESS))
    at_a, at_b = excess(a), excess(b)
    while abs(at_b) > 1e-4:
        a, b, at_a = b, b - at_b * (b - a) / (at_b - at_a), at_b
        at_b = excess(b)
    return b


# ---- tables --------------------------------------------------------------------------------------------------------

def exposed(plan):
    return {axes: ms / 1e3 for axes, ms in plan["stages"][0]["comm_exposed_ms"].items() if ms >= 10}


def show_grid(words):
    values = dict(w.split("=") for w in words)
    cache = int(values.get("train.weight_cache", 0)) / 2**30
    return (" x ".join(values[f"grid.{a}"] for a in ("x", "y", "z", "data")) + f", {values['train.micro_batch']}"
            + (f", {cache:.0f}" if cache >= 1 else ""))


def scaling(planner, args):
    errors, shares = [], []
    print("\nWeak scaling of 2502.08145: seconds of a step of 8192 x 2048 tokens. Grid: x, y, z, data; micro-batch; GiB of\n"
          "weight cache, if any.\n")
    for machine in args.machines.split(","):
        rows = [(n, m, flops_of(GPT[m], ROWS, SEQ) / (p * 1e15)) for name, n, m, p in WEAK if name == machine]
        words = {m: candidates(planner, machine, n, GPT[m], args) for n, m, _t in rows[:2]}
        fitted = solve(lambda e: statistics.mean(math.log(seconds_of(fastest(planner, machine, e, GPT[m], words[m])[0]) / t)
                                               for _n, m, t in rows[:2]))
        share = math.exp(statistics.mean(math.log(flops_of(GPT[m], ROWS, SEQ) / t / n / ADVERTISED[machine])
                                         for n, m, t in rows[:2]))
        print(f"{machine}: efficiency {fitted:.3f}; constant share of the advertised peak {share:.3f}\n")
        print("| devices | model | grid, micro-batch | memory, GiB | kernels | waits | plan | published | ln | ln, constant share |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for i, (ranks, model, published) in enumerate(rows):
            words[model] = words.get(model) or candidates(planner, machine, ranks, GPT[model], args)
            plan, grid = fastest(planner, machine, fitted, GPT[model], words[model])
            error = math.log(seconds_of(plan) / published)
            flat = math.log(flops_of(GPT[model], ROWS, SEQ) / ranks / ADVERTISED[machine] / share / published)
            held = i >= 2 and (machine, model) != OTHER_BATCH
            if held:
                errors.append((abs(error), model))
                shares.append(abs(flat))
            waits = ", ".join(f"{a} {s:.2f}" for a, s in exposed(plan).items())
            print(f"| {ranks} | {model} | {show_grid(grid)} | {plan['mem_planned'] / 2**30:.1f} | "
                  f"{plan['stages'][0]['kernels_ms'] / 1e3:.2f} | {waits} | {seconds_of(plan):.2f} | {published:.2f} | "
                  f"{'**' if held else ''}{error:+.3f}{'**' if held else ''} | {flat:+.3f} |", flush=True)
        print()
    values = [e for e, _m in errors]
    print(f"held-out rows: {len(values)}; |ln|: median {statistics.median(values):.3f}, mean {statistics.mean(values):.3f}, "
          f"largest {max(errors)[1]} {max(values):.3f}; constant share: {statistics.median(shares):.3f}, "
          f"{statistics.mean(shares):.3f}, {max(shares):.3f}")


def switches(on):
    return tuple(f"overlap.{o}={'true' if o in on else 'false'}" for o in ("oar", "ors", "oag"))


def overlap(planner, args):
    """The paper chose grids by communication alone, as if nothing overlapped; so both the fastest grid without overlap and
    that with overlap are shown."""
    shape, machine, ranks = GPT["80B"], "frontier", 8192
    for chosen, how in ((switches(""), "without"), ((), "with")):
        fitted, words = 1.0, candidates(planner, machine, ranks, shape, args, chosen)
        for _round in range(2):
            plan, best = fastest(planner, machine, fitted, shape, words)
            fitted *= plan["stages"][0]["kernels_ms"] / 1e3 / ABLATION["compute"]
        grid = tuple(w for w in best if not w.startswith("overlap"))
        print(f"\nOverlap, 80B on {ranks} GCDs of Frontier; grid {show_grid(grid)}, the fastest {how} overlap; efficiency "
              f"{fitted:.3f} (kernels {ABLATION['compute']:.0f} s)\n")
        print("| overlapped | step | waits | saves | published: step | saves |\n|---|---|---|---|---|---|")
        base = before = last = None
        for name in list(ABLATION)[1:]:
            plan = planner.plan(machine, fitted, model_words(shape, SEQ, ROWS, "bf16") + grid + switches(name.split(", ")))
            seconds, published = seconds_of(plan), ABLATION[name]
            waits = ", ".join(f"{a} {s:.2f}" for a, s in exposed(plan).items())
            print(f"| {name} | {seconds:.2f} | {waits} | " + (f"{before - seconds:.2f}" if before else "") +
                  f" | {published} | " + (f"{last - published:.1f} |" if last else "|"))
            base = base or seconds - plan["stages"][0]["kernels_ms"] / 1e3
            before, last = seconds, published
        none = ABLATION["none"] - ABLATION["compute"]
        print(f"\nexposed communication without overlap: {base:.2f} s, published {none:.1f} s: {base / none - 1:+.1%}")


def pipeline(planner, args):
    print(f"\nWeak scaling of 2110.13005 on Summit: seconds of a batch of {PIPE_ROWS} x {PIPE_SEQ} tokens.\n")

    def plan_of(row, efficiency):
        _name, ranks, shape, micro_batch, stages, data, _p = row
        segment = min(divisors(shape[0] // stages), key=lambda d: abs(d - math.sqrt(shape[0])))
        return planner.plan("summit", efficiency, model_words(shape, PIPE_SEQ, PIPE_ROWS, "fp16") + (
            f"grid.pipe={stages}", f"grid.data={data}", f"train.micro_batch={micro_batch}", f"train.recompute={segment}",
            "optim.clip=0", "offload.optimizer=host", "offload.update=device", "offload.bucket=4194304",
            "offload.chunk=4"))

    def published(row):
        return flops_of(row[2], PIPE_ROWS, PIPE_SEQ) / (ADVERTISED["summit"] * row[1] * row[6] / 100)

    efficiency = solve(lambda e: math.log(seconds_of(plan_of(PIPE[0], e)) / published(PIPE[0])))
    print(f"summit: efficiency {efficiency:.3f}\n")
    print("| devices | model | stages x data, micro-batch | memory, GiB | kernels | for stages | plan | published | difference | "
          "constant share |\n|---|---|---|---|---|---|---|---|---|---|")
    for row in PIPE:
        plan, seconds = plan_of(row, efficiency), published(row)
        flat = PIPE[0][6] / row[6]
        kernels = max(s["kernels_ms"] for s in plan["stages"]) / 1e3
        print(f"| {row[1]} | {row[0]} | {row[4]} x {row[5]}, {row[3]} | {plan['mem_planned'] / 2**30:.1f} | {kernels:.1f} | "
              f"{plan['pipe_wait_ms'] / 1e3:.1f} | {seconds_of(plan):.1f} | {seconds:.1f} | "
              f"{seconds_of(plan) / seconds - 1:+.1%} | {1 / flat - 1:+.1%} |")


def main():
    parts = {"scaling": scaling, "overlap": overlap, "pipeline": pipeline}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="scaling, overlap, pipeline; default: all")
    parser.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    parser.add_argument("--best", type=int, default=4, help="grids that are planned whole")
    parser.add_argument("--grids", type=int, default=7, help="pairs of x and y that are planned with few blocks, each with three z")
    parser.add_argument("--machines", default="perlmutter,frontier,alps", help="those of scaling")
    parser.add_argument("--jobs", type=int, default=2, help="plans at a time")
    args = parser.parse_args()
    for part in args.parts:
        if part not in parts:
            parser.error(f"unknown part {part}")
    with tempfile.TemporaryDirectory() as work:
        planner = Planner(args, pathlib.Path(work))
        (planner.work / "run.yaml").write_text(
            "model: {family: gpt2}\ndata: {train: none.tok}\ndevice: cuda\ntrain: {recompute: full, steps: 10}\n")
        for part in args.parts or parts:
            parts[part](planner, args)
        print(f"\n{planner.plans} plans")


if __name__ == "__main__":
    main()
