#!/usr/bin/env python3
"""What models learn by heart, and what the goldfish loss does to it and to learning. Four experiments:

  extreme   A new model trains for --epochs epochs on --passages passages of --length tokens and on nothing else: once
            with the plain loss, once with data.goldfish.k = K for each of --k, with the same steps and learning rates.
            Then it is given the beginning of each passage and completes it greedily. A passage is recalled if the last
            --suffix tokens are right; ROUGE-L says how much of their words is right, in order. An untrained model is the
            control. The passages are taken from the files of
            --text, each from another file; no window of 50 tokens occurs twice in them.
  equal     Models train on --text with the plain loss for --steps steps, and with data.goldfish.k = K for K/(K-1) as
            many, so that both learn from equally many targets; each with --seeds seeds. Compares losses on validation
            text (a tenth of the files), which evaluations compute over all targets.
  curve     How much of a text models recall, by size and by number of repetitions (Pre-training at scale and memorization,
            arXiv 2502.08145, section 5, in small). Documents are eligible if no window of 50 of their first --length
            tokens occurs elsewhere in the text. --trials disjoint sets of buckets of --bucket documents are chosen by a
            hash of the documents' tokens. Phase 1 trains on the rest for --tokens-1 tokens. Phase 2 goes on from its
            checkpoint: each bucket is read as often as one of --repeat says, and as many samples of the rest are mixed
            in; once with the plain loss, once for each of --k. The learning rate of each size is the one of --scan with
            which the plain loss recalls most of buckets that serve for nothing else. Recalled is a document whose last
            --suffix of --length tokens greedy decoding reproduces (axonn recall). Also measured: the loss on these
            tokens, before and after phase 2; ROUGE-L of what greedy decoding writes in their place; the validation loss (a
            tenth of the files); for each k how many of the tokens that the goldfish loss keeps (share p) and drops (share q)
            are the likeliest, beside the share of documents recalled: independent tokens would give p^(n(k-1)/k) q^(n/k)
            (arXiv 2406.10209, section 6).
            With --config, the paper's own scale: one of the configurations in bench/memorize, its number of ranks, and
            its buckets and steps as defaults; --weights is the model that the paper trains on.
  cost      The time of `axonn recall` beside that of `axonn eval` on the same rows, --passages of --length tokens: medians
            of five runs of each, in turns.

Prints a markdown table and writes DIR/<experiment>.json; `extreme` and `curve` also draw DIR/<experiment>.svg. Runs that are finished in DIR are not repeated, so the same command continues after an interruption.
Needs nothing but the axonn program and text.
Usage:  python3 bench/memorize.py extreme [--k 4] [--passages 100] [--epochs 100] [--batch 10] [KEY=VALUE...]
        python3 bench/memorize.py equal [--k 4] [--steps 1000] [--seeds 3] [KEY=VALUE...]
        python3 bench/memorize.py curve [--sizes 4x128,6x256,8x448] [--trials 3,3,1] [--k 2] [KEY=VALUE...]
        python3 bench/memorize.py cost [--passages 100] [KEY=VALUE...]
        python3 bench/memorize.py curve --config bench/memorize/llama-2-7b.yaml --weights DIR --text DIR --include '*.txt'
                                        --k 2 [--launch 'srun -n 8']
KEY=VALUE: keys of the configuration, for all runs.
"""

import argparse
import array
import hashlib
import itertools
import json
import math
import operator
import pathlib
import random
import re
import resource
import shlex
import shutil
import statistics
import struct
import subprocess
import sys
import time

from chart import COLOURS, chart
from scaling import positive

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIQUE = 50  # tokens of a window that must not occur twice in the passages, or elsewhere in the text
WINDOW = 13  # data.goldfish.window
# Defaults with --config: buckets and steps of section 5 of arXiv 2502.08145.
PAPER = {"length": 2048, "batch": 128, "bucket": 200, "repeat": "0,1,4,6", "trials": "5", "lr": 3e-4, "scan": "3e-4",
         "tokens_1": 50 * 128 * 2047, "steps_2": 50}


def layers_and_width(text):
    layers, width = text.split("x")
    return int(layers), int(width)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("experiment", choices=["extreme", "equal", "curve", "cost"])
    p.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the configuration, for all runs")
    p.add_argument("--axonn", type=pathlib.Path, default=ROOT / "build" / "axonn")
    p.add_argument("--dir", type=pathlib.Path, help="directory for runs, default build/memorize")
    p.add_argument("--text", default="/usr/include", help="directory of text files, default %(default)s")
    p.add_argument("--include", default="*.h", help="names of its files, default %(default)s")
    p.add_argument("--vocab", type=positive, default=4096, help="size of the tokenizer, default %(default)s")
    p.add_argument("--layers", type=positive, default=6, help="default %(default)s")
    p.add_argument("--hidden", type=positive, default=384, help="default %(default)s: 12 M parameters in all")
    p.add_argument("--heads", type=positive, default=6, help="default %(default)s")
    p.add_argument("--batch", type=positive, help="rows of a step; default: 10 (extreme), 16 (equal), 8 (curve)")
    p.add_argument("--lr", type=float, help="learning rate; default: 1e-3, constant (extreme) or cosine (equal)")
    p.add_argument("--k", default="4", help="numbers K of the goldfish loss, with commas; default %(default)s")
    p.add_argument("--passages", type=positive, default=100, help="extreme, cost: default %(default)s")
    p.add_argument("--length", type=positive, default=256, help="all but equal: tokens of a passage, default %(default)s")
    p.add_argument("--suffix", type=positive, default=50, help="all but equal: tokens to recall, default %(default)s")
    p.add_argument("--epochs", type=positive, default=100, help="extreme: default %(default)s")
    p.add_argument("--every", type=positive, default=10, help="extreme: epochs between two tests, default %(default)s")
    p.add_argument("--seq", type=positive, default=256, help="equal: tokens of a sample, default %(default)s")
    p.add_argument("--steps", type=positive, default=1000, help="equal: steps of the plain loss, default %(default)s")
    p.add_argument("--seeds", type=positive, default=3, help="equal: default %(default)s")
    p.add_argument("--sizes", default="4x128,6x256,8x448", help="curve: layers x width, default %(default)s")
    p.add_argument("--trials", default="3,3,1", help="curve: number of trials of each size, default %(default)s")
    p.add_argument("--bucket", type=positive, default=32, help="curve: documents of a bucket, default %(default)s")
    p.add_argument("--repeat", default="0,1,4,16,64,128", help="curve: repetitions of the buckets, default %(default)s")
    p.add_argument("--tokens-1", type=positive, default=1000000, help="curve: tokens of phase 1, default %(default)s")
    p.add_argument("--scan", default="1e-3,2e-3,3e-3", help="curve: learning rates to choose from, default %(default)s")
    p.add_argument("--scan-bucket", type=positive, default=8,
                   help="curve: documents of a bucket for this choice, default %(default)s")
    p.add_argument("--toy-k", default="", help="curve: more numbers K, with commas, for one trial of the first size")
    p.add_argument("--steps-2", type=positive, help="curve: steps of phase 2; default: twice those that the buckets fill")
    p.add_argument("--config", type=pathlib.Path, help="curve: a file of bench/memorize, in place of --sizes")
    p.add_argument("--weights", type=pathlib.Path, help="with --config: the model with which training begins")
    p.add_argument("--launch", type=shlex.split, default=[],
                   help="with --config: words before axonn that start it on all ranks, such as 'srun -n 8'; default: "
                        "axonn starts them on this host")
    if any(word.startswith("--config") for word in sys.argv):
        p.set_defaults(**PAPER)
    args = p.parse_intermixed_args()
    args.axonn = args.axonn.resolve()
    args.dir = (args.dir or ROOT / "build" / "memorize").resolve()
    args.batch = args.batch or {"extreme": 10, "equal": 16, "curve": 8}.get(args.experiment, 8)
    args.config, args.weights = (path and path.resolve() for path in (args.config, args.weights))
    for name, form in (("k", int), ("toy_k", int), ("repeat", int), ("trials", int), ("scan", float),
                       ("sizes", layers_and_width)):
        try:
            setattr(args, name, [form(part) for part in getattr(args, name).split(",") if part])
        except ValueError:
            p.error(f"--{name}: {getattr(args, name)} is no list like {p.get_default(name)}")
    if any(k < 2 for k in args.k + args.toy_k):
        p.error("--k, --toy-k: at least 2")
    if args.weights and not args.config or args.config and args.experiment != "curve":
        p.error("--weights needs --config, which is for curve")
    args.sizes = [args.config.stem] if args.config else args.sizes
    if len(args.trials) != len(args.sizes) or len(set(args.repeat)) < len(args.repeat):
        p.error("--trials: one number for each of --sizes; --repeat: each number once")
    if args.suffix >= args.length or (args.experiment != "equal" and args.length < UNIQUE):
        p.error(f"--length must be more than --suffix, and at least {UNIQUE}")
    if args.experiment == "extreme" and args.passages % args.batch:
        p.error("--passages must be a multiple of --batch, so that epochs end with a step")
    if not shutil.which(args.axonn):
        p.error(f"{args.axonn} is missing: cmake --preset release && cmake --build build -j")
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def call(args, *words, launch=()):
    """Runs the program in the directory of the runs. Returns what it writes to stdout: a text of tokens may begin or end within
    a character."""
    done = subprocess.run([*launch, args.axonn, *map(str, words)], cwd=args.dir, capture_output=True, encoding="utf-8",
                          errors="replace")
    if done.returncode:
        sys.exit(f"axonn {' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def make_data(args):
    """Makes DIR/tok, DIR/train.tok and DIR/valid.tok, unless they exist."""
    text = ["--input", pathlib.Path(args.text).resolve(), "--include", args.include]
    if not (args.dir / tokenizer(args)).exists():
        call(args, "tok", "train", *text, "--vocab", args.vocab, "--out", "tok")
    if not (args.dir / "train.tok").exists():
        call(args, "data", "build", *text, "--tokenizer", tokenizer(args), "--out", "train.tok", "--valid", "valid.tok",
             "--valid-fraction", "0.1", "--dedup")


def tokenizer(args):
    return args.weights or "tok"


def base(args):
    """The text of the configuration that all runs begin with."""
    def model(found):
        key, path = ("from", args.weights) if args.weights else ("config", args.config.parent / found[1])
        return f"model: {{{key}: {json.dumps(str(path))}}}"
    return re.sub(r"^model: {config: (\S+)}", model, args.config.read_text(), flags=re.M)


def settings(args, *keys):
    """The values of all keys for runs: those given here, which those of the command line replace."""
    if args.config:
        found = re.search(r"^grid: {(.*)}$", args.config.read_text(), re.M)[1]
        keys = [*(f"grid.{size.replace(': ', '=')}" for size in found.split(", ")), *keys]
    return dict(key.split("=", 1) for key in [*keys, *args.keys])


def on_ranks(args, verb, *words):
    """Calls a verb on all ranks of the grid."""
    ranks = math.prod(int(n) for key, n in settings(args).items() if key.startswith("grid.") and key != "grid.expert")
    start = [] if args.launch or ranks == 1 else ["--ranks", ranks]
    return call(args, verb, *words, *start, launch=args.launch)


def train(args, run, seq, *keys):
    """Trains run.dir=RUN, or goes on with it. Returns its rows of metrics."""
    shape = [] if args.config else [f"model.layers={args.layers}", f"model.hidden={args.hidden}", f"model.heads={args.heads}",
                                    f"model.vocab={args.vocab}", f"train.micro_batch={args.batch}"]
    (args.dir / "gpt.yaml").write_text(base(args) if args.config else "model: {family: gpt2}\n")
    words = settings(args, f"run.dir={run}", *shape, f"model.seq_len={seq}", f"data.tokenizer={tokenizer(args)}",
                     f"train.global_batch={args.batch}", *keys)
    on_ranks(args, "train", "gpt.yaml", *[f"{key}={value}" for key, value in words.items()])
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


TYPES = {8: "H", 4: "i"}  # of Megatron-LM's codes, types of array


def write_megatron(stem, documents):
    """Writes documents in Megatron-LM's format: NAME.bin with the tokens, and its index NAME.idx."""
    code = 8 if max(map(max, documents)) < 1 << 16 else 4
    ids = [array.array(TYPES[code], d).tobytes() for d in documents]
    n, starts = len(documents), list(itertools.accumulate(map(len, ids), initial=0))
    stem.with_suffix(".bin").write_bytes(b"".join(ids))
    stem.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1) + struct.pack(f"<{n}i", *map(len, documents)) +
        struct.pack(f"<{n}q", *starts[:-1]) + struct.pack(f"<{n + 1}q", *range(n + 1)))


def read_megatron(stem):
    """Returns the documents that write_megatron wrote."""
    raw = stem.with_suffix(".idx").read_bytes()
    ids = array.array(TYPES[raw[17]], stem.with_suffix(".bin").read_bytes())
    n = struct.unpack_from("<Q", raw, 18)[0]
    lengths, at, out = struct.unpack_from(f"<{n}i", raw, 34), 0, []
    for length in lengths:
        out.append(ids[at:at + length].tolist())
        at += length
    return out


def how_to_compute(args):
    """The words that tell a verb for a model the grid, device and threads."""
    given = settings(args, *(["device=cuda"] if args.config else []))
    how = [f"{key}={value}" for key, value in given.items() if key.startswith("grid.")]
    for key in ("device", "threads"):
        how += [f"--{key}", given[key]] if key in given else []
    return how


def recall(args, model, *sources):
    """What the model recalls of the sources, DIR/NAME.idx each: the documents' results and the totals, by name."""
    lines = on_ranks(args, "recall", model, "--data", *(f"{name}.idx" for name in sources), "--tokens", args.suffix,
                     "--document-tokens", args.length, "--per-token", "--json", *how_to_compute(args)).splitlines()
    rows = [json.loads(line) for line in lines]
    return {name: ([r for r in rows if r["source"] == f"{name}.idx" and "document" in r],
                   next(r for r in rows if r["source"] == f"{name}.idx" and "documents" in r)) for name in sources}


def rouge_l(target, text):
    """ROUGE-L (Lin 2004) as the package rouge-score computes it: the F-measure of the longest common subsequence of
    words, which are letters and digits in lower case."""
    a, b = (re.findall("[a-z0-9]+", t.lower()) for t in (target, text))
    row = [0] * (len(b) + 1)  # of each beginning of b, the longest subsequence that the words of a so far share with it
    for word in a:
        before, row = row, [0]
        for j, other in enumerate(b):
            row.append(before[j] + 1 if word == other else max(before[j + 1], row[j]))
    return 2 * row[-1] / (len(a) + len(b)) if a and b else 0.0


TEXTS = {}  # of token ids


def decode(args, ids):
    words = ",".join(map(str, ids))
    if words not in TEXTS:
        TEXTS[words] = call(args, "tok", "decode", tokenizer(args), words)
    return TEXTS[words]


def completions(args, model, *sources):
    """The mean of ROUGE-L of what the model writes greedily in place of the last --suffix tokens of each document of the
    sources, by name."""
    documents = {f"{name}/{i}": ids for name in sources for i, ids in enumerate(read_megatron(args.dir / name))}
    stem = f"{model.replace('/', '-')}-{'-'.join(sources)}"
    with (args.dir / f"{stem}.prompts").open("w") as prompts:
        for i, ids in documents.items():
            print(json.dumps({"id": i, "tokens": ids[:-args.suffix]}), file=prompts)
    on_ranks(args, "generate", model, "--prompts", f"{stem}.prompts", "--out", f"{stem}.texts", "--max-tokens", args.suffix,
             "--temperature", 0, "--ignore-end", "--batch", 64, *how_to_compute(args))
    texts = {line["id"]: line["text"] for line in map(json.loads, (args.dir / f"{stem}.texts").open()) if "id" in line}
    scores = {i: rouge_l(decode(args, ids[-args.suffix:]), texts[i]) for i, ids in documents.items()}
    return {name: statistics.mean(score for i, score in scores.items() if i.startswith(f"{name}/")) for name in sources}


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
    def tested(model):
        totals = recall(args, model, "passages")["passages"][1]
        return totals["recalled"], totals["before_error"] / args.suffix, completions(args, model, "passages")["passages"]
    results["untrained"] = tested("untrained/ckpt/step-1")
    for k in [0, *args.k]:
        run = f"extreme-k{k}"
        rows = train(args, run, args.length, *keys, f"data.goldfish.k={k}")
        tests = {}
        for step in range(args.every * per_epoch, args.epochs * per_epoch + 1, args.every * per_epoch):
            tests[step // per_epoch] = tested(f"{run}/ckpt/step-{step}")
        results["runs"][k] = {"recall": tests, "loss": losses_of(rows)}
    write_results(args, results)
    print_extreme(args, results)
    (args.dir / "extreme.svg").write_text(picture(args, results["runs"]))


def print_extreme(args, results):
    print(f"\n{args.passages} passages of {args.length} tokens, {args.epochs} epochs, batches of {args.batch}; recalled: "
          f"the last {args.suffix} tokens, greedy\n")
    print("| loss | recalled | right before the first mistake | ROUGE-L | training loss, last epoch |\n|---|---|---|---|---|")
    exact, share, rouge = results["untrained"]
    print(f"| untrained | {exact} of {args.passages} | {share:.1%} | {rouge:.1%} | |")
    for k, run in results["runs"].items():
        exact, share, rouge = list(run["recall"].values())[-1]
        last = statistics.mean(run["loss"][-(args.passages // args.batch):])
        print(f"| {f'goldfish, k = {k}' if k else 'plain'} | {exact} of {args.passages} | {share:.1%} | {rouge:.1%} | {last:.4f} |")


def picture(args, runs):
    """Draws the number of recalled passages over the epochs."""
    curves = {f"goldfish, k = {k}" if k else "plain loss": ([(0, 0), *((e, r[0]) for e, r in run["recall"].items())],
                                                            COLOURS[i % len(COLOURS)], False)
              for i, (k, run) in enumerate(runs.items())}
    return chart((curves, f"epochs; passages recalled, of {args.passages}", False, args.epochs, (0, args.passages)))


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


# ---- recall by size and by number of repetitions ---------------------------------------------------------------------

PRIME, MASK = (1 << 61) - 1, (1 << 64) - 1


def windows(ids):
    """The hashes of the windows of UNIQUE tokens."""
    h, top = 0, pow(1000003, UNIQUE, PRIME)
    for i, token in enumerate(ids):
        h = (h * 1000003 + token + 1) % PRIME
        if i >= UNIQUE:
            h = (h - (ids[i - UNIQUE] + 1) * top) % PRIME
        if i >= UNIQUE - 1:
            yield h


def eligible(args, documents):
    """The documents whose first --length tokens have no window that occurs elsewhere, in the order of their hash."""
    heads = {i: d[:args.length] for i, d in enumerate(documents) if len(d) >= args.length}
    count = {w: 0 for head in heads.values() for w in windows(head)}
    for document in [*documents, *read_documents(args.dir / "valid.tok")]:
        for w in windows(document):
            if w in count:
                count[w] += 1
    unique = [i for i, head in heads.items() if all(count[w] == 1 for w in windows(head))]
    print(f"{len(documents)} documents, {len(heads)} of {args.length} tokens or more; dropped, because 50 of their tokens "
          f"occur elsewhere: {len(heads) - len(unique)}")
    return sorted(unique, key=lambda i: hashlib.sha256(repr(heads[i]).encode()).digest())


def make_buckets(args):
    """Writes DIR/bucket-TRIAL-REPEAT for each trial, DIR/scan-REPEAT, and DIR/rest."""
    documents = read_documents(args.dir / "train.tok")
    order = eligible(args, documents)
    trials = ["scan", *range(max(args.trials))]
    need = len(args.repeat) * sum(bucket_size(args, trial) for trial in trials)
    if need > len(order):
        sys.exit(f"{args.text} has {len(order)} eligible documents, and {len(trials) * len(args.repeat)} buckets need {need}: "
                 "give more --text, or smaller --bucket, fewer --trials or --repeat")
    left = iter(order)
    for trial in trials:
        for name in buckets_of(args, trial).values():
            write_megatron(args.dir / name,
                           [documents[i][:args.length] for i in itertools.islice(left, bucket_size(args, trial))])
    write_megatron(args.dir / "rest", [documents[i] for i in sorted(set(range(len(documents))) - set(order[:need]))])


def bucket_size(args, trial):
    return args.scan_bucket if trial == "scan" else args.bucket


def buckets_of(args, trial):
    return {r: f"bucket-{trial}-{r}" for r in args.repeat}


def name_of(size):
    return size if isinstance(size, str) else f"{size[0]}x{size[1]}"


def train_size(args, run, size, lr, *keys):
    shape = [] if args.config else [f"model.layers={size[0]}", f"model.hidden={size[1]}",
                                    f"model.heads={max(size[1] // 64, 2)}"]
    return train(args, run, args.length - 1, *shape, "data.pack=documents", "data.valid=valid.tok",
                 "run.eval_interval=0", "run.checkpoint_interval=0", "run.keep_latest=1", f"optim.lr={lr:g}", *keys)


def phase_1(args, size, seed):
    """Trains on the rest. Returns the path of the checkpoint, and its step."""
    run, steps = f"first-{name_of(size)}-{seed}", max(args.tokens_1 // (args.batch * (args.length - 1)), 1)
    train_size(args, run, size, args.lr or 1e-3, "data.train=rest.idx", f"train.steps={steps}", f"train.seed={seed}",
               f"optim.warmup={steps if args.config else min(steps // 10, 100)}", "optim.schedule=constant")
    return f"{run}/ckpt/step-{steps}", steps


def phase_2(args, size, seed, trial, k, lr):
    """Goes on from phase 1 with the buckets of the trial. Returns the path of the checkpoint before, that of the checkpoint
    after, and the rows of metrics."""
    before, steps = phase_1(args, size, seed)
    buckets = {r: name for r, name in buckets_of(args, trial).items() if r}
    end = steps + (args.steps_2 or 2 * -(-sum(r * bucket_size(args, trial) for r in buckets) // args.batch))
    sources = ", ".join([f"{{path: {name}.idx, epochs: {r}}}" for r, name in buckets.items()] + ["{path: rest.idx, weight: 1}"])
    run = f"second-{name_of(size)}-{trial}-{seed}-k{k}-lr{lr:g}"
    rows = train_size(args, run, size, lr, f"data.train=[{sources}]", f"train.resume={before}", f"train.steps={end}",
                      f"train.seed={seed}", f"optim.warmup={steps}", f"optim.min_lr={lr / 10:g}", f"data.goldfish.k={k}")
    return before, f"{run}/ckpt/step-{end}", rows


def choose_rate(args, size):
    """The learning rate with which the plain loss recalls most of the buckets for this purpose."""
    def recalled(lr):
        _before, after, _rows = phase_2(args, size, 1, "scan", 0, lr)
        totals = [t for _documents, t in recall(args, after, *buckets_of(args, "scan").values()).values()]
        number, loss = sum(t["recalled"] for t in totals), statistics.mean(t["loss"] for t in totals)
        print(f"{name_of(size)}, rate {lr:g}: {number} of {len(totals) * args.scan_bucket} recalled, loss {loss:.3f}")
        return number, -loss
    return max(args.scan, key=recalled) if len(args.scan) > 1 else args.scan[0]


def splitmix(h):
    z = (h + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def dropped(ids, k):
    """For each token of a document whether the hashed goldfish loss drops it (docs/training.md)."""
    factors = [pow(0x13C6EF372FE94F99, j, PRIME) for j in range(WINDOW)]
    return [i >= WINDOW and splitmix(sum(ids[i - 1 - j] * f for j, f in enumerate(factors)) % PRIME) < (1 << 64) // k
            for i in range(len(ids))]


def by_mask(args, documents, passages, k):
    """Of one bucket: the share of kept and of dropped tokens that are the likeliest, and the share of the places where
    recall ends that are a dropped token."""
    right, number, ends = [0, 0], [0, 0], []
    for document, ids in zip(documents, passages):
        drops = dropped(ids, k)[-args.suffix:]
        ranks = [t["rank"] for t in document["tokens"]]
        for drop, rank in zip(drops, ranks):
            number[drop] += 1
            right[drop] += rank == 0
        if document["before_error"] < args.suffix:
            ends.append(drops[document["before_error"]])
    p, q = (r / max(n, 1) for r, n in zip(right, number))
    n = args.suffix
    def length(ids):  # the mean number of tokens before an error, if they are right independently of each other
        drops = dropped(ids, k)[-n:]
        return sum(itertools.accumulate((q if drop else p for drop in drops), operator.mul))
    return {"p": p, "q": q, "independent": p**(n * (k - 1) / k) * q**(n / k), "all_kept": p**n,
            "independent_length": statistics.mean(map(length, passages)),
            "ends_at_dropped": sum(ends) / max(len(ends), 1)}


def one_trial(args, size, trial, k, lr):
    before, after, rows = phase_2(args, size, trial + 1, trial, k, lr)
    names, out = buckets_of(args, trial), {}
    first, last = recall(args, before, *names.values()), recall(args, after, *names.values())
    rouge = completions(args, after, *names.values())
    for r, name in names.items():
        totals = last[name][1]
        out[r] = {"recalled": totals["recalled"], "before_error": totals["before_error"], "loss": totals["loss"],
                  "change": totals["loss"] - first[name][1]["loss"], "rouge_l": rouge[name]}
        if k:
            out[r].update(by_mask(args, last[name][0], read_megatron(args.dir / name), k))
    return {"buckets": out, "valid": [row["eval_loss"] for row in rows if "eval_loss" in row][-1]}


def spearman(xs, ys):
    """The rank correlation of two lists without equal elements."""
    rank = [{v: i for i, v in enumerate(sorted(values))} for values in (xs, ys)]
    n, d = len(xs), sum((rank[0][x] - rank[1][y])**2 for x, y in zip(xs, ys))
    return 1 - 6 * d / (n * (n * n - 1))


def check_study(args):
    """Stops if DIR holds a study with other arguments: its data and runs would be taken for those of this one."""
    fixed = ["text", "include", "vocab", "length", "suffix", "batch", "lr", "bucket", "scan_bucket", "repeat", "tokens_1",
             "steps_2", "weights", "keys"]
    mine, path = {name: str(getattr(args, name)) for name in fixed}, args.dir / "study.json"
    mine["trials"] = str(max(args.trials))
    if path.exists():
        was = json.loads(path.read_text())
        others = [f"--{name.replace('_', '-')}: {was.get(name)}, now {mine[name]}" for name in mine
                  if was.get(name, "None") != mine[name]]
        if others:
            sys.exit(f"{args.dir} holds a study with other arguments: choose another --dir\n  " + "\n  ".join(others))
    path.write_text(json.dumps(mine))


def curve(args):
    check_study(args)
    make_data(args)
    if not (args.dir / "rest.idx").exists():
        make_buckets(args)
    results = {"arguments": {k: str(v) for k, v in vars(args).items()}, "sizes": {}}
    for size, trials in zip(args.sizes, args.trials):
        lr = choose_rate(args, size)
        toy = [(0, k) for k in args.toy_k if size == args.sizes[0]]
        study = results["sizes"][name_of(size)] = {"lr": lr, "runs": {}}
        for trial, k in [*itertools.product(range(trials), [0, *args.k]), *toy]:
            study["runs"].setdefault(k, []).append(one_trial(args, size, trial, k, lr))
            write_results(args, results)
    print_curve(args, results["sizes"])
    (args.dir / "curve.svg").write_text(curve_picture(args, results["sizes"]))
    if not args.config and not check_curve(args, results["sizes"]):
        sys.exit(1)


def spread(values, form):
    """The mean, and the range if there are several values."""
    text = format(statistics.mean(values), form)
    return text if len(values) == 1 else f"{text} ({min(values):{form}} to {max(values):{form}})"


def loss_name(k):
    return f"goldfish, k = {k}" if k else "plain"


def print_curve(args, sizes):
    print(f"\nBuckets of {args.bucket} documents of {args.length} tokens; recalled: the last {args.suffix} tokens, greedy; "
          "means over trials, with their range\n")
    print("| size | rate | loss | repeated | recalled | tokens before an error | ROUGE-L | change of the loss |\n"
          "|---|---|---|---|---|---|---|---|")
    for size, s in sizes.items():
        for k, trials in s["runs"].items():
            for r in args.repeat:
                rows = [t["buckets"][r] for t in trials]
                print(f"| {size} | {s['lr']:g} | {loss_name(k)} | {r} | {spread([x['recalled'] for x in rows], '.1f')} | "
                      f"{spread([x['before_error'] for x in rows], '.1f')} | {spread([x['rouge_l'] for x in rows], '.1%')} | "
                      f"{spread([x['change'] for x in rows], '.2f')} |")
    print("\n| size | loss | validation loss | losses fall with repetitions (Spearman) |\n|---|---|---|---|")
    for size, s in sizes.items():
        for k, trials in s["runs"].items():
            change = [statistics.mean(t["buckets"][r]["change"] for t in trials) for r in args.repeat]
            print(f"| {size} | {loss_name(k)} | {spread([t['valid'] for t in trials], '.3f')} | "
                  f"{spearman(args.repeat, change):.2f} |")
    print(f"\nTokens of the bucket repeated {max(args.repeat)} times\n\n| size | k | kept ones right (p) | dropped ones right (q) "
          "| p^n | p^(n(k-1)/k) q^(n/k) | recalled | tokens before an error, if independent | measured | recall ends at a "
          "dropped one |\n|---|---|---|---|---|---|---|---|---|---|")
    for size, s in sizes.items():
        for k in filter(None, s["runs"]):
            rows = [t["buckets"][max(args.repeat)] for t in s["runs"][k]]
            p, q, kept, independent, length, measured, ends = (statistics.mean(x[key] for x in rows) for key in (
                "p", "q", "all_kept", "independent", "independent_length", "before_error", "ends_at_dropped"))
            share = statistics.mean(x["recalled"] for x in rows) / args.bucket
            print(f"| {size} | {k} | {p:.1%} | {q:.1%} | {kept:.2g} | {independent:.2g} | {share:.1%} | {length:.1f} | "
                  f"{measured:.1f} | {ends:.1%} |")


def check_curve(args, sizes):
    """Prints what should hold and does not. Returns whether all holds."""
    wrong, least, most = [], min(args.repeat), max(args.repeat)
    for size, s in sizes.items():
        def share(k, r):
            return statistics.mean(t["buckets"][r]["recalled"] for t in s["runs"][k]) / args.bucket
        change = [statistics.mean(t["buckets"][r]["change"] for t in s["runs"][0]) for r in args.repeat]
        if spearman(args.repeat, change) > -0.9:
            wrong.append(f"{size}: the loss does not fall with the repetitions")
        if share(0, most) < 0.5:
            wrong.append(f"{size}: the plain loss recalls {share(0, most):.0%} of what it repeats {most} times, less than half; "
                         f"add {2 * most} to --repeat, in another --dir")
        if 2 in args.k:
            wrong += [f"{size}: with k = 2 {share(2, r):.0%} of what is repeated {r} times is recalled, more than 2 %"
                      for r in args.repeat if share(2, r) > 0.02]
        wrong += [f"{size}: {loss_name(k)}: text that was not seen is recalled" for k in s["runs"]
                  if least == 0 and share(k, 0) > 0]
    print("\n" + "\n".join(wrong or ["All that should hold holds (check_curve in bench/memorize.py)."]))
    return not wrong


def curve_picture(args, sizes):
    """Draws over the buckets the share of recalled documents, and the change of the loss."""
    def curves(value):
        return {f"{size}, {loss_name(k)}": ([(b, statistics.mean(value(t["buckets"][r]) for t in s["runs"][k]))
                                             for b, r in enumerate(args.repeat)], COLOURS[i % len(COLOURS)], bool(k))
                for i, (size, s) in enumerate(sizes.items()) for k in [0, *args.k]}
    repeated = "repetitions of the bucket"
    return chart((curves(lambda x: 100 * x["recalled"] / args.bucket), f"{repeated}; documents recalled, %", False,
                  args.repeat, (0, 100)),
                 (curves(lambda x: x["change"]), f"{repeated}; change of the loss on the tokens to recall", False,
                  args.repeat, (None, 0)))


# ---- the cost of recall ----------------------------------------------------------------------------------------------


def seconds_of(function, *words):
    """The wall time and the processor time of a call."""
    def now():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), used.ru_utime + used.ru_stime
    before = now()
    function(*words)
    return [b - a for a, b in zip(before, now())]


def cost(args):
    make_data(args)
    write_megatron(args.dir / "passages", choose_passages(args))
    train(args, "untrained", args.length - 1, "data.train=passages.idx", "data.pack=documents", "train.steps=1", "optim.lr=0")
    model = "untrained/ckpt/step-1"
    calls = {"eval": ["eval", model, "--data", "passages.idx", "--pack", "documents", "--seq-len", args.length - 1],
             "recall": ["recall", model, "--data", "passages.idx", "--tokens", args.suffix]}
    flags = [word for key, value in settings(args).items() for word in (f"--{key}", value) if key == "threads"]
    times = {name: [] for name in calls}
    for _round, name in itertools.product(range(5), calls):
        times[name].append(seconds_of(call, args, *calls[name], *flags))
    write_results(args, times)
    middle = {name: [statistics.median(t) for t in zip(*rows)] for name, rows in times.items()}
    print(f"\n{args.passages} passages of {args.length} tokens, medians of five runs of each, in turns\n\n"
          "| | eval, s | recall, s | recall / eval |\n|---|---|---|---|")
    for i, what in enumerate(["wall time", "processor time"]):
        a, b = middle["eval"][i], middle["recall"][i]
        print(f"| {what} | {a:.2f} | {b:.2f} | {b / a:.3f} |")


if __name__ == "__main__":
    arguments_given = arguments()
    {"extreme": extreme, "equal": equal, "curve": curve, "cost": cost}[arguments_given.experiment](arguments_given)
