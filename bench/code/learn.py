#!/usr/bin/env python3
"""The whole way from conversations to pass@1, in small: a new model of 2 M parameters learns half of this folder's
solutions by heart, and what it then writes is compiled and run.

The 48 prompts are dealt into two halves, learned and other, each with all kinds and all ways. The tokenizer and the model
(recipe/small.yaml, on four ranks) see only the right solutions of the first, as conversations: the prompt asks, the
function's body answers. The trained model writes --samples texts for each prompt at temperature 0.2, the model before
training --before for each of the learned half (axonn generate). build/judge compiles and runs them, equal texts of a
prompt once. axonn eval says what the losses of both halves are: of the answers (masked), and of all tokens (unmasked).

Ends with code 1 unless pass@1 of the learned half goes from 0 to --goal. Prints the time of each part, and of processors
without those of the judge's sandbox. Parts that are finished in DIR are not repeated, so the same command goes on after
an interruption.
Usage: cmake --build build --target axonn judge && python3 bench/code/learn.py [KEY=VALUE...]
KEY=VALUE: keys of the configuration for training, such as data.loss=all."""
import argparse
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import time

CODE = pathlib.Path(__file__).resolve().parent
BUILD = CODE.parent.parent / "build"
HALVES = ("learned", "other")
LOSSES = {"answers": "masked", "all": "unmasked"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.partition("\nUsage")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the configuration, for training")
    p.add_argument("--build", type=pathlib.Path, default=BUILD, help="folder of axonn and judge, default %(default)s")
    p.add_argument("--dir", type=pathlib.Path, default=BUILD / "learn", help="folder of results, default %(default)s")
    p.add_argument("--samples", type=int, default=20, help="texts for each prompt, default %(default)s")
    p.add_argument("--before", type=int, default=20, help="the same before training, default %(default)s")
    p.add_argument("--jobs", type=int, default=2, help="samples that are judged at the same time, default %(default)s")
    p.add_argument("--goal", type=float, default=0.9, help="least pass@1 of the learned half, default %(default)s")
    args = p.parse_intermixed_args()
    args.build, args.dir = args.build.resolve(), args.dir.resolve()
    for program in ("axonn", "judge"):
        if not (args.build / program).exists():
            p.error(f"{args.build / program} is missing: cmake --build build --target axonn judge")
    args.dir.mkdir(parents=True, exist_ok=True)
    return args


def call(args, program, *words):
    """Runs a program in DIR. Returns what it writes to stdout."""
    words = [str(word) for word in words]
    done = subprocess.run([args.build / program, *words], cwd=args.dir, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} {' '.join(words)}\nexit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def timed(what, part, *words):
    """Calls a function, and prints how long it took."""
    def now():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), used.ru_utime + used.ru_stime
    begin = now()
    result = part(*words)
    wall, processor = (b - a for a, b in zip(begin, now()))
    print(f"{what}: {wall:.0f} s, {processor:.0f} s of processors", flush=True)
    return result


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, objects):
    path.write_text("".join(json.dumps(o) + "\n" for o in objects))


def make_data(args):
    """Makes DIR/HALF.jsonl, conversations; DIR/HALF-prompts.jsonl; and the tokenizer DIR/tok."""
    prompts, right = ([json.loads(line) for line in call(args, "judge", *words).splitlines()]
                      for words in (["prompts"], ["solutions", "right"]))
    body, column = {s["id"]: s["text"] for s in right}, {}
    for p in prompts:  # as on a chessboard of kinds and ways
        row, column[p["way"]] = len({q["kind"] for q in prompts if q["kind"] < p["kind"]}), column.get(p["way"], len(column))
        p["half"] = HALVES[(row + column[p["way"]]) % 2]
    for half in HALVES:
        mine = [p for p in prompts if p["half"] == half]
        write_lines(args.dir / f"{half}.jsonl",
                    [{"id": p["id"], "instruction": p["prompt"], "output": body[p["id"]]} for p in mine])
        write_lines(args.dir / f"{half}-prompts.jsonl",
                    [{"id": p["id"], "messages": [{"role": "user", "content": p["prompt"]}]} for p in mine])
    (args.dir / "text.txt").write_text("\n".join(p["prompt"] + body[p["id"]] for p in prompts if p["half"] == HALVES[0]))
    # Answers begin with white space. With this pattern a piece ends behind a newline, so that the one before the answer is
    # a token of its own, as when an answer is asked for. With that of gpt2 it would be one token with the white space.
    call(args, "axonn", "tok", "train", "--input", "text.txt", "--vocab", 768, "--pattern", "llama3", "--out", "tok")


def train(args):
    """Makes the runs DIR/before, whose weights are as they were drawn (a step with a rate of 0), and DIR/after."""
    shutil.copy(CODE / "recipe" / "small.yaml", args.dir)
    call(args, "axonn", "train", "small.yaml", "run.dir=before", "data.train=learned.jsonl", "train.steps=1", "optim.lr=0",
         "--ranks", 4)
    call(args, "axonn", "train", "small.yaml", *args.keys, "--ranks", 4)
    return next(row["parameters"] for row in read_lines(args.dir / "after" / "metrics.jsonl") if "parameters" in row)


def generate(args, run, half, samples):
    call(args, "axonn", "generate", run, "--prompts", f"{half}-prompts.jsonl", "--out", f"{run}-{half}-samples.jsonl",
         "--samples", samples, "--temperature", 0.2, "--top-p", 0.95, "--max-tokens", 400, "--ranks", 2)


def judge(args, run, half):
    """Judges each text of a prompt once. Returns the scores of all samples."""
    name = f"{run}-{half}"
    samples, judged, results = (args.dir / f"{name}-{what}.jsonl" for what in ("samples", "judged", "results"))
    lines = read_lines(samples)[1:]  # the first describes the settings
    texts = {(s["id"], s["text"]): s for s in reversed(lines)}  # the first sample of each
    if not results.exists():
        write_lines(args.dir / "distinct.jsonl", texts.values())
        judged.unlink(missing_ok=True)
        call(args, "judge", "run", "distinct.jsonl", "--out", judged.name, "--jobs", args.jobs)
        found = {(r["id"], r["sample"]): r for r in read_lines(judged)}
        write_lines(results, [{**found[s["id"], texts[s["id"], s["text"]]["sample"]], "sample": s["sample"]} for s in lines])
    scores = [json.loads(line) for line in call(args, "judge", "score", results.name, "--json").splitlines()]
    return {**next(s for s in scores if s["group"] == "all"), "texts": len(texts)}


def losses(args, run, half):
    return {loss: json.loads(call(args, "axonn", "eval", run, "--data", f"{half}.jsonl", "--loss", loss, "--json"))["loss"]
            for loss in LOSSES}


def main():
    args = arguments()
    if not (args.dir / "tok").exists():
        timed("data and tokenizer", make_data, args)
    parameters = timed("training", train, args)
    rows = {}
    for run, half, samples in (("after", "learned", args.samples), ("after", "other", args.samples),
                               ("before", "learned", args.before)):
        timed(f"{run}, {half}: generating", generate, args, run, half, samples)
        rows[run, half] = timed(f"{run}, {half}: judging", judge, args, run, half)
    print(f"\n{parameters} parameters; texts of each prompt: {args.samples}, before training: {args.before}; temperature 0.2\n")
    print("| model | half | different texts | build@1 | pass@1 | 95 % | loss of answers | loss of all tokens |")
    print("|---|---|---|---|---|---|---|---|")
    for run, half in ((run, half) for run in ("before", "after") for half in HALVES):
        loss, r = losses(args, run, half), rows.get((run, half))
        score = (f"{r['texts']} | {r['build']:.3f} | {r['pass']:.3f} | {r['pass_interval'][0]:.3f} to "
                 f"{r['pass_interval'][1]:.3f}" if r else " | | | ")
        print(f"| {run} | {half} | {score} | {loss['answers']:.4f} | {loss['all']:.4f} |")
    if rows["before", "learned"]["pass"] > 0 or rows["after", "learned"]["pass"] < args.goal:
        sys.exit(f"\npass@1 of the learned half should go from 0 to {args.goal} or more")


if __name__ == "__main__":
    main()
