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
A mode that fails has the last line of its error in its place, and the next call tries it again. `memory` draws DIR/memory.svg.
Of `time` a part can be measured alone (--cases, --rounds); rounds are interleaved, and tables have those that there are.
Usage:  python3 bench/survey.py all --dir survey --torch venv/bin/python [--modes ddp,fsdp,torch-ddp] [--quick]
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = ROOT / "scripts" / "hosts.sh"
PEER = ROOT / "bench" / "peers" / "torch_parallel.py"
sys.path.append(str(ROOT / "bench" / "peers"))

import torch_settings  # noqa: E402

PARTS = ["efficiency", "memory", "time"]
SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]  # that end the survey in order


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
PEER_RANKS = [4]  # on which PyTorch's modes show their losses: all of them can use so many
EFFICIENCY = "{family: gpt2, layers: 4, hidden: 128, heads: 8, vocab: 2048, seq_len: 128}"
MEMORY = "{family: gpt2, layers: 6, hidden: 512, heads: 8, vocab: 2048, seq_len: 256}"
TEXTS = {"train.tok": "src", "valid.tok": "docs/decisions", "short.tok": "docs/step.md"}
TIME = {  # those of bench/hosts.py, and the rows of a step
    "wide": ("{family: gpt2, layers: 4, hidden: 512, heads: 8, vocab: 2048, seq_len: 128}", 16),
    "deep": ("{family: gpt2, layers: 12, hidden: 256, heads: 8, vocab: 2048, seq_len: 256}", 32),
}


# Cases of `time`: two ranks of this machine, or a model of TIME on emulated hosts; and a precision.
CASES = ["here fp32", "here bf16", "wide fp32", "wide bf16", "deep fp32", "deep bf16"]
# On hosts bf16 halves the bytes of activations alone: these modes show what that changes. --modes chooses others.
BF16 = ["ddp", "megatron", "axonn"]


class Failed(Exception):
    """A run failed; the text is the last line that it printed."""


def lock(path, use):
    """Locks a file, which is made if it is not there, until this process ends."""
    try:
        fcntl.flock(os.open(path, os.O_RDONLY | os.O_CREAT, 0o644), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failed(f"another survey {use}: wait until it has ended") from None


def end(process):
    """Ends the processes of a command's session: those that go on 30 s after SIGTERM are killed."""
    with contextlib.suppress(ProcessLookupError):  # if they have ended by themselves
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=30)  # until none has its output open
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def stop(number, _):
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one must not keep emulated hosts from being taken down
    sys.exit(128 + number)


def run(command):
    """Runs a command and returns what it prints. If the survey ends before it, it ends all processes of the command."""
    try:
        done = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}") from error
    try:
        out, err = done.communicate()
    except BaseException:
        end(done)
        raise
    if done.returncode:
        raise Failed(f"exit code {done.returncode}: {last_error(out + err)[:300]}")
    return out


def last_error(text):
    """Returns the last line of an error. What torchrun says of it does not count, except that a signal ended a process."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line or "rror " in line]
    ours = [line for line in errors if "ChildFailedError" not in line]
    signals = [line for line in lines if "ignal " in line]
    return (ours or signals or errors or lines or ["no output"])[-1]


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


def bubble(mode, n, batch, shape, head):
    """Returns the share of a pipeline's time that its idlest stage waits; None: no pipeline. Each stage has equally many blocks
    of the model `shape`; if `head` is 1, the last one has the head's product too. Messages take no time, and each rank has a
    processor."""
    sizes = sizes_of(words_of(mode, n)) if mode in AXONN else {}
    if "grid.pipe" not in sizes:
        return None
    stages, chunks = int(sizes["grid.pipe"]), 2 if mode == "interleaved" else 1
    micro_batches = batch // int(sizes["grid.data"]) // micro(mode, n, batch, words_of(mode, n))
    layers, d, vocab, length = (int(re.search(rf"{key}: (\d+)", shape)[1]) for key in ("layers", "hidden", "vocab", "seq_len"))
    costs = [layers / stages] * stages  # in blocks, whose products multiply 12 d² + length · d numbers a token
    costs[-1] += head * vocab * d / (12 * d * d + length * d)
    return 1 - micro_batches * costs[0] / (micro_batches * costs[-1] + sum(costs[:-1]) / chunks)


def ratio(values, base):
    """Returns the text of a ratio of figures that were taken in turns: its median and range. Both are {turn: figure}."""
    got = sorted(base[turn] / values[turn] for turn in values if turn in base)
    return f"{statistics.median(got):.2f} [{got[0]:.2f}, {got[-1]:.2f}]" if got else ""


def drawing(lines, labels, title):
    """Returns an SVG: a line for each name of {name: values}, which has a value or None for each label of the horizontal axis."""
    most = max(v for values in lines.values() for v in values if v)
    left, top, wide, high, step = 60, 40, 360, 260, 360 / (len(labels) - 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{top + high + 50}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="{left}" y="20" font-size="14">{title}</text>']
    for i in range(5):
        y = top + high * (1 - i / 4)
        out.append(f'<path d="M{left} {y:.0f}h{wide}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * i / 4:.0f}</text>')
    out += [f'<text x="{left + i * step:.0f}" y="{top + high + 18}" text-anchor="middle">{label}</text>' for i, label in enumerate(labels)]
    for k, (name, values) in enumerate(lines.items()):
        at = [(left + i * step, top + high * (1 - v / most)) for i, v in enumerate(values) if v]
        style = f'stroke="hsl({k * 360 // len(lines)},70%,40%)" stroke-width="2"' + (' stroke-dasharray="5 3"' if name in TORCH else "")
        y = top + 12 + k * 18
        out.append(f'<polyline fill="none" {style} points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in at) + '"/>')
        out.append(f'<path d="M{left + wide + 20} {y - 4}h24" {style}/><text x="{left + wide + 50}" y="{y}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


class Survey:
    def __init__(self, args):
        self.args, self.dir = args, args.dir.resolve()
        self.dir.mkdir(parents=True, exist_ok=True)
        self.file = self.dir / "survey.json"
        lock(self.dir / "lock", f"uses {self.dir}")
        self.prepare()
        about = {"axonn": run([args.axonn, "--version"]).strip(), "quick": args.quick, "efficiency's model": EFFICIENCY,
                 "memory's model": MEMORY} | {f"{name} model": text for name, (text, _) in TIME.items()}
        about |= {name: hashlib.sha256((self.dir / name).read_bytes()).hexdigest()[:16] for name in TEXTS}
        self.no_torch = ""  # why modes of PyTorch cannot run
        if args.torch:
            try:
                about["torch"] = run([args.torch, "-c", "import numpy, safetensors, torch, yaml; print(torch.__version__)"]).strip()
            except Failed as failed:
                self.no_torch = str(failed)
        try:
            self.results = json.loads(self.file.read_text()) if self.file.exists() else {"about": about}
            before = self.results["about"]
        except (ValueError, TypeError, KeyError) as error:
            raise Failed(f"{self.file} is no survey: give another --dir, or delete this directory") from error
        for key, value in about.items():
            if before.setdefault(key, value) != value:
                raise Failed(f"{self.file} is another survey: {key} is {before[key]} there, {value} here; "
                             "give another --dir, or delete this directory")
        self.save()  # also the runs of a survey that is stopped before its first result are of this version and text

    def save(self):
        self.file.with_suffix(".new").write_text(json.dumps(self.results, indent=1))
        self.file.with_suffix(".new").replace(self.file)

    def keep(self, part, name, make):
        """Returns the result `name` of a part; makes it if the file lacks it or has a failure."""
        known = self.results.setdefault(part, {})
        if "failed" in known.get(name, {"failed": "not tried"}):
            if self.no_torch and "torch-" in name:  # not kept: it may be installed later
                return {"failed": self.no_torch}
            print(f"{part}: {name}", file=sys.stderr, flush=True)
            try:
                known[name] = make()
            except Failed as failed:
                known[name] = {"failed": str(failed)}
            self.save()
        return known[name]

    def prepare(self):
        """Makes tokenizer and token files of the text of axonn's sources and documents, those that are not there."""
        if not (self.dir / "tok").exists():
            run([self.args.axonn, "tok", "train", "--input", ROOT / "src", "--vocab", "2048", "--out", self.dir / "tok"])
        for name, text in TEXTS.items():
            if not (self.dir / name).exists():
                run([self.args.axonn, "data", "build", "--input", ROOT / text, "--tokenizer", self.dir / "tok", "--out", self.dir / name])

    def config(self, name, model, batch, steps, valid=(), precision="fp32", interval=0):
        """Writes a configuration with settings that PyTorch's modes can repeat; returns its path."""
        path = self.dir / f"{name}.yaml"
        path.write_text(
            f"model: {model}\ndata: {{train: {self.dir}/train.tok, valid: [{', '.join(f'{self.dir}/{text}' for text in valid)}], "
            f"tokenizer: {self.dir}/tok, mask_documents: false, pack: stream}}\n"
            f"train: {{precision: {precision}, global_batch: {batch}, steps: {steps}, resume: none}}\n"
            f"run: {{eval_interval: {interval}, checkpoint_interval: 0}}\n"
            "optim: {lr: 1e-3, warmup: 10}\nthreads: 1\n")
        return path

    def modes(self, n):
        """Returns the modes that can use n ranks."""
        return [name for name in self.args.modes if not self.unusable(name, n)]

    @staticmethod
    def unusable(name, n):
        """Returns why a mode cannot use n ranks, or an empty text."""
        if name == "torch-hsdp":
            return "needs 4 ranks" if n < 4 else ""
        words = AXONN[name](n) if name in AXONN else []
        return words if isinstance(words, str) else ""

    def cases(self, peers=RANKS):
        """Returns each mode with each number of ranks that it can use, PyTorch's with those of `peers`. A quick survey has the
        least number for each mode."""
        cases = [(mode, n) for n in RANKS for mode in self.modes(n) if mode not in TORCH or n in peers]
        least = {mode: n for mode, n in reversed(cases)}
        return [(mode, n) for mode, n in cases if not self.args.quick or n == least[mode]]

    def print_unusable(self, *ranks):
        for n in ranks:
            lines = [f"{name} {self.unusable(name, n)}" for name in self.args.modes if self.unusable(name, n)]
            if lines:
                print(f"\nNot on {n} ranks: {'; '.join(lines)}.")

    def initial(self, config):
        """Returns a checkpoint with the initial weights of a configuration: a step with a learning rate of 0."""
        directory = self.dir / f"{config.stem}-initial"
        if not directory.exists():
            self.axonn(config, directory, ["train.steps=1", "train.micro_batch=1", "train.global_batch=1", "optim.lr=0", "data.valid=[]"])
        return directory / "ckpt" / "step-1"

    def axonn(self, config, directory, words, launch=()):
        """Trains into a directory that is there only after the run has ended well."""
        part = directory.with_name(directory.name + ".part")
        run(["rm", "-rf", directory, part])
        run([*launch, self.args.axonn, "train", config, f"run.dir={part}", *words])
        part.rename(directory)
        return directory

    def train(self, config, mode, n, batch, hosts=None, environment=()):
        """Trains in a mode on n ranks, here or on `hosts` ranks of each emulated host; returns the run's directory. `environment`
        is that of PyTorch's modes."""
        like, directory = self.dir / "runs" / f"{config.stem}-one-1", self.dir / "runs" / f"{config.stem}-{mode}-{n}"
        if mode not in TORCH:
            words = words_of(mode, n)
            words = [f"train.micro_batch={micro(mode, n, batch, words)}", *words]
            self.axonn(config, directory, words + ([] if hosts or n == 1 else ["--ranks", n]), [HOSTS, "run", hosts] if hosts else [])
            run(["rm", "-rf", directory / "ckpt", directory / "latest"])  # 250 MB a run, which nothing reads
            return directory
        if not like.exists():
            self.train(config, "one", 1, batch)
        words = [PEER, TORCH[mode], "--like", like, "--model", self.initial(config), "--out", directory]
        words += ["--precision", self.precision(config)]
        if hosts:
            address = ["GLOO_SOCKET_IFNAME=eth0", "MASTER_ADDR=10.213.57.1"]
            run([HOSTS, "run", hosts, "env", *address, *environment, self.args.torch, *words])
        else:
            run(["env", *environment, self.args.torch, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n, *words])
        return directory

    @staticmethod
    def precision(config):
        return "bf16" if "precision: bf16" in config.read_text() else "fp32"

    # ---- statistical efficiency -----------------------------------------------------------------------------------

    def efficiency(self):
        batch, epochs = 16, 3
        interval, valid = (5, "short.tok") if self.args.quick else (100, "valid.tok")
        config = self.config("efficiency", EFFICIENCY, batch, epochs * interval, [valid], interval=interval)

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
        cases = self.cases(RANKS if self.args.quick else PEER_RANKS)
        for mode, n in cases:
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
        self.print_unusable(*sorted({n for _, n in cases}))

    @staticmethod
    def line(mode, n, values, last):
        print(f"| {mode} | {n} | {' '.join(values)} | {last} |", flush=True)

    # ---- memory ---------------------------------------------------------------------------------------------------

    @staticmethod
    def closed_form(mode, n):
        """Returns bytes of weights, gradients and optimizer state (fp32, Adam) of a rank of each pipeline stage."""
        d, vocab, positions = 512, 2048, 256
        sizes = sizes_of(words_of(mode, n))
        x, z, data, pipe = (int(sizes.get("grid." + axis, 1)) for axis in ("x", "z", "data", "pipe"))
        zero = int(sizes.get("zero", 0))

        def stage(blocks, first, last):
            matrices = blocks * 12 * d * d // (x * z) + ((first or last) * vocab * d // x + first * positions * d) // z
            vectors = blocks * 7 * d // x + blocks * 6 * d + last * 2 * d  # of the biases of q, k, v and up each rank of x has a part
            every, part = matrices + vectors, matrices // data + vectors
            weights, gradients, state = {0: (every,) * 3, 1: (every, every + matrices // data, part), 2: (every, part, part),
                                         3: (part,) * 3}[zero]
            if pipe > 1:  # the head is the table of the first stage: the last has a copy, the first the gradients of both
                gradients += first * 2 * vocab * d
                state -= last * vocab * d
            return {"weights": 4 * weights, "gradients": 4 * gradients, "optimizer": 8 * state}

        cut = {1: [6], 2: [3, 3], 4: [1, 2, 2, 1]}[pipe]  # blocks of each stage
        return [stage(blocks, i == 0, i == pipe - 1) for i, blocks in enumerate(cut)]

    def memory(self):
        batch = 8 if self.args.quick else 16
        config = self.config("memory", MEMORY, batch, 3)

        def bytes_of(mode, n):
            result = {}
            if mode not in TORCH:
                words = words_of(mode, n)
                plan = json.loads(run([self.args.axonn, "plan", config, *words, f"train.micro_batch={micro(mode, n, batch, words)}",
                                       "--json"]))
                result["stages"] = [{name: s["device"][name] for name in ("weights", "gradients", "optimizer")} for s in plan["stages"]]
                result["largest"] = max(range(len(plan["stages"])), key=lambda i: plan["stages"][i]["memory"])
                result["planned"] = plan["mem_planned"]
                result["planned_mean"] = statistics.mean(s["memory"] for s in plan["stages"])
            rows = rows_of(self.train(config, mode, n, batch))
            last = [r for r in rows if "mem_bytes" in r][-1]
            return result | {name: last[key] - rows[0]["mem_baseline"] for name, key in (("measured", "mem_bytes"), ("mean", "mem_mean"))}

        cases = self.cases()
        peaks = {(mode, n): self.keep("memory", f"{mode} {n}", lambda mode=mode, n=n: bytes_of(mode, n))
                 for mode, n in [("one", 1), *cases]}
        print("\n## Memory of a rank, MiB\n\nOf pipelines weights, gradients and optimizer are those of the stage that needs the most memory.\n"
              "\n| mode | ranks | weights | gradients | optimizer | closed form | planned | measured: largest, mean | of the plan: largest, mean "
              "| of ddp | of PyTorch's |\n|---|---|---|---|---|---|---|---|---|---|---|")
        for (mode, n), got in peaks.items():  # all are known now: rows have ratios to others
            self.memory_row(mode, n, got)
        self.print_unusable(*sorted({n for _, n in cases}))
        if not self.args.quick:
            self.draw_memory(peaks, self.growing(config, batch // RANKS[-1]))

    def growing(self, config, rows):
        """Prints and returns the memory that megatron plans where rows of a step grow with the ranks, as in the paper."""
        plans = [json.loads(run([self.args.axonn, "plan", config, *AXONN["megatron"](n), f"train.micro_batch={rows * n}",
                                 f"train.global_batch={rows * n}", "--json"])) for n in (1, *RANKS)]
        mib = [plan["mem_planned"] / 2**20 for plan in plans]
        print(f"\nmegatron with {rows} rows × ranks a step, planned MiB of a rank on 1, 2, 4, 8 ranks: {', '.join(f'{x:.1f}' for x in mib)}")
        return mib

    def draw_memory(self, peaks, growing):
        """Draws the mean memory of a rank over the number of ranks."""
        lines = {mode: [peaks.get((mode, n), {}).get("mean", 0) / 2**20 for n in RANKS] for mode in self.args.modes}
        lines = {mode: [0 if mode in TORCH else peaks["one", 1].get("mean", 0) / 2**20, *values]
                 for mode, values in lines.items() if any(values)}
        lines["megatron, rows × ranks"] = growing
        (self.dir / "memory.svg").write_text(drawing(lines, [1, *RANKS], "MiB of a rank over the number of ranks"))

    def memory_row(self, mode, n, got):
        if "failed" in got:
            print(f"| {mode} | {n} | {got['failed']} |||||||||")
            return

        def of(name):
            return self.results["memory"].get(f"{name} {n}", {}).get("measured")

        def mib(value):
            return f"{value / 2**20:.1f}"

        state, shown, planned, of_plan = [""] * 3, "", "", ""
        if "stages" in got:
            form = self.closed_form(mode, n)
            state = [mib(value) for value in got["stages"][got["largest"]].values()]
            shown = "equal" if form == got["stages"] else f"**differs**: {form}, not {got['stages']}"
            planned = mib(got["planned"])
            of_plan = f"{got['measured'] / got['planned']:.4f}, {got['mean'] / got['planned_mean']:.4f}"
        ratios = [f"{got['measured'] / base:.2f}" if base else "" for base in (of("ddp"), of(PEERS.get(mode)))]
        cells = [mode, n, *state, shown, planned, f"{mib(got['measured'])}, {mib(got['mean'])}", of_plan, *ratios]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)

    # ---- time -----------------------------------------------------------------------------------------------------

    def time(self):
        """Rounds are interleaved: a result is a figure of one mode in one round."""
        here = [case for case in self.args.cases if case.startswith("here")]
        if here:
            self.time_here(here)
        if len(here) < len(self.args.cases):
            self.time_on_hosts([case for case in self.args.cases if case not in here])

    def time_here(self, cases):
        steps, n, self.rounds = (4, 2, self.args.rounds or 1) if self.args.quick else (6, 2, self.args.rounds or 3)
        modes = [mode for mode in self.modes(n) if mode in PEERS or mode in PEERS.values()]
        shape, batch = TIME["wide"]
        self.take_turns(cases, lambda case: (shape, batch), lambda case: modes, steps, n, None)
        for case in cases:
            self.print_times(case, modes, n, batch, f"{case.split()[1]}, {n} ranks of this machine, one thread each; the modes that PyTorch has too")
        self.print_unusable(n)

    def take_turns(self, cases, model_of, modes_of, steps, n, hosts):
        for turn in range(self.rounds):
            for case in cases:
                shape, batch = model_of(case)
                config = self.config(case.replace(" ", "-"), shape, batch, steps, ["short.tok"], case.split()[1])
                for mode in modes_of(case):
                    self.keep("time", f"{case} {mode} {turn}", lambda mode=mode: self.seconds(config, mode, n, batch, hosts))

    def time_on_hosts(self, cases):
        lock(HOSTS, "uses the emulated hosts")
        reason = subprocess.run([HOSTS, "usable"], capture_output=True, text=True)
        if reason.returncode:
            print(f"\nTime on emulated hosts is not measured: {reason.stderr.strip()}")
            return
        if "axhost" in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout:
            raise Failed("there are emulated hosts that another process may use: take them down with scripts/hosts.sh down")
        steps, n, self.rounds = (3, 4, self.args.rounds or 1) if self.args.quick else (4, RANKS[-1], self.args.rounds or 5)

        def modes_of(case):
            return BF16 if case.endswith("bf16") and self.args.all_modes else self.modes(n)

        try:
            run([HOSTS, "up", n // 2])
            self.take_turns(cases, lambda case: TIME[case.split()[0]], modes_of, steps, n, 2)
        finally:
            run([HOSTS, "down"])
        for case in cases:
            model, precision = case.split()
            self.print_times(case, modes_of(case), n, TIME[model][1],
                             f"{model} model, {precision}, {n} ranks on {n // 2} emulated hosts, 1 Gbit/s")

    def seconds(self, config, mode, n, batch, hosts):
        kept = [f"{name}={value}" for name, value in torch_settings.ENVIRONMENT["malloc"].items()]
        rows = rows_of(self.train(config, mode, n, batch, hosts, kept))
        steps = [r for r in rows if r.get("step", 0) > 2 and "step_ms" in r]
        middle = {key: statistics.median(r.get(key, 0) for r in steps) for key in ("step_ms", "comm_exposed_ms", "pipe_wait_ms")}
        return middle | {"evaluation": sum(r["seconds"] for r in rows if "eval_loss" in r)}

    def print_times(self, case, modes, n, batch, title):
        known = self.results.get("time", {})
        got = {mode: {turn: known[name] for turn in range(self.rounds) if (name := f"{case} {mode} {turn}") in known} for mode in modes}
        steps = {mode: {turn: g["step_ms"] for turn, g in of.items()} for mode, of in got.items()
                 if of and not any("failed" in g for g in of.values())}
        print(f"\n## Time of a step: {title}\n\n| mode | rounds | seconds: median [range] | times as fast as ddp | as PyTorch's "
              "| communication exposed | stages wait; closed form of equal stages, with the head | 100 steps and an evaluation of a short text |\n|---|---|---|---|---|---|---|---|")
        for mode in modes:
            if mode not in steps:
                print(f"| {mode} | {next((g['failed'] for g in got[mode].values() if 'failed' in g), self.no_torch)} |||||||")
                continue
            ms = steps[mode].values()
            step, exposed, wait, evaluation = (statistics.median(g[key] for g in got[mode].values()) for key in
                                               ("step_ms", "comm_exposed_ms", "pipe_wait_ms", "evaluation"))
            equal, real = (bubble(mode, n, batch, TIME["deep" if case.startswith("deep") else "wide"][0], head) for head in (0, 1))
            ratios = [ratio(steps[mode], steps[base]) if base in steps else "" for base in ("ddp", PEERS.get(mode))]
            print(f"| {mode} | {len(ms)} | {step / 1e3:.3f} [{min(ms) / 1e3:.3f}, {max(ms) / 1e3:.3f}] | {ratios[0]} | {ratios[1]} | "
                  f"{f'{exposed / step:.0%}' if exposed else ''} | {'' if equal is None else f'{wait / step:.0%}; {equal:.0%}, {real:.0%}'} | "
                  f"{step / 10 + evaluation:.1f} s |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=[*PARTS, "all"])
    p.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("survey"), help="default survey")
    p.add_argument("--axonn", default=str(ROOT / "build" / "axonn"))
    p.add_argument("--torch", help="Python that has torch; without it axonn's modes are compared alone")
    p.add_argument("--modes", type=lambda text: text.split(","), help="default all: " + ",".join(MODES[1:]))
    p.add_argument("--cases", type=lambda text: text.split(","), help="of time, default all: " + ",".join(CASES))
    p.add_argument("--rounds", type=int, help="of time, default 5, on this machine 3")
    p.add_argument("--quick", action="store_true", help="few ranks, few steps, and one round of two cases")
    args = p.parse_args()
    args.all_modes = args.modes is None
    args.modes = args.modes or [name for name in MODES[1:] if args.torch or name not in TORCH]
    args.cases = args.cases or (["here fp32", "wide fp32"] if args.quick else CASES)
    for what, given, there in (("mode", args.modes, MODES[1:]), ("case", args.cases, CASES)):
        unknown = [name for name in given if name not in there]
        if unknown:
            sys.exit(f"survey.py: no {what} {', '.join(unknown)}: there are {', '.join(there)}")
    if not args.torch and any(name in TORCH for name in args.modes):
        sys.exit("survey.py: modes of PyTorch need --torch PYTHON")
    args.axonn = os.path.abspath(args.axonn)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, stop)
    try:
        survey = Survey(args)
        for part in PARTS if args.what == "all" else [args.what]:
            getattr(survey, part)()
    except (Failed, OSError) as failed:
        sys.exit(f"survey.py: {failed}")


if __name__ == "__main__":
    main()
