#!/usr/bin/env python3
"""What the goldfish loss does to memorization and to learning. Two experiments:

  extreme   A new model trains for --epochs epochs on --passages passages of --length tokens and on nothing else: once
            with the plain loss, once with data.goldfish.k = K for each of --k, with the same steps and learning rates.
            Then it is given the beginning of each passage and completes it greedily. A passage is recalled if the last
            --suffix tokens are right. An untrained model is the control. The passages are taken from the files of
            --text, each from another file; no window of 50 tokens occurs twice in them.
  equal     Models train on --text with the plain loss for --steps steps, and with data.goldfish.k = K for K/(K-1) as
            many, so that both learn from equally many targets; each with --seeds seeds. Compares losses on validation
            text (a tenth of the files), which evaluations compute over all targets.

Prints a markdown table and writes DIR/<experiment>.json; `extreme` also draws the recall over the epochs in
DIR/extreme.svg. Runs that are finished in DIR are not repeated, so the same command continues after an interruption.
Needs nothing but the axonn program and text.
Usage:  python3 bench/memorize.py extreme [--k 4] [--passages 100] [--epochs 100] [--batch 10] [KEY=VALUE...]
        python3 bench/memorize.py equal [--k 4] [--steps 1000] [--seeds 3] [KEY=VALUE...]
KEY=VALUE: keys of the configuration, for all runs.
"""

import argparse
import array
import json
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys

from scaling import positive

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIQUE = 50  # tokens of a window that must not occur twice in the passages


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("experiment", choices=["extreme", "equal"])
    p.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the configuration, for all runs")
    p.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    p.add_argument("--dir", type=pathlib.Path, help="directory for runs, default build/memorize")
    p.add_argument("--text", default="/usr/include", help="directory of text files, default %(default)s")
    p.add_argument("--include", default="*.h", help="names of its files, default %(default)s")
    p.add_argument("--vocab", type=positive, default=4096, help="size of the tokenizer, default %(default)s")
    p.add_argument("--layers", type=positive, default=6, help="default %(default)s")
    p.add_argument("--hidden", type=positive, default=384, help="default %(default)s: 12 M parameters in all")
    p.add_argument("--heads", type=positive, default=6, help="default %(default)s")
    p.add_argument("--batch", type=positive, help="rows of a step; default: 10 (extreme), 16 (equal)")
    p.add_argument("--lr", type=float, help="learning rate; default: 1e-3, constant (extreme) or cosine (equal)")
    p.add_argument("--k", default="4", help="numbers K of the goldfish loss, with commas; default %(default)s")
    p.add_argument("--passages", type=positive, default=100, help="extreme: default %(default)s")
    p.add_argument("--length", type=positive, default=256, help="extreme: tokens of a passage, default %(default)s")
    p.add_argument("--suffix", type=positive, default=50, help="extreme: tokens to recall, default %(default)s")
    p.add_argument("--epochs", type=positive, default=100, help="extreme: default %(default)s")
    p.add_argument("--every", type=positive, default=10, help="extreme: epochs between two tests, default %(default)s")
    p.add_argument("--seq", type=positive, default=256, help="equal: tokens of a sample, default %(default)s")
    p.add_argument("--steps", type=positive, default=1000, help="equal: steps of the plain loss, default %(default)s")
    p.add_argument("--seeds", type=positive, default=3, help="equal: default %(default)s")
    args = p.parse_intermixed_args()
    args.axonn = args.axonn.resolve()
    args.dir = (args.dir or ROOT / "build" / "memorize").resolve()
    args.batch = args.batch or {"extreme": 10, "equal": 16}[args.experiment]
    args.k = [int(k) for k in args.k.split(",")]
    if any(k < 2 for k in args.k):
        p.error("--k: at least 2")
    if args.suffix >= args.length or (args.experiment == "extreme" and args.length < UNIQUE):
        p.error(f"--length must be more than --suffix, and at least {UNIQUE}")
    if args.experiment == "extreme" and args.passages % args.batch:
        p.error("--passages must be a multiple of --batch, so that epochs end with a step")
    if not shutil.which(args.axonn):
        p.error(f"{args.axonn} is missing: cmake --preset release && cmake --build build -j")
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def call(args, *words):
    """Runs the program in the directory of the runs. Returns what it writes to stdout."""
    done = subprocess.run([args.axonn, *map(str, words)], cwd=args.dir, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"axonn {' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def make_data(args):
    """Makes DIR/tok, DIR/train.tok and DIR/valid.tok, unless they exist."""
    text = ["--input", pathlib.Path(args.text).resolve(), "--include", args.include]
    if not (args.dir / "tok").exists():
        call(args, "tok", "train", *text, "--vocab", args.vocab, "--out", "tok")
    if not (args.dir / "train.tok").exists():
        call(args, "data", "build", *text, "--tokenizer", "tok", "--out", "train.tok", "--valid", "valid.tok",
             "--valid-fraction", "0.1", "--dedup")


def train(args, run, seq, *keys):
    """Trains run.dir=RUN, or goes on with it. Returns its rows of metrics."""
    (args.dir / "gpt.yaml").write_text("model: {family: gpt2}\n")
    words = dict(key.split("=", 1) for key in [
        f"run.dir={run}", f"model.layers={args.layers}", f"model.hidden={args.hidden}",
        f"model.heads={args.heads}", f"model.vocab={args.vocab}", f"model.seq_len={seq}", "data.tokenizer=tok",
        f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}", *keys, *args.keys])
    call(args, "train", "gpt.yaml", *[f"{key}={value}" for key, value in words.items()])
    return [json.loads(line) for line in (args.dir / run / "metrics.jsonl").open()]


def losses_of(rows):
    return [row["loss"] for row in rows if "loss" in row]


def write_results(args, results):
    path = args.dir / f"{args.experiment}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{path}")


# ---- the extreme test ------------------------------------------------------------------------------------------------


def read_documents(path):
    """Returns the documents of a packed token file, as lists of ids (docs/training.md has the format)."""
    raw = path.read_bytes()
    width, tokens, documents = struct.unpack_from("<4xI", raw, 8)[0], *struct.unpack_from("<QQ", raw, 16)
    ids = array.array({2: "H", 4: "I"}[width], raw[256:256 + tokens * width])
    starts = struct.unpack_from(f"<{documents + 1}Q", raw, struct.unpack_from("<Q", raw, 72)[0])
    return [ids[a:b].tolist() for a, b in zip(starts, starts[1:])]


def choose_passages(args):
    """Returns passages of different files. No window of UNIQUE tokens occurs twice in them."""
    chosen, seen, draw = [], set(), random.Random(1)
    documents = [d for d in read_documents(args.dir / "train.tok") if len(d) > args.length]
    draw.shuffle(documents)
    for document in documents:
        start = draw.randrange(len(document) - args.length)
        passage = document[start:start + args.length]
        windows = [tuple(passage[i:i + UNIQUE]) for i in range(args.length - UNIQUE + 1)]
        if len(set(windows)) == len(windows) and not seen.intersection(windows):
            seen.update(windows)
            chosen.append(passage)
        if len(chosen) == args.passages:
            return chosen
    sys.exit(f"{args.text} has only {len(chosen)} such passages of {args.length} tokens: give more --text")


def write_megatron(stem, documents):
    """Writes documents in Megatron-LM's format: NAME.bin with u16 tokens, and its index NAME.idx."""
    n, starts = len(documents), [0]
    for d in documents:
        starts.append(starts[-1] + 2 * len(d))
    stem.with_suffix(".bin").write_bytes(b"".join(array.array("H", d).tobytes() for d in documents))
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1) + struct.pack(f"<{n}i", *map(len, documents)) +
        struct.pack(f"<{n}q", *starts[:-1]) + struct.pack(f"<{n + 1}q", *range(n + 1)))


def recall(args, model, passages):
    """Returns how many passages the model recalls, and the mean share of right tokens before the first wrong one."""
    exact, shares = 0, []
    for passage in passages:
        prompt, want = passage[:-args.suffix], passage[-args.suffix:]
        got = json.loads(call(args, "generate", model, "--tokens", ",".join(map(str, prompt)), "--max-tokens",
                              args.suffix, "--temperature", 0, "--ignore-end", "--json"))["tokens"]
        right = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
        exact += right == len(want)
        shares.append(right / len(want))
    return exact, statistics.mean(shares)


def extreme(args):
    make_data(args)
    passages = choose_passages(args)
    write_megatron(args.dir / "passages", passages)
    per_epoch = args.passages // args.batch
    keys = ["data.train=passages.idx", "data.pack=documents", f"train.steps={args.epochs * per_epoch}",
            f"optim.lr={args.lr or 1e-3}", "optim.schedule=constant", f"optim.warmup={per_epoch}",
            "optim.weight_decay=0", f"run.checkpoint_interval={args.every * per_epoch}", "run.keep_latest=0"]
    results = {"arguments": {k: str(v) for k, v in vars(args).items()}, "runs": {}}
    # With a learning rate of 0, one step leaves the weights as they were drawn.
    train(args, "untrained", args.length, *keys, "train.steps=1", "optim.lr=0")
    results["untrained"] = recall(args, "untrained/ckpt/step-1", passages)
    for k in [0, *args.k]:
        run = f"extreme-k{k}"
        rows = train(args, run, args.length, *keys, f"data.goldfish.k={k}")
        tests = {}
        for step in range(args.every * per_epoch, args.epochs * per_epoch + 1, args.every * per_epoch):
            tests[step // per_epoch] = recall(args, f"{run}/ckpt/step-{step}", passages)
        results["runs"][k] = {"recall": tests, "loss": losses_of(rows)}
    write_results(args, results)
    print_extreme(args, results)
    (args.dir / "extreme.svg").write_text(picture(args, results["runs"]))


def print_extreme(args, results):
    print(f"\n{args.passages} passages of {args.length} tokens, {args.epochs} epochs, batches of {args.batch}; recalled: "
          f"the last {args.suffix} tokens, greedy\n")
    print("| loss | recalled | right before the first mistake | training loss, last epoch |\n|---|---|---|---|")
    exact, share = results["untrained"]
    print(f"| untrained | {exact} of {args.passages} | {share:.1%} | |")
    for k, run in results["runs"].items():
        exact, share = list(run["recall"].values())[-1]
        last = statistics.mean(run["loss"][-(args.passages // args.batch):])
        print(f"| {f'goldfish, k = {k}' if k else 'plain'} | {exact} of {args.passages} | {share:.1%} | {last:.4f} |")


def picture(args, runs):
    """Draws the number of recalled passages over the epochs."""
    width, height, left, top, colours = 640, 400, 60, 20, ["#c0392b", "#2471a3", "#1e8449", "#b7950b", "#7d3c98"]
    def at(epoch, count):
        return (f"{left + epoch / args.epochs * (width - left - 20):.1f},"
                f"{height - 50 - count / args.passages * (height - 50 - top):.1f}")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="13"><rect width="{width}" height="{height}" fill="white"/>']
    for i in range(5):
        (x0, y), x1 = at(0, args.passages * i / 4).split(","), width - 20
        out.append(f'<path d="M{x0} {y} H{x1}" stroke="#ddd"/><text x="{left - 8}" y="{float(y) + 4}" '
                   f'text-anchor="end">{args.passages * i / 4:g}</text>')
        x = at(args.epochs * i / 4, 0).split(",")[0]
        out.append(f'<text x="{x}" y="{height - 30}" text-anchor="middle">{args.epochs * i / 4:g}</text>')
    for i, (k, run) in enumerate(runs.items()):
        points = " ".join(at(e, r[0]) for e, r in [(0, (0, 0)), *run["recall"].items()])
        colour = colours[i % len(colours)]
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/><text x="{left + 12}" '
                   f'y="{top + 18 * (i + 1)}" fill="{colour}">{f"goldfish, k = {k}" if k else "plain loss"}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">epochs; passages recalled, of '
               f'{args.passages}</text></svg>\n')
    return "\n".join(out)


# ---- equal supervised tokens -----------------------------------------------------------------------------------------


def equal(args):
    make_data(args)
    results = {"arguments": {k: str(v) for k, v in vars(args).items()}, "runs": {}}
    for k in [0, *args.k]:
        steps = round(args.steps * k / (k - 1)) if k else args.steps
        runs = []
        for seed in range(1, args.seeds + 1):
            rows = train(args, f"equal-k{k}-{seed}", args.seq, "data.train=train.tok", "data.valid=valid.tok",
                         f"train.steps={steps}", f"train.seed={seed}", f"optim.lr={args.lr or 1e-3}",
                         "optim.warmup=2%", f"optim.min_lr={(args.lr or 1e-3) / 10}", "run.eval_interval=0",
                         "run.keep_latest=1", f"data.goldfish.k={k}")
            evaluated = [row for row in rows if "eval_loss" in row][-1]
            trained = [row for row in rows if "loss" in row][-1]
            runs.append({"seed": seed, "steps": steps, "targets": trained["tokens"], "eval_loss": evaluated["eval_loss"]})
        results["runs"][k] = runs
    write_results(args, results)
    print(f"\n{args.layers} x {args.hidden}, batches of {args.batch} x {args.seq}, {args.seeds} seeds\n")
    print("| loss | steps | targets learned from | validation loss: mean | of the seeds |\n|---|---|---|---|---|")
    for k, runs in results["runs"].items():
        losses = [r["eval_loss"] for r in runs]
        print(f"| {f'goldfish, k = {k}' if k else 'plain'} | {runs[0]['steps']} | "
              f"{statistics.mean(r['targets'] for r in runs):.0f} | {statistics.mean(losses):.4f} | "
              f"{', '.join(f'{x:.4f}' for x in losses)} |")


if __name__ == "__main__":
    arguments_given = arguments()
    {"extreme": extreme, "equal": equal}[arguments_given.experiment](arguments_given)
