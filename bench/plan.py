#!/usr/bin/env python3
"""Compares what axonn plan says with what is measured.

  here   the time of a step of 12 configurations on one and two ranks of this machine. Each round describes the machine anew
         (axonn bench gemm CONFIG --save, axonn bench comm --save), plans with that description, and times steps
         (axonn bench step), one configuration after the other
  hosts  every grid over x, y, z and data of 4 emulated hosts x 2 ranks (scripts/hosts.sh; needs root) for the models of
         bench/hosts.py grids: how well the plan's times order those measured. Kernels are described by two ranks that have the
         two cores for themselves; eight ranks share them, so each has a quarter of their rates. Collectives are described on
         the hosts. With --sleep ranks sleep for the time of their kernels (axonn bench step --sleep), as if each had a core of
         its own with these rates
  pipe   12 schedules of pipelines on emulated hosts, whose stages sleep (axonn bench pipe): message size, slack, postpone

A unit of work takes some seconds. What is done is kept in --work, and the same command goes on from there: with --seconds it
stops when they are over and says how many units are left; after the last it prints the table. With fewer --rounds, those that
are done give their table. A unit during which other programs took more than 2 % of the processors' time is done again, up to
four times. Errors are planned / measured - 1, of the
medians over the rounds. Usage:  python3 bench/plan.py here [--rounds 5] [--seconds 150] [--work build/plan]
"""

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

import hosts

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def adopt():
    """Makes this process the parent of those whose parents end before them: the daemons that mpirun starts on hosts, and so
    their ranks, would else not count as its own."""
    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def own_seconds():
    """Returns the processor time of this process and of all that it started, once these have ended (within 10 s)."""
    end = time.monotonic() + 10
    try:
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
    except ChildProcessError:
        pass  # all have ended
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def all_seconds():
    """Returns the processor time of all programs (user, nice, system), and what a hypervisor took; not that of interrupts,
    as those of a network are not a program's."""
    with open("/proc/stat") as stat:
        row = [int(word) for word in stat.readline().split()[1:9]]
    return sum(row[:3] + row[7:]) / os.sysconf("SC_CLK_TCK")


def undisturbed(name, do, share):
    """Does a unit, again if other programs took more than this share of the processors' time. Returns its result."""
    for _ in range(5):
        begin, own, everything = time.monotonic(), own_seconds(), all_seconds()
        result = do()
        own -= own_seconds()
        used = (all_seconds() - everything + own) / (time.monotonic() - begin) / os.cpu_count()
        if used <= share:
            return result
        print(f"{name}: other programs took {100 * used:.0f} %", file=sys.stderr, flush=True)
    sys.exit(f"{name}: other programs took more than {100 * share:.0f} % of the processors' time, five times: stop them")


class Work:
    """The results of units of work by name, in a file."""

    def __init__(self, path, seconds, share):
        self.path, self.end, self.share = path, time.monotonic() + seconds, share
        self.done = json.loads(path.read_text()) if path.exists() else {}

    def all(self, units):
        """Does the units that are not done, (name, function), in turn. Exits when the time is over."""
        left = [u for u in units if u[0] not in self.done]
        for i, (name, do) in enumerate(left):
            if time.monotonic() > self.end:
                sys.exit(f"{len(left) - i} of {len(units)} units are left: the same command goes on")
            self.done[name] = undisturbed(name, do, self.share)
            replacement = self.path.with_suffix(".new")
            replacement.write_text(json.dumps(self.done, indent=1))
            replacement.replace(self.path)


def spread(values):
    return statistics.median(values), min(values), max(values)


def summary(errors):
    """Says how large errors are."""
    sizes = sorted(abs(e) for e in errors)
    return (f"{len(sizes)} cases, error: median {100 * statistics.median(sizes):.1f} %, largest {100 * sizes[-1]:.1f} %; "
            f"above 10 %: {sum(e > 0.1 for e in sizes)}, above 15 %: {sum(e > 0.15 for e in sizes)}")


# ---- this machine ---------------------------------------------------------------------------------------------------------

GPT2 = "family: gpt2, layers: 4, hidden: 384, heads: 6, vocab: 4096, seq_len: 256"
LLAMA = "family: llama, layers: 4, hidden: 384, heads: 6, kv_heads: 2, ffn: 1024, vocab: 4096, seq_len: 256"
MIXTRAL = ("family: mixtral, layers: 3, hidden: 256, heads: 4, kv_heads: 2, ffn: 512, experts: 4, top_k: 2, vocab: 4096, "
           "seq_len: 256")
LORA = ["model.from=base", "tune.method=lora", "tune.rank=8"]
HERE = {  # name: (model; None: that of LORA, precision, ranks, keys)
    "GPT-2": (GPT2, "fp32", 1, []),
    "Llama": (LLAMA, "bf16", 1, []),
    "Llama, 4 micro-batches": (LLAMA, "fp32", 1, ["train.micro_batch=2"]),
    "LoRA": (None, "bf16", 1, LORA),
    "experts": (MIXTRAL, "fp32", 1, []),
    "GPT-2, data = 2": (GPT2, "fp32", 2, ["grid.data=2", "train.micro_batch=4"]),
    "Llama, data = 2, ZeRO 3": (LLAMA, "bf16", 2, ["grid.data=2", "train.micro_batch=4", "zero=3"]),
    "GPT-2, x = 2": (GPT2, "bf16", 2, ["grid.x=2"]),
    "Llama, y = 2": (LLAMA, "fp32", 2, ["grid.y=2"]),
    "GPT-2, z = 2, recompute": (GPT2, "fp32", 2, ["grid.z=2", "train.micro_batch=2", "train.recompute=full"]),
    "Llama, pipe = 2": (LLAMA, "bf16", 2, ["grid.pipe=2", "train.micro_batch=2"]),
    "LoRA, pipe = 2": (None, "fp32", 2, LORA + ["grid.pipe=2", "train.micro_batch=2"]),
}


def prepare_here(args):
    for name, (model, precision, _ranks, _words) in HERE.items():
        shape = f"model: {{{model}}}\n" if model else ""
        (args.work / f"{name}.yaml").write_text(
            f"{shape}data: {{mask_documents: false}}\ntrain: {{global_batch: 8, micro_batch: 8, precision: {precision}}}\n")
    if not (args.work / "base").exists():
        run([args.axonn, "tok", "train", "--input", ROOT / "src", "--vocab", "4096", "--out", "tok"], cwd=args.work)
        run([args.axonn, "data", "build", "--input", ROOT / "src" / "base", "--tokenizer", "tok", "--out", "t.tok"], cwd=args.work)
        (args.work / "base.yaml").write_text(
            f"model: {{{LLAMA}}}\ndata: {{train: t.tok, tokenizer: tok}}\nrun: {{dir: new, eval_start: false}}\n"
            "train: {steps: 1, global_batch: 1, micro_batch: 1}\n")
        shutil.rmtree(args.work / "new", ignore_errors=True)
        run([args.axonn, "train", "base.yaml"], cwd=args.work)
        (args.work / "new").rename(args.work / "base")


def describe_comm(args, at):
    machine = f"comm-{at}.yaml"
    (args.work / machine).unlink(missing_ok=True)
    run([args.axonn, "bench", "comm", "--ranks", 2, "--runs", 5, "--max", 16 << 20, "--save", machine], cwd=args.work)


def measure_here(args, at, name):
    _model, _precision, ranks, words = HERE[name]
    machine = f"machine {name} {at}"
    words = [f"{name}.yaml", f"threads={2 // ranks}", *words]
    several = ["--ranks", ranks] if ranks > 1 else []
    (args.work / machine).unlink(missing_ok=True)
    if ranks > 1:
        shutil.copy(args.work / f"comm-{at}.yaml", args.work / machine)
    run([args.axonn, "bench", "gemm", *words, *several, "--runs", 5, "--save", machine], cwd=args.work)
    step = last_json(run([args.axonn, "bench", "step", *words, *several, "--steps", args.steps, "--json"], cwd=args.work))
    plan = last_json(run([args.axonn, "plan", *words, *several, "--machine", f"./{machine}", "--json"], cwd=args.work))
    return {"planned": plan["step_ms"], "measured": step["median"], "plan": plan, "step": step}


def here(args, work):
    prepare_here(args)
    units = []
    for at in range(args.rounds):
        units.append((f"comm {at}", lambda at=at: describe_comm(args, at)))
        units += [(f"{name} {at}", lambda name=name, at=at: measure_here(args, at, name)) for name in HERE]
    work.all(units)
    print("| | | ranks | planned, ms | measured, ms | error |\n|---|---|---|---|---|---|")
    errors = []
    for name, (_model, precision, ranks, _words) in HERE.items():
        rounds = [work.done[f"{name} {at}"] for at in range(args.rounds)]
        planned, measured = (spread([r[key] for r in rounds]) for key in ("planned", "measured"))
        errors.append(planned[0] / measured[0] - 1)
        print(f"| {name} | {precision} | {ranks} | " + " | ".join("{:.1f} [{:.1f}, {:.1f}]".format(*s) for s in (planned, measured))
              + f" | {100 * errors[-1]:+.1f} % |")
    print("\n" + summary(errors))


# ---- emulated hosts --------------------------------------------------------------------------------------------------------

RANKS, HOSTS, PER_HOST, CORES = 8, 4, 2, 2
GRIDS = [g for g in itertools.product([1, 2, 4, 8], repeat=4) if g[0] * g[1] * g[2] * g[3] == RANKS]
DESCRIBED = [("data=2", 8), ("x=2", 4), ("y=2", 4), ("x=2", 2), ("y=2", 2)]  # grid of two ranks, and by what to divide the rows


def blocks(path):
    """Returns the text of each top-level key of a description."""
    found, key = {}, None
    for line in path.read_text().splitlines():
        if line[:1] not in (" ", "#"):
            key = line.partition(":")[0]
        if line[:1] != "#":
            found[key] = found.get(key, "") + line + "\n"
    return found


def describe_kernels(args):
    """Describes the kernels of two ranks, and divides their rates among the ranks that share a core."""
    for model, (_text, batch) in hosts.MODELS.items():
        machine = args.work / f"kernels-{model}.yaml"
        machine.unlink(missing_ok=True)
        for grid, parts in DESCRIBED:
            rows = batch // parts
            run([args.axonn, "bench", "gemm", args.work / f"{model}.yaml", "--ranks", CORES, "--runs", 5, "--save", machine,
                 f"grid.{grid}", f"train.micro_batch={rows}", f"train.global_batch={rows * (2 if 'data' in grid else 1)}"])
        device = blocks(machine)["device"]
        share = RANKS / CORES
        device = re.sub(r'([0-9.e+-]+)((?: B/s| FLOP/s)?)"$', lambda m: f'{float(m[1]) / share:.6g}{m[2]}"', device, flags=re.M)
        device = re.sub(r"(launch: )(.*)", lambda m: m[1] + f"{float(m[2]) * share:.6g}", device)
        device = re.sub(r"(stream: )(.*)", lambda m: m[1] + f"{float(m[2]) / share:.6g}", device)
        (args.work / f"device-{model}.yaml").write_text(device)


def describe_hosts(args, collective):
    run([hosts.HOSTS, "run", PER_HOST, args.axonn, "bench", "comm", "--runs", 3, "--caches", "warm", "--min", 16 << 10,
         "--max", 4 << 20, "--collective", collective, "--save", args.work / "hosts.yaml"])


def join_descriptions(args):
    described = blocks(args.work / "hosts.yaml")
    if args.sleep:
        described["links"] = re.sub(r" +(occupies|busy): .*\n", "", described["links"])
    for model in hosts.MODELS:
        described["device"] = (args.work / f"device-{model}.yaml").read_text()
        machine_of(args, model).write_text("".join(described.values()))


def machine_of(args, model):
    return args.work / f"machine-{model}{'-sleep' if args.sleep else ''}.yaml"


def words_of(grid, batch):
    x, y, z, data = grid
    return [f"grid.x={x}", f"grid.y={y}", f"grid.z={z}", f"grid.data={data}", f"train.global_batch={batch}",
            f"train.micro_batch={batch // (z * data)}"]


def step_on_hosts(args, model, grid):
    more = ["--sleep", machine_of(args, model)] if args.sleep else []
    return last_json(run([hosts.HOSTS, "run", PER_HOST, args.axonn, "bench", "step", args.work / f"{model}.yaml",
                          *words_of(grid, hosts.MODELS[model][1]), *more, "--warm-up", 1, "--steps", args.steps, "--json"]))["median"]


def ranking(args, work):
    models = args.models.split(",")
    for model, (text, _batch) in hosts.MODELS.items():
        (args.work / f"{model}.yaml").write_text(
            f"model: {text}\ndata: {{mask_documents: false}}\ntrain: {{precision: {args.precision}}}\nthreads: 1\n")
    how = "sleep " if args.sleep else ""
    described = [("kernels", lambda: describe_kernels(args))]
    described += [(c, lambda c=c: describe_hosts(args, c)) for c in ("message", "all_reduce", "all_gather", "reduce_scatter")]
    steps = [(f"{how}{model} {g} {at}", lambda model=model, g=g: step_on_hosts(args, model, g))
             for at in range(args.rounds) for model in models for g in GRIDS]
    run([hosts.HOSTS, "up", HOSTS, args.rate])
    try:
        work.all(described)
        join_descriptions(args)
        work.all(steps)
    finally:
        run([hosts.HOSTS, "down"])
    for model in models:
        print_ranking(args, model,
                      {g: spread([work.done[f"{how}{model} {g} {at}"] for at in range(args.rounds)]) for g in GRIDS})


def print_ranking(args, model, measured):
    batch = hosts.MODELS[model][1]
    planned = {g: last_json(run([args.axonn, "plan", args.work / f"{model}.yaml", *words_of(g, batch), "--machine",
                                 machine_of(args, model), "--json"]))["step_ms"] for g in measured}
    print(f"\n**{model}**\n\n| x | y | z | data | measured, s | planned, s | error |\n|---|---|---|---|---|---|---|")
    fastest = sorted(measured, key=lambda g: measured[g][0])
    for g in fastest:
        print("| " + " | ".join(map(str, g)) + " | {:.2f} [{:.2f}, {:.2f}] ".format(*(t / 1e3 for t in measured[g]))
              + f"| {planned[g] / 1e3:.2f} | {100 * (planned[g] / measured[g][0] - 1):+.0f} % |")
    apart = [(a, b) for a in measured for b in measured if measured[a][2] < measured[b][1]]  # a is faster in every run
    right = sum(planned[a] < planned[b] for a, b in apart)
    first = sorted(planned, key=planned.get)
    best = min(measured[g][0] for g in first[:3]) / measured[fastest[0]][0]
    print(f"\n{right} of {len(apart)} pairs of grids whose ranges do not overlap are in the planned order: "
          f"{100 * right / len(apart):.1f} %; the best of the first three planned takes {best:.3f} of the fastest's time; "
          f"{len(set(first[:10]) & set(fastest[:10]))} of the first ten planned are among the ten fastest; "
          + summary([planned[g] / measured[g][0] - 1 for g in measured]))


# ---- schedules -------------------------------------------------------------------------------------------------------------

PIPES = [  # stages, bytes of a message, schedule, slack, postpone
    (8, 1 << 18, "1f1b", 0, 0), (8, 1 << 18, "message", 0, 0), (8, 1 << 18, "message", 4, 0), (8, 1 << 18, "gpipe", 0, 0),
    (8, 3 << 18, "1f1b", 0, 0), (8, 3 << 18, "1f1b", 4, 8), (8, 3 << 18, "message", 4, 8), (8, 3 << 18, "interleaved", 0, 0),
    (4, 1 << 20, "1f1b", 0, 0), (4, 1 << 20, "message", 0, 4), (4, 1 << 12, "gpipe", 0, 8), (4, 1 << 12, "interleaved", 0, 4)]


def on_hosts(args, words):
    return run([hosts.HOSTS, "run", 1, args.axonn, "bench", *words])


def pipe(args, work):
    for stages in sorted({p[0] for p in PIPES}):
        machine = args.work / f"messages-{stages}.yaml"
        units = [(f"messages {stages}", lambda machine=machine: on_hosts(
            args, ["comm", "--collective", "message", "--caches", "warm", "--max", 1 << 20, "--save", machine]) and None)]
        for p in (p for p in PIPES if p[0] == stages):
            _stages, size, schedule, slack, postpone = p
            words = ["pipe", "--jitter", 0, "--micro-batches", 16, "--schedule", schedule, "--slack", slack, "--postpone",
                     postpone, "--bytes", size, "--seeds", args.rounds, "--machine", machine, "--json"]
            units.append((str(p), lambda words=words: last_json(on_hosts(args, words))))
        run([hosts.HOSTS, "up", stages, args.rate])
        try:
            work.all(units)
        finally:
            run([hosts.HOSTS, "down"])
    print("| stages | bytes | schedule | slack | postpone | planned, ms | measured, ms | error |\n|---|---|---|---|---|---|---|---|")
    errors = []
    for p in PIPES:
        row = work.done[str(p)]
        errors.append(row["planned"] / row["median"] - 1)
        print("| " + " | ".join(map(str, p)) + f" | {row['planned']:.1f} | {row['median']:.1f} [{row['min']:.1f}, {row['max']:.1f}] "
              f"| {100 * errors[-1]:+.1f} % |")
    print("\n" + summary(errors))


WHAT = {"here": here, "hosts": ranking, "pipe": pipe}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=list(WHAT))
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, help="timed steps of a round (default 7; hosts: 3)")
    p.add_argument("--models", default="wide,deep", help="hosts: of wide, deep; default both")
    p.add_argument("--rate", default="1gbit", help="of each host's link (default 1gbit)")
    p.add_argument("--precision", default="bf16", choices=["fp32", "bf16"], help="hosts: default bf16")
    p.add_argument("--sleep", action="store_true", help="hosts: ranks sleep for the time of their kernels")
    p.add_argument("--seconds", type=float, default=1e9, help="stop after this time, between two units of work")
    p.add_argument("--work", default=str(ROOT / "build" / "plan"), help="folder of what is done (default build/plan)")
    p.add_argument("--others", type=float, default=0.02, help="share of the processors' time that other programs may take "
                   "(default 0.02)")
    args = p.parse_args()
    args.steps = args.steps or {"hosts": 3}.get(args.what, 7)
    args.axonn = os.path.abspath(args.axonn)
    args.work = pathlib.Path(args.work).resolve() / args.what
    args.work.mkdir(parents=True, exist_ok=True)
    adopt()
    WHAT[args.what](args, Work(args.work / "state.json", args.seconds, args.others))


if __name__ == "__main__":
    main()
