#!/usr/bin/env python3
"""How well pruned networks go on learning. A new GPT-2 trains for --steps steps on --text. Then it is pruned at each of
--densities, once by magnitude (axonn prune) and once by a random mask that keeps as many elements of each matrix. The
pruned models train on for --more steps with train.sparse, and beside them the model itself for as many.

Prints a markdown table of the perplexities on validation text (2 % of the files), and draws their curves in
DIR/pruned.svg. Runs that are finished in DIR are not repeated, so the same command continues after an interruption.
Needs nothing but the axonn program and text.
Usage:  python3 bench/pruned.py [--densities 0.5,0.2,0.1] [--steps 2500] [--more 600] [KEY=VALUE...]
KEY=VALUE: keys of the configuration, for all runs.
"""

import argparse
import array
import json
import pathlib
import random
import shutil
import struct

from chart import COLOURS, chart
from memorize import call
from scaling import positive

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the configuration, for all runs")
    p.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    p.add_argument("--dir", type=pathlib.Path, default=ROOT / "build" / "pruned", help="for runs, default build/pruned")
    p.add_argument("--text", default="/usr/include", help="directory of text files, default %(default)s")
    p.add_argument("--vocab", type=positive, default=2048, help="size of the tokenizer, default %(default)s")
    p.add_argument("--layers", type=positive, default=4, help="default %(default)s")
    p.add_argument("--hidden", type=positive, default=128, help="default %(default)s")
    p.add_argument("--heads", type=positive, default=4, help="default %(default)s")
    p.add_argument("--seq", type=positive, default=128, help="tokens of a row, default %(default)s")
    p.add_argument("--batch", type=positive, default=4, help="rows of a step, default %(default)s")
    p.add_argument("--steps", type=positive, default=2500, help="before pruning, default %(default)s")
    p.add_argument("--more", type=positive, default=600, help="steps after it, default %(default)s")
    p.add_argument("--densities", default="0.5,0.2,0.1", help="default %(default)s")
    p.add_argument("--precision", default="fp32", help="default %(default)s")
    args = p.parse_intermixed_args()
    args.axonn, args.dir = args.axonn.resolve(), args.dir.resolve()
    args.densities = [float(word) for word in args.densities.split(",")]
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


def train(args, run, steps, *keys):
    """Trains run.dir=RUN to its end, unless that was done. Returns its evaluations: (step, perplexity)."""
    words = [f"run.dir={run}", f"train.steps={steps}", f"model.seq_len={args.seq}", "data.train=train.tok",
             "data.valid=valid.tok", "data.tokenizer=tok", f"train.global_batch={args.batch}",
             f"train.micro_batch={args.batch}", f"train.precision={args.precision}", "optim.warmup=4%",
             "run.checkpoint_interval=0", *keys, *args.keys]
    if not (args.dir / run / "ckpt" / f"step-{steps}").exists():
        (args.dir / "gpt.yaml").write_text("run: {keep_latest: 1}\n")
        call(args, "train", "gpt.yaml", *words)
    rows = [json.loads(line) for line in (args.dir / run / "metrics.jsonl").open()]
    return [(row["step"], row["perplexity"]) for row in rows if "perplexity" in row]


# ---- random masks ----------------------------------------------------------------------------------------------------


def mask(w, columns, first, width, density, draw):
    """Sets all but random elements of a matrix to zero: of columns first, ..., first + width - 1 of the array w."""
    count = len(w) // columns * width
    keep = set(draw.sample(range(count), round(density * count)))
    for i in range(count):
        if i not in keep:
            w[i // width * columns + first + i % width] = 0.0


def mask_file(path, density, draw):
    raw = bytearray(path.read_bytes())
    data = 8 + struct.unpack_from("<Q", raw)[0]
    for name, entry in sorted(json.loads(raw[8:data]).items()):
        if not name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            continue
        (_rows, columns), (begin, end) = entry["shape"], (data + x for x in entry["data_offsets"])
        w, parts = array.array("f", bytes(raw[begin:end])), 3 if ".c_attn." in name else 1  # q, k and v are one array
        for first in range(0, columns, columns // parts):
            mask(w, columns, first, columns // parts, density, draw)
        raw[begin:end] = w.tobytes()
    path.write_bytes(raw)


def prune(args, model, kind, density):
    """Makes the pruned model DIR/KIND-DENSITY, unless it exists. Returns its name."""
    name = f"{kind}-{density:g}"
    if (args.dir / name).exists():
        return name
    if kind == "magnitude":
        call(args, "prune", model, "--density", density, "--out", name)
    else:
        shutil.rmtree(args.dir / f"{name}.part", ignore_errors=True)
        part = shutil.copytree(args.dir / model, args.dir / f"{name}.part", ignore=shutil.ignore_patterns("training"))
        draw = random.Random(1)
        for path in sorted(part.glob("*.safetensors")):
            mask_file(path, density, draw)
        part.rename(args.dir / name)
    return name


# ---- results ---------------------------------------------------------------------------------------------------------


def picture(args, curves):
    """Draws perplexities, on a logarithmic scale, over the steps since pruning: from the first evaluation after it on,
    because a random mask alone may raise them by many powers of ten."""
    drawn = {name: (curve[1:], COLOURS[(i + 1) // 2 % len(COLOURS)], name.startswith("random"))
             for i, (name, curve) in enumerate(curves.items())}
    return chart((drawn, "steps after pruning; perplexity on validation text", True, args.more, (None, None)))


def main():
    args = arguments()
    make_data(args)
    shape = [f"model.layers={args.layers}", f"model.hidden={args.hidden}", f"model.heads={args.heads}",
             f"model.vocab={args.vocab}"]
    train(args, "base", args.steps, "model.family=gpt2", *shape, "optim.lr=4e-3", "run.eval_interval=0",
          "run.eval_batches=100")
    model, curves = f"base/ckpt/step-{args.steps}", {}
    on = ["optim.lr=2e-3", "train.seed=7", "run.eval_start=true", f"run.eval_interval={max(args.more // 4, 1)}",
          "run.eval_batches=50"]
    curves["dense"] = train(args, "run-dense", args.more, f"model.from={model}", *on)
    for density in args.densities:
        for kind in ("magnitude", "random"):
            pruned = prune(args, model, kind, density)
            curves[f"{kind} {density:g}"] = train(args, f"run-{pruned}", args.more, f"model.from={pruned}",
                                                  "train.sparse=true", *on)
    steps = [step for step, _p in curves["dense"]]
    print(f"\n| perplexity after steps | {' | '.join(map(str, steps))} | of dense |\n|---|{'---|' * (len(steps) + 1)}")
    for name, curve in curves.items():
        row = " | ".join(f"{p:.2f}" if p < 1e4 else f"{p:.0e}" for _step, p in curve)
        print(f"| {name} | {row} | {curve[-1][1] / curves['dense'][-1][1]:.3f} |")
    (args.dir / "pruned.svg").write_text(picture(args, curves))
    print(f"\n{args.dir / 'pruned.svg'}")


if __name__ == "__main__":
    main()
