#!/usr/bin/env python3
"""What a mixture of experts learns. Trains a dense Qwen 3 on --text for --steps steps, and beside it qwen3_moe models
with the same active parameters: in every second block --experts experts of the dense block's size, of which each token
chooses one. One of them has moe.balance = --balance, one has 0, and one has moe.capacity = --capacity as well.

Prints a markdown table of losses on validation text (2 % of the files), and of means of the last tenth of the steps:
expert_load (largest over mean load of the experts of a step, in the worst layer) and expert_dropped (share of the
choices without a place). Draws all three in DIR/experts.svg. Runs
that are finished in DIR are not repeated, so the same command continues after an interruption. Needs nothing but the
axonn program and text.
Usage:  python3 bench/mixture.py [--experts 8] [--steps 2000] [--balance 0.01] [--capacity 1.25] [KEY=VALUE...]
KEY=VALUE: keys of the configuration, for all runs.
"""

import argparse
import json
import pathlib
import shutil
import statistics

from chart import COLOURS, chart
from memorize import call
from scaling import positive

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the configuration, for all runs")
    p.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    p.add_argument("--dir", type=pathlib.Path, default=ROOT / "build" / "mixture", help="for runs, default build/mixture")
    p.add_argument("--text", default="/usr/include", help="directory of text files, default %(default)s")
    p.add_argument("--vocab", type=positive, default=2048, help="size of the tokenizer, default %(default)s")
    p.add_argument("--layers", type=positive, default=4, help="default %(default)s")
    p.add_argument("--hidden", type=positive, default=128, help="default %(default)s")
    p.add_argument("--heads", type=positive, default=4, help="default %(default)s")
    p.add_argument("--ffn", type=positive, default=384, help="of a dense block and of an expert, default %(default)s")
    p.add_argument("--experts", type=positive, default=8, help="default %(default)s")
    p.add_argument("--balance", type=float, default=0.01, help="default %(default)s")
    p.add_argument("--capacity", type=float, default=1.25, help="default %(default)s")
    p.add_argument("--seq", type=positive, default=128, help="tokens of a row, default %(default)s")
    p.add_argument("--batch", type=positive, default=8, help="rows of a step, default %(default)s")
    p.add_argument("--steps", type=positive, default=2000, help="default %(default)s")
    p.add_argument("--lr", type=float, default=2e-3, help="default %(default)s")
    args = p.parse_intermixed_args()
    args.axonn, args.dir = args.axonn.resolve(), args.dir.resolve()
    if not shutil.which(args.axonn):
        p.error(f"{args.axonn} is missing: cmake --preset release && cmake --build build -j")
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def make_data(args):
    """Makes DIR/tok, DIR/train.tok and DIR/valid.tok, unless they exist."""
    text = ["--input", pathlib.Path(args.text).resolve()]
    if not (args.dir / "tok").exists():
        call(args, "tok", "train", *text, "--vocab", args.vocab, "--out", "tok")
    if not (args.dir / "train.tok").exists():
        call(args, "data", "build", *text, "--tokenizer", "tok", "--out", "train.tok", "--valid", "valid.tok",
             "--valid-fraction", "0.02")


def train(args, run, *keys):
    """Trains run.dir=RUN to its end, unless that was done. Returns the rows of its metrics."""
    if not (args.dir / run / "ckpt" / f"step-{args.steps}").exists():
        (args.dir / "train.yaml").write_text("run: {keep_latest: 1}\n")
        call(args, "train", "train.yaml", f"run.dir={run}", f"train.steps={args.steps}", f"model.seq_len={args.seq}",
             f"model.layers={args.layers}", f"model.hidden={args.hidden}", f"model.heads={args.heads}",
             f"model.ffn={args.ffn}", f"model.vocab={args.vocab}", "data.train=train.tok", "data.valid=valid.tok",
             "data.tokenizer=tok", f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}",
             f"optim.lr={args.lr}", "optim.warmup=4%", f"run.eval_interval={max(args.steps // 10, 1)}",
             "run.eval_batches=50", "run.log_interval=1", "run.checkpoint_interval=0", *keys, *args.keys)
    return [json.loads(line) for line in (args.dir / run / "metrics.jsonl").open()]


def means(args, rows, key):
    """Means of a row's entry over twentieths of the steps: points (last step, mean)."""
    width = max(args.steps // 20, 1)
    parts = {}
    for row in rows:
        if key in row:
            parts.setdefault(-(-row["step"] // width) * width, []).append(row[key])
    return [(step, statistics.fmean(values)) for step, values in sorted(parts.items())]


def main():
    args = arguments()
    make_data(args)
    sparse = ["model.family=qwen3_moe", f"model.experts={args.experts}", "model.top_k=1", "model.renormalize=false",
              f"model.expert_ffn={args.ffn}", "model.sparse_step=2"]
    runs = {"dense": train(args, "dense", "model.family=qwen3"),
            "experts": train(args, "experts", *sparse, f"moe.balance={args.balance}"),
            "experts, no balance": train(args, "no-balance", *sparse, "moe.balance=0"),
            f"experts, capacity {args.capacity}": train(args, f"capacity-{args.capacity}", *sparse,
                                                        f"moe.balance={args.balance}", f"moe.capacity={args.capacity}")}
    losses = {name: [(row["step"], row["eval_loss"]) for row in rows if "eval_loss" in row] for name, rows in runs.items()}
    routers = {key: {name: points for name, rows in runs.items() if (points := means(args, rows, key))}
               for key in ("expert_load", "expert_dropped")}
    steps = [step for step, _loss in losses["dense"]]
    print(f"\n| validation loss after steps | {' | '.join([*map(str, steps), *routers])} |\n|---|"
          f"{'---|' * (len(steps) + len(routers))}")
    for name, curve in losses.items():
        ends = [f"{statistics.fmean(v for _step, v in points[name][-2:]):.2f}" if name in points else ""
                for points in routers.values()]
        print(f"| {name} | {' | '.join([*(f'{loss:.3f}' for _step, loss in curve), *ends])} |")
    style = {name: (COLOURS[i], False) for i, name in enumerate(runs)}
    drawn = [{name: (curve, *style[name]) for name, curve in curves.items()} for curves in (losses, *routers.values())]
    (args.dir / "experts.svg").write_text(chart(
        (drawn[0], "steps; loss on validation text", False, args.steps, (None, None)),
        (drawn[1], "steps; largest load of an expert over the mean", True, args.steps, (1, None)),
        (drawn[2], "steps; share of choices without a place", False, args.steps, (0, None))))
    print(f"\n{args.dir / 'experts.svg'}")


if __name__ == "__main__":
    main()
