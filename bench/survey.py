#!/usr/bin/env python3
"""Compares parallel modes of axonn and of PyTorch: one model, one data set, one budget.

  efficiency  validation loss after each epoch, on 1 to 8 ranks: equal work gives equal curves
  memory      bytes of weights, gradients and optimizer state beside their closed form; planned and measured memory of a rank
  time        seconds per step and per epoch: on two ranks of this machine, and on four emulated hosts of two ranks
              (scripts/hosts.sh; needs root)
  all         these three

Modes of axonn are the rows of its strategies, ZeRO and pipelines; those of PyTorch (bench/peers/torch_parallel.py) need
--torch PYTHON, a Python with torch, numpy, safetensors and PyYAML. Results are in DIR/survey.json, tables are printed as
markdown. A survey that was stopped goes on where it was; DIR belongs to one version of axonn and of PyTorch, and to one text.
A mode that fails has the last line of its error in its place, and the survey goes on.
Usage:  python3 bench/survey.py all --dir survey --torch venv/bin/python [--modes ddp,fsdp,torch-ddp] [--quick]
"""

import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = ROOT / "scripts" / "hosts.sh"
PEER = ROOT / "bench" / "peers" / "torch_parallel.py"
PARTS = ["efficiency", "memory", "time"]


def pipeline(schedule, most):
    """Pipelines of at most `most` stages: the models have 4 and 12 blocks. Rows of a step are divided among pipelines."""
    return lambda n: [f"grid.pipe={min(n, most)}", f"grid.data={n // min(n, most)}", f"pipe.schedule={schedule}"]


# Modes of axonn: the words for n ranks, or a text: why the mode cannot use n ranks.
AXONN = {
    "ddp": lambda n: ["strategy=ddp", f"grid.data={n}"],
    "zero1": lambda n: ["strategy=ddp", f"grid.data={n}", "zero=1"],
    "zero2": lambda n: ["strategy=ddp", f"grid.data={n}", "zero=2"],
    "zero3": lambda n: ["strategy=ddp", f"grid.data={n}", "zero=3"],
    "fsdp": lambda n: ["strategy=fsdp", f"grid.z={n}"],
    "hsdp": lambda n: ["strategy=hsdp", "grid.z=2", f"grid.data={n // 2}"] if n > 2 else "needs 4 ranks",
    "megatron": lambda n: ["strategy=megatron", f"grid.x={n}"],
    # the fastest grid of `bench/hosts.py grids` for its wide model; for its deep model ddp is the fastest
    "axonn": lambda n: {4: ["grid.x=2", "grid.z=2"], 8: ["grid.x=4", "grid.data=2"]}.get(n, "is another mode on 2 ranks"),
    "message": pipeline("message", 4), "1f1b": pipeline("1f1b", 4), "gpipe": pipeline("gpipe", 4),
    "interleaved": pipeline("interleaved", 2),
}
TORCH = {"torch-" + name: name for name in ("ddp", "zero1", "fsdp", "hsdp", "tensor")}
PEERS = {"ddp": "torch-ddp", "zero1": "torch-zero1", "fsdp": "torch-fsdp", "hsdp": "torch-hsdp", "megatron": "torch-tensor"}
MODES = ["one", *AXONN, *TORCH]
RANKS = [2, 4, 8]
EFFICIENCY = "{family: gpt2, layers: 4, hidden: 128, heads: 8, vocab: 2048, seq_len: 128}"
MEMORY = "{family: gpt2, layers: 6, hidden: 512, heads: 8, vocab: 2048, seq_len: 256}"
TIME = {  # those of bench/hosts.py, and the rows of a step
    "wide": ("{family: gpt2, layers: 4, hidden: 512, heads: 8, vocab: 2048, seq_len: 128}", 16),
    "deep": ("{family: gpt2, layers: 12, hidden: 256, heads: 8, vocab: 2048, seq_len: 256}", 32),
}


class Failed(Exception):
    """A run failed; the text is the last line that it printed."""


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in lines if "rror:" in line or "rror " in line] or lines or ["no output"]
        raise Failed(f"exit code {done.returncode}: {wrong[-1].strip()[:200]}")
    return done.stdout


def rows_of(directory):
    return [json.loads(line) for line in open(directory / "metrics.jsonl")]


def sizes_of(words):
    return dict(word.split("=") for word in map(str, words) if "=" in word)


def micro(mode, n, batch, words):
    """Returns the rows of a micro-batch: pipelines have twice as many micro-batches as stages."""
    sizes = sizes_of(words)
    if "grid.pipe" in sizes:
        return max(1, batch // (2 * n))
    return batch // (int(sizes.get("grid.z", 1)) * int(sizes.get("grid.data", 1)))


def words_of(mode, n):
    return ["grid.data=1"] if mode == "one" else AXONN[mode](n)


def bubble(mode, n, batch):
    """Returns the share of a step that stages of a pipeline wait, if all tasks take equally long; None: no pipeline."""
    sizes = sizes_of(words_of(mode, n)) if mode in AXONN else {}
    if "grid.pipe" not in sizes:
        return None
    stages, chunks = int(sizes["grid.pipe"]), 2 if mode == "interleaved" else 1
    tasks = batch // int(sizes["grid.data"]) // micro(mode, n, batch, words_of(mode, n)) * chunks
    return (stages - 1) / (tasks + stages - 1)


def ratio(values, base):
    """Returns the text of a ratio of figures that were taken in turns: its median and range."""
    got = sorted(b / v for v, b in zip(values, base, strict=True))
    return f"{statistics.median(got):.2f} [{got[0]:.2f}, {got[-1]:.2f}]"


class Survey:
    def __init__(self, args):
        self.args, self.dir = args, args.dir.resolve()
        self.dir.mkdir(parents=True, exist_ok=True)
        self.file = self.dir / "survey.json"
        self.prepare()
        about = {"axonn": run([args.axonn, "--version"]).strip(), "quick": args.quick, "models": [EFFICIENCY, MEMORY, TIME],
                 "text": [hashlib.sha256((self.dir / name).read_bytes()).hexdigest() for name in ("train.tok", "valid.tok")]}
        if args.torch:
            about["torch"] = run([args.torch, "-c", "import torch; print(torch.__version__)"]).strip()
        about = json.loads(json.dumps(about))
        self.results = json.loads(self.file.read_text()) if self.file.exists() else {"about": about}
        before = self.results["about"]
        for key, value in about.items():
            if before.setdefault(key, value) != value:
                sys.exit(f"{self.file} is a survey of another {key} ({before.get(key)}, not {value}): give another --dir, or delete it")

    def keep(self, part, name, make):
        """Returns the result `name` of a part; makes it if the file lacks it."""
        known = self.results.setdefault(part, {})
        if name not in known:
            print(f"{part}: {name}", file=sys.stderr, flush=True)
            try:
                known[name] = make()
            except Failed as failed:
                known[name] = {"failed": str(failed)}
            self.file.with_suffix(".new").write_text(json.dumps(self.results, indent=1))
            self.file.with_suffix(".new").replace(self.file)
        return known[name]

    def prepare(self):
        """Makes tokenizer and token files of the text of axonn's sources and documents."""
        if (self.dir / "valid.tok").exists():
            return
        run([self.args.axonn, "tok", "train", "--input", ROOT / "src", "--vocab", "2048", "--out", self.dir / "tok"])
        for name, text in [("train", "src"), ("valid", "docs/decisions")]:
            run([self.args.axonn, "data", "build", "--input", ROOT / text, "--tokenizer", self.dir / "tok", "--out",
                 self.dir / f"{name}.tok"])

    def config(self, name, model, batch, steps, **keys):
        """Writes a configuration with settings that PyTorch's modes can repeat; returns its path."""
        path = self.dir / f"{name}.yaml"
        path.write_text(
            f"model: {model}\ndata: {{train: {self.dir}/train.tok, valid: {self.dir}/valid.tok, tokenizer: {self.dir}/tok, "
            "mask_documents: false, pack: stream}\n"
            f"train: {{precision: {keys.get('precision', 'fp32')}, global_batch: {batch}, steps: {steps}, resume: none}}\n"
            f"run: {{eval_interval: {keys.get('interval', 0)}, checkpoint_interval: 0}}\n"
            "optim: {lr: 1e-3, warmup: 10}\nthreads: 1\n")
        return path

    def modes(self, n):
        """Returns the modes that can use n ranks."""
        return [name for name in self.args.modes if (name not in TORCH or self.args.torch) and not self.unusable(name, n)]

    @staticmethod
    def unusable(name, n):
        """Returns why a mode cannot use n ranks, or an empty text."""
        if name == "torch-hsdp":
            return "needs 4 ranks" if n < 4 else ""
        words = AXONN[name](n) if name in AXONN else []
        return words if isinstance(words, str) else ""

    def print_unusable(self, n):
        lines = [f"{name} {self.unusable(name, n)}" for name in self.args.modes if self.unusable(name, n)]
        if lines:
            print(f"\nNot on {n} ranks: {'; '.join(lines)}.")

    def initial(self, config):
        """Returns a checkpoint with the initial weights of a configuration: a step with a learning rate of 0."""
        directory = self.dir / f"{config.stem}-initial"
        if not directory.exists():
            run([self.args.axonn, "train", config, f"run.dir={directory}", "train.steps=1", "train.micro_batch=1",
                 "train.global_batch=1", "optim.lr=0", "data.valid=[]"])
        return directory / "ckpt" / "step-1"

    def axonn(self, config, mode, n, words, batch, launch):
        directory = self.dir / "runs" / f"{config.stem}-{mode}-{n}"
        run(["rm", "-rf", directory])
        run([*launch, self.args.axonn, "train", config, f"run.dir={directory}",
             f"train.micro_batch={micro(mode, n, batch, words)}", *words])
        return directory

    def train(self, config, mode, n, batch, hosts=None):
        """Trains in a mode on n ranks, here or on `hosts` ranks of each emulated host; returns the run's directory."""
        if mode not in TORCH:
            words = words_of(mode, n)
            launch = [HOSTS, "run", hosts] if hosts else []
            return self.axonn(config, mode, n, words + ([] if hosts or n == 1 else ["--ranks", n]), batch, launch)
        like, directory = self.dir / "runs" / f"{config.stem}-one-1", self.dir / "runs" / f"{config.stem}-{mode}-{n}"
        if not like.exists():
            self.train(config, "one", 1, batch)
        words = [PEER, TORCH[mode], "--like", like, "--model", self.initial(config), "--out", directory]
        words += ["--precision", self.precision(config)]
        if hosts:
            address = ["env", "GLOO_SOCKET_IFNAME=eth0", "MASTER_ADDR=10.213.57.1"]
            run([HOSTS, "run", hosts, *address, self.args.torch, *words])
        else:
            run([self.args.torch, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n, *words])
        return directory

    @staticmethod
    def precision(config):
        return "bf16" if "precision: bf16" in config.read_text() else "fp32"

    # ---- statistical efficiency -----------------------------------------------------------------------------------

    def efficiency(self):
        epochs, interval = (3, 10) if self.args.quick else (3, 100)
        batch, ranks = 16, [2] if self.args.quick else RANKS
        config = self.config("efficiency", EFFICIENCY, batch, epochs * interval, interval=interval)

        def losses(mode, n):
            rows = rows_of(self.train(config, mode, n, batch))
            return {"loss": [r["eval_loss"] for r in rows if "eval_loss" in r]}

        one = self.keep("efficiency", "one 1", lambda: losses("one", 1))
        print(f"\n## Validation loss, every {interval} steps of {batch} rows\n\n| mode | ranks | losses | largest difference from one rank |\n"
              "|---|---|---|---|")
        if "failed" in one:
            self.line("one", 1, [one["failed"]], "")
            return
        self.line("one", 1, [f"{x:.6f}" for x in one["loss"]], "")
        for n in ranks:
            for mode in self.modes(n):
                got = self.keep("efficiency", f"{mode} {n}", lambda mode=mode, n=n: losses(mode, n))
                if "failed" in got:
                    self.line(mode, n, [got["failed"]], "")
                    continue
                if len(got["loss"]) != len(one["loss"]):
                    self.line(mode, n, [f"{len(got['loss'])} evaluations, not {len(one['loss'])}"], "")
                    continue
                off = max(abs(a / b - 1) for a, b in zip(got["loss"], one["loss"], strict=True))
                bound = 1e-4 if mode in TORCH else 1e-5
                self.line(mode, n, [f"{x:.6f}" for x in got["loss"]], f"{off:.1e}" + ("" if off <= bound else f", more than {bound:g}"))
        for n in ranks:
            self.print_unusable(n)

    @staticmethod
    def line(mode, n, values, last):
        print(f"| {mode} | {n} | {' '.join(values)} | {last} |", flush=True)

    # ---- memory ---------------------------------------------------------------------------------------------------

    @staticmethod
    def closed_form(mode, n):
        """Returns bytes of weights, gradients and optimizer state (fp32, Adam) of a rank; None: not one of these modes."""
        layers, d, vocab, positions = 6, 512, 2048, 256
        matrices = layers * 12 * d * d + vocab * d + positions * d
        split, whole = layers * 7 * d, layers * 6 * d + 2 * d  # vectors: biases of q, k, v and up; all others
        vectors = split + whole
        every, part = matrices + vectors, matrices // n + vectors
        by_heads = matrices // n + split // n + whole
        table = {"one": (every, every, every), "ddp": (every, every, every), "zero1": (every, every + matrices // n, part),
                 "zero2": (every, part, part), "zero3": (part, part, part), "fsdp": (part, part, part),
                 "hsdp": (matrices // 2 + vectors,) * 3, "megatron": (by_heads,) * 3}
        return None if mode not in table else {"weights": 4 * table[mode][0], "gradients": 4 * table[mode][1],
                                               "optimizer": 8 * table[mode][2]}

    def memory(self):
        batch, ranks = 16, [2] if self.args.quick else RANKS
        config = self.config("memory", MEMORY, batch, 3)

        def bytes_of(mode, n):
            result = {}
            if mode not in TORCH:
                words = words_of(mode, n)
                plan = json.loads(run([self.args.axonn, "plan", config, *words, f"train.micro_batch={micro(mode, n, batch, words)}",
                                       "--json"]))
                stage = max(plan["stages"], key=lambda s: s["memory"])
                result = {name: stage["device"][name] for name in ("weights", "gradients", "optimizer")}
                result["planned"] = plan["mem_planned"]
            rows = rows_of(self.train(config, mode, n, batch))
            result["measured"] = max(r["mem_bytes"] for r in rows if "mem_bytes" in r) - rows[0]["mem_baseline"]
            return result

        cases = [("one", 1)] + [(mode, n) for n in ranks for mode in self.modes(n)]
        print("\n## Memory of a rank, MiB\n\n| mode | ranks | weights | gradients | optimizer | closed form | planned | measured | of the plan | "
              "of ddp |\n|---|---|---|---|---|---|---|---|---|---|")
        for mode, n in cases:
            got = self.keep("memory", f"{mode} {n}", lambda mode=mode, n=n: bytes_of(mode, n))
            if "failed" in got:
                print(f"| {mode} | {n} | {got['failed']} |||||||| ")
                continue
            form = self.closed_form(mode, n)
            same = "" if form is None else "equal" if all(got[k] == v for k, v in form.items()) else "**differs**: " + ", ".join(
                f"{k} {v}, not {got[k]}" for k, v in form.items() if got[k] != v)
            ddp = self.results["memory"].get(f"ddp {n}", {}).get("measured")
            mib = [f"{got[k] / 2**20:.1f}" if k in got else "" for k in ("weights", "gradients", "optimizer")]
            print(self.memory_row(mode, n, mib, same, got.get("planned"), got["measured"], ddp), flush=True)

    @staticmethod
    def memory_row(mode, n, mib, same, planned, measured, ddp):
        of_plan, of_ddp = (f"{measured / x:.3f}" if x else "" for x in (planned, ddp))
        shown = f"{planned / 2**20:.1f}" if planned else ""
        return f"| {mode} | {n} | {' | '.join(mib)} | {same} | {shown} | {measured / 2**20:.1f} | {of_plan} | {of_ddp} |"

    # ---- time -----------------------------------------------------------------------------------------------------

    def time(self):
        """Rounds are interleaved: a result is a figure of one mode in one round."""
        self.time_here()
        self.time_on_hosts()

    def time_here(self):
        rounds, steps, n = (1, 4, 2) if self.args.quick else (5, 6, 2)
        modes = [mode for mode in self.modes(n) if mode in PEERS or mode in PEERS.values()]
        precisions = ("fp32", "bf16")
        shape, batch = TIME["wide"]
        for turn in range(rounds):
            for precision in precisions:
                config = self.config(f"here-{precision}", shape, batch, steps, precision=precision)
                for mode in modes:
                    self.keep("time", f"here {precision} {mode} {turn}",
                              lambda mode=mode, config=config: self.seconds(config, mode, n, batch, None))
        for precision in precisions:
            self.print_times("here", precision, modes, rounds, n, batch, f"{precision}, {n} ranks of this machine, one thread each")
        self.print_unusable(n)

    def time_on_hosts(self):
        reason = subprocess.run([HOSTS, "usable"], capture_output=True, text=True)
        if reason.returncode:
            print(f"\nTime on emulated hosts is not measured: {reason.stderr.strip()}")
            return
        if "axhost" in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout:
            sys.exit("there are emulated hosts that another process may use: take them down with scripts/hosts.sh down")
        rounds, steps, n = (1, 4, 8) if self.args.quick else (5, 5, 8)
        cases = [(model, precision) for model in TIME for precision in ("fp32", "bf16")]
        try:
            run([HOSTS, "up", 4])
            for turn in range(rounds):
                for model, precision in cases:
                    shape, batch = TIME[model]
                    config = self.config(f"{model}-{precision}", shape, batch, steps, precision=precision)
                    for mode in self.modes(n):
                        self.keep("time", f"{model} {precision} {mode} {turn}",
                                  lambda mode=mode, config=config, batch=batch: self.seconds(config, mode, n, batch, 2))
        finally:
            run([HOSTS, "down"])
        for model, precision in cases:
            self.print_times(model, precision, self.modes(n), rounds, n, TIME[model][1],
                             f"{model} model, {precision}, {n} ranks on four emulated hosts, 1 Gbit/s")

    def seconds(self, config, mode, n, batch, hosts):
        rows = rows_of(self.train(config, mode, n, batch, hosts=hosts))
        steps = [r for r in rows if r.get("step", 0) > 2 and "step_ms" in r]
        middle = {key: statistics.median(r.get(key, 0) for r in steps) for key in ("step_ms", "comm_exposed_ms", "pipe_wait_ms")}
        return middle | {"evaluation": sum(r["seconds"] for r in rows if "eval_loss" in r)}

    def print_times(self, model, precision, modes, rounds, n, batch, title):
        got = {mode: [self.results["time"][f"{model} {precision} {mode} {turn}"] for turn in range(rounds)] for mode in modes}
        steps = {mode: [g["step_ms"] for g in of] for mode, of in got.items() if not any("failed" in g for g in of)}
        print(f"\n## Time of a step: {title}\n\n| mode | seconds: median [range] | times as fast as ddp | as PyTorch's | communication exposed "
              "| stages wait, closed form | epoch of 100 steps and an evaluation |\n|---|---|---|---|---|---|---|")
        for mode in modes:
            if mode not in steps:
                print(f"| {mode} | {next(g['failed'] for g in got[mode] if 'failed' in g)} ||||||")
                continue
            ms = steps[mode]
            step, exposed, wait, evaluation = (statistics.median(g[key] for g in got[mode]) for key in
                                               ("step_ms", "comm_exposed_ms", "pipe_wait_ms", "evaluation"))
            share = bubble(mode, n, batch)
            print(f"| {mode} | {step / 1e3:.3f} [{min(ms) / 1e3:.3f}, {max(ms) / 1e3:.3f}] | "
                  f"{ratio(ms, steps['ddp']) if 'ddp' in steps else ''} | {ratio(ms, steps[PEERS[mode]]) if PEERS.get(mode) in steps else ''} | "
                  f"{f'{exposed / step:.0%}' if exposed else ''} | {'' if share is None else f'{wait / step:.0%}, {share:.0%}'} | "
                  f"{step / 10 + evaluation:.1f} s |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=[*PARTS, "all"])
    p.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("survey"), help="default survey")
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--torch", help="Python that has torch; without it axonn's modes are compared alone")
    p.add_argument("--modes", type=lambda text: text.split(","), default=MODES[1:], help="default all: " + ",".join(MODES[1:]))
    p.add_argument("--quick", action="store_true", help="2 ranks, few steps and one round")
    args = p.parse_args()
    unknown = [mode for mode in args.modes if mode not in MODES]
    if unknown:
        sys.exit(f"no mode {', '.join(unknown)}: there are {', '.join(MODES[1:])}")
    args.axonn = os.path.abspath(args.axonn)
    survey = Survey(args)
    for part in PARTS if args.what == "all" else [args.what]:
        getattr(survey, part)()


if __name__ == "__main__":
    main()
