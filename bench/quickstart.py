#!/usr/bin/env python3
"""Compares the result of scripts/quickstart.sh, in bits per byte of its validation text, with other models trained for
the same time.

Parties take turns. All have the same files, the same split into training and validation, and the same seconds:
  axonn      scripts/quickstart.sh as it is
  before     the same with the model that it trained before: 3 layers of width 480
  NAME       the same with other keys, for each --try NAME:KEY=VALUE,KEY=VALUE...
  torch:...  a GPT-2 in PyTorch (bench/peers/torch_train.py): every line of TORCH in the first round, then only the one
             that was best there. It uses all seconds for its steps, and its compilation does not count. The quick start
             also trains its tokenizer, builds data, validates and completes a text in the same time.
Each run writes a line to the file --results. Runs that are in the file are not repeated, so the same command continues
after an interruption. At the end it prints a markdown table: median, minimum and maximum. With 300 seconds, three rounds
and eight models in PyTorch it takes about 100 minutes on two idle cores.
Usage:  python3 bench/quickstart.py --torch PYTHON [--seconds 300] [--rounds 3] [--parties axonn,before,torch]
                                    [--try wide:model.hidden=256,model.heads=8] [--results FILE]
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from scaling import positive

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEFORE = ("model.layers=3,model.hidden=480,model.heads=10,model.seq_len=256,train.global_batch=8,train.micro_batch=8,"
          "optim.lr=8e-4,optim.betas=[0.9,0.95],optim.weight_decay=0.1,optim.warmup=6.25%")
TORCH = {  # options of torch_train.py
    "4x128x128": "--layers 4 --hidden 128 --heads 4 --batch 8 --seq 128 --lr 4e-3",  # the quick start's
    "4x192": "--layers 4 --hidden 192 --heads 6 --batch 8 --seq 256 --lr 4e-3",
    "4x128": "--layers 4 --hidden 128 --heads 4 --batch 8 --seq 256 --lr 4e-3",
    "4x256": "--layers 4 --hidden 256 --heads 8 --batch 8 --seq 256 --lr 3e-3",
    "6x192": "--layers 6 --hidden 192 --heads 6 --batch 8 --seq 256 --lr 3e-3",
    "3x480": "--layers 3 --hidden 480 --heads 10 --batch 8 --seq 256 --lr 8e-4",
    "6x384": "--layers 6 --hidden 384 --heads 6 --batch 12 --seq 256 --lr 1e-3 --beta2 0.99",
    # what nanoGPT recommends for a CPU
    "4x128x64": "--layers 4 --hidden 128 --heads 4 --batch 12 --seq 64 --lr 1e-3 --beta2 0.99",
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    p.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch and numpy")
    p.add_argument("--seconds", type=positive, default=300, help="default %(default)s")
    p.add_argument("--rounds", type=positive, default=3, help="default %(default)s")
    p.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)),
                   help="threads of torch, default: all cores")
    p.add_argument("--parties", default="axonn,before,torch", help="default %(default)s")
    p.add_argument("--models", default=",".join(TORCH), help="models of PyTorch, default: all, %(default)s")
    p.add_argument("--try", dest="tries", action="append", default=[], metavar="NAME:KEYS")
    p.add_argument("--dir", type=pathlib.Path, default=ROOT / "build" / "quickstart",
                   help="directory for runs, default %(default)s")
    p.add_argument("--results", type=pathlib.Path, help="default: DIR/results.jsonl")
    args = p.parse_args()
    args.parties = args.parties.split(",")
    args.models = args.models.split(",")
    args.axonn = args.axonn.resolve()
    args.dir = args.dir.resolve()
    args.results = args.results or args.dir / "results.jsonl"
    args.keys = {"axonn": "", "before": BEFORE, **dict(t.split(":", 1) for t in args.tries)}
    unknown = [n for n in args.parties if n not in ("axonn", "before", "torch")]
    unknown += [m for m in args.models if m not in TORCH]
    if unknown:
        p.error(f"no {', '.join(unknown)}")
    if not shutil.which(args.axonn):
        p.error(f"{args.axonn} is missing: cmake --preset release && cmake --build build -j")
    if "torch" in args.parties and not args.torch:
        p.error("--torch PYTHON is missing: python3 -m venv DIR && DIR/bin/pip install torch numpy, then --torch "
                "DIR/bin/python; or leave torch out of --parties")
    return args


def run(command, **environment):
    start = time.monotonic()
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout[-2000:]}"
                 f"{done.stderr[-2000:]}")
    return done.stdout, time.monotonic() - start


def words(keys):
    """Splits a list at commas into KEY=VALUE words; commas inside brackets do not count."""
    return [word for word in re.split(r",(?![^\[]*\])", keys) if word]


def quickstart(args, name, _round):
    """Runs the script; its data is kept, because torch trains on the same."""
    directory, data = args.dir / "run", args.dir / "data"
    shutil.rmtree(directory, ignore_errors=True)
    out, seconds = run([ROOT / "scripts" / "quickstart.sh", "--dir", directory, "--seconds", args.seconds,
                        *words(args.keys[name])], AXONN=str(args.axonn))
    result = json.loads((directory / "eval.json").read_text())
    steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    head = json.loads((directory / "metrics.jsonl").read_text().splitlines()[0])
    checksum = json.loads(run([args.axonn, "data", "show", directory / "data" / "valid.tok", "--json"])[0])["checksum"]
    shutil.rmtree(data, ignore_errors=True)
    shutil.move(directory / "data", data)
    return {"bits_per_byte": result["bits_per_byte"], "wall_seconds": seconds, "steps": steps[-1]["step"],
            "tokens": steps[-1]["tokens"], "parameters": head.get("parameters"), "valid": checksum,
            "completion": out.partition("\n\n    ")[2].rpartition("\n\ndone")[0]}


def torch(args, name, at):
    data = args.dir / "data"
    out, seconds = run([args.torch, ROOT / "bench" / "peers" / "torch_train.py", "--train", data / "train.tok",
                        "--valid", data / "valid.tok", "--seconds", args.seconds, "--threads", args.threads, "--seed",
                        at, *TORCH[name].split()])
    result = json.loads(out.strip().splitlines()[-1])
    checksum = json.loads(run([args.axonn, "data", "show", data / "valid.tok", "--json"])[0])["checksum"]
    return {"wall_seconds": seconds, "valid": checksum,
            **{key: result[key] for key in ("bits_per_byte", "steps", "tokens", "parameters", "train_seconds")}}


class Results:
    """The lines of the results file, by party and round."""

    def __init__(self, args):
        self.args, self.rows = args, {}
        args.results.parent.mkdir(parents=True, exist_ok=True)
        if args.results.exists():
            for line in args.results.read_text().splitlines():
                row = json.loads(line)
                if row["seconds"] == args.seconds:
                    self.rows[row["party"], row["keys"], row["round"]] = row

    def ensure(self, function, party, keys, name, at):
        """Returns the result of this party in this round, from the file or from a run made now."""
        if (party, keys, at) in self.rows:
            return self.rows[party, keys, at]
        row = {"party": party, "round": at, "keys": keys, "seconds": self.args.seconds,
               "date": datetime.datetime.now().isoformat(timespec="seconds"),
               "load": os.getloadavg()[0], **function(self.args, name, at)}
        with self.args.results.open("a") as f:
            f.write(json.dumps(row) + "\n")
        self.rows[party, keys, at] = row
        print(f"round {at}: {party} {row['bits_per_byte']:.3f} bits per byte, {row['steps']} steps, "
              f"{row['wall_seconds']:.0f} s, load before {row['load']:.1f}", file=sys.stderr, flush=True)
        return row


def best_model(results, args):
    """Returns the PyTorch model that was best in the first round."""
    first = {m: results.rows[f"torch:{m}", TORCH[m], 1]["bits_per_byte"] for m in args.models}
    return min(first, key=first.get)


def machine():
    name = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{name.group(1) if name else 'unknown processor'}, {len(os.sched_getaffinity(0))} cores"


def print_table(results, args):
    rows = list(results.rows.values())
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    print(f"\n{machine()}, {min(r['date'] for r in rows)[:16]} to {max(r['date'] for r in rows)[:16]}, commit "
          f"{commit.strip()}, {args.seconds} seconds a run; validation text: checksum "
          f"{', '.join(sorted({r['valid'] for r in rows}))}\n\n"
          "| | bits per byte | above axonn's | runs | M parameters | steps | M tokens | seconds in all |\n"
          "|---|---|---|---|---|---|---|---|")
    parties = {}
    for r in rows:
        parties.setdefault((r["party"], r["keys"]), []).append(r)

    def median(runs, key):
        return statistics.median(r[key] for r in runs)

    ours = parties.get(("axonn", ""))
    for (party, _keys), runs in sorted(parties.items(), key=lambda item: median(item[1], "bits_per_byte")):
        bits = [r["bits_per_byte"] for r in runs]
        above = f"{statistics.median(bits) - median(ours, 'bits_per_byte'):+.3f}" if ours else ""
        print(f"| {party} | {statistics.median(bits):.3f} [{min(bits):.3f}, {max(bits):.3f}] | {above} | {len(runs)} "
              f"| {median(runs, 'parameters') / 1e6:.1f} | {median(runs, 'steps'):.0f} "
              f"| {median(runs, 'tokens') / 1e6:.1f} | {median(runs, 'wall_seconds'):.0f} |")
    if len({r["valid"] for r in rows}) > 1:
        print("\nThe validation parts differ: the figures do not compare. Was the source changed meanwhile?")
    if ours:
        print(f"\nThe last completion of axonn's:\n\n    {max(ours, key=lambda r: r['round'])['completion']}")


def main():
    args = arguments()
    results = Results(args)
    runs = [n for n in ("axonn", "before") if n in args.parties] + [t.split(":", 1)[0] for t in args.tries]
    for at in range(1, args.rounds + 1):
        for name in runs:
            results.ensure(quickstart, name, args.keys[name], name, at)
        if "torch" not in args.parties:
            continue
        if not (args.dir / "data" / "valid.tok").exists():
            sys.exit(f"{args.dir}/data is missing: a party other than torch comes first")
        for model in args.models if at == 1 else [best_model(results, args)]:
            results.ensure(torch, f"torch:{model}", TORCH[model], model, at)
    print_table(results, args)


if __name__ == "__main__":
    main()
