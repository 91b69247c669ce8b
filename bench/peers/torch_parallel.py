#!/usr/bin/env python3
"""Repeats a run of axonn on a GPT-2 in a parallel mode of PyTorch, and writes a metrics.jsonl that `axonn report` reads.

The configuration, the learning rate of each step and the steps of evaluations are those of the run (--like: a run.dir), the
initial weights those of a checkpoint of axonn (--model). Samples come in axonn's order, so equal modes have equal losses.
The run must have stream packing, no document masks, no dropout, and decay and clip as axonn does by default.
Modes:
  ddp     DistributedDataParallel
  zero1   the same with ZeroRedundancyOptimizer
  fsdp    fully_shard (FSDP2) of each block and of the model
  hsdp    the same on a mesh of two dimensions: weights are split in pairs of ranks, and replicated across pairs
  tensor  parallelize_module: attention and MLP of each block, and the table of tokens, are split over all ranks
Processes are those of torchrun or of mpirun (Open MPI), which talk over gloo. All read all rows of a step and take theirs.
Usage:  torchrun --nproc-per-node 2 bench/peers/torch_parallel.py ddp --like runs/one --model runs/init/ckpt/step-1 --out DIR
        [--steps N] [--precision bf16] [--threads 1]
"""

import argparse
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs"))


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("mode", choices=["ddp", "zero1", "fsdp", "hsdp", "tensor"])
    p.add_argument("--like", type=pathlib.Path, required=True, help="directory of a run of axonn that has ended")
    p.add_argument("--model", type=pathlib.Path, required=True, help="checkpoint with the initial weights")
    p.add_argument("--out", type=pathlib.Path, required=True, help="directory for metrics.jsonl, made here")
    p.add_argument("--steps", type=int, help="default: those of the run")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, weights stay fp32")
    p.add_argument("--threads", type=int, default=1, help="of each rank, default 1")
    return p.parse_args()


ARGS = arguments()
os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)
for mine, theirs in [("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")]:
    os.environ.setdefault(mine, os.environ.get(theirs, "0" if mine == "RANK" else "1"))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29517")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import yaml  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate  # noqa: E402
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,  # noqa: E402
                                               loss_parallel, parallelize_module)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import order  # noqa: E402
from token_file import Tokens  # noqa: E402
from torch_model import GPT2  # noqa: E402

IGNORED = -100  # cross_entropy leaves out targets of this value


def fail(text):
    sys.exit(f"torch_parallel.py: error: {text}")


def split_heads(block):
    """Sorts the rows of q, k and v, so that equal parts of the product are q, k and v of the heads of one rank."""
    with torch.no_grad():
        for p in (block.qkv.weight, block.qkv.bias):
            p.copy_(p.view(3, WORLD, -1, *p.shape[1:]).transpose(0, 1).reshape(p.shape))


def load(model, directory):
    """Copies the weights of a GPT-2 directory, in which matrices are transposed."""
    from safetensors.torch import load_file
    arrays = {}
    for path in sorted(directory.glob("*.safetensors")):
        arrays |= {name.removeprefix("transformer."): array for name, array in load_file(path).items()}
    names = {"wte.weight": "wte.weight", "wpe.weight": "wpe.weight", "ln_f.weight": "ln_f.weight", "ln_f.bias": "ln_f.bias"}
    for i in range(len(model.blocks)):
        for mine, theirs in [("ln_1", "ln_1"), ("ln_2", "ln_2"), ("qkv", "attn.c_attn"), ("out", "attn.c_proj"),
                             ("up", "mlp.c_fc"), ("down", "mlp.c_proj")]:
            for part in ("weight", "bias"):
                names[f"blocks.{i}.{mine}.{part}"] = f"h.{i}.{theirs}.{part}"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = arrays[names[name]].float()
            parameter.copy_(array.T if array.dim() == 2 and "blocks" in name else array)


class Samples:
    """The rows of a source: its tokens cut into samples of `length` tokens."""

    def __init__(self, path, length):
        self.tokens, self.length = Tokens(path), length
        self.n = order.samples(len(self.tokens.ids), length)

    def rows(self, which):
        """Returns inputs and targets of samples; targets beyond the end are IGNORED."""
        inputs = np.zeros((len(which), self.length), np.int64)
        targets = np.full((len(which), self.length), IGNORED, np.int64)
        for row, i in enumerate(which):
            part = self.tokens.ids[i * self.length:(i + 1) * self.length + 1].astype(np.int64)
            inputs[row, :len(part) - 1], targets[row, :len(part) - 1] = part[:-1], part[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def parallelize(model, mode):
    """Returns the model in this mode, and on how many ranks the rows of a step are split."""
    if mode in ("ddp", "zero1"):
        return DistributedDataParallel(model, gradient_as_bucket_view=True), WORLD
    if mode == "tensor":
        mesh = init_device_mesh("cpu", (WORLD,))
        for block in model.blocks:
            split_heads(block)
            parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "up": ColwiseParallel(),
                                             "out": RowwiseParallel(), "down": RowwiseParallel()})
        parallelize_module(model, mesh, {"wte": RowwiseParallel(input_layouts=Replicate())})
        model.before_head = lambda x: DTensor.from_local(x, mesh, [Replicate()])
        return model, 1
    flat = mode == "fsdp"
    mesh = init_device_mesh("cpu", (WORLD,) if flat else (WORLD // 2, 2),
                            mesh_dim_names=("shard",) if flat else ("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh), WORLD


def by_kind(model):
    """Returns the parameters that are split over ranks, and those that are whole: no operation takes both."""
    parameters = list(model.parameters())
    return [part for split in (True, False) if (part := [p for p in parameters if isinstance(p, DTensor) == split])]


def clip(model, most):
    """Clips the gradients by their global norm, and returns it."""
    norm = torch.linalg.vector_norm(torch.stack([
        whole(nn.utils.get_total_norm([p.grad for p in part])) for part in by_kind(model)]))
    for part in by_kind(model):
        nn.utils.clip_grads_with_norm_(part, most, norm)
    return float(norm)


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def make_optimizer(model, mode, keys):
    groups = [{"params": [p for p in part if matrices == (p.dim() >= 2)],
               "weight_decay": keys["weight_decay"] if matrices else 0.0}
              for part in by_kind(model) for matrices in (True, False)]
    groups = [group for group in groups if group["params"]]
    options = {"lr": 0.0, "betas": tuple(keys["betas"]), "eps": float(keys["eps"]), "fused": True}
    if mode == "zero1":
        return ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, **options)
    return torch.optim.AdamW(groups, **options)


def status(name):
    """Returns a number of bytes from /proc/self/status."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name))


def reset_peak():
    """Lets VmHWM count from now: each rank has had the whole model before it kept its part."""
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def all_sum(value):
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def all_max(value):
    largest = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


class Run:
    def __init__(self, args):
        self.args = args
        self.config = yaml.safe_load((args.like / "config.yaml").read_text())
        rows = [json.loads(line) for line in open(args.like / "metrics.jsonl")]
        self.rates = {row["step"]: row["lr"] for row in rows if "lr" in row}
        self.evaluated = {row["step"] for row in rows if "eval_loss" in row}
        model, data, train = self.config["model"], self.config["data"], self.config["train"]
        if model["family"] != "gpt2" or data["pack"] != "stream" or data["mask_documents"]:
            fail("the run must be of a GPT-2, with data.pack=stream and data.mask_documents=false")
        self.batch, self.steps = train["global_batch"], args.steps or train["steps"]
        if self.steps > max(self.rates, default=0):
            fail(f"{self.steps} steps, but the run has learning rates of {max(self.rates, default=0)} only")
        self.data = Samples(data["train"][0], model["seq_len"])
        self.valid = Samples(data["valid"][0], model["seq_len"]) if data["valid"] else None
        shape = argparse.Namespace(vocab=model["vocab"], hidden=model["hidden"], seq=model["seq_len"],
                                   layers=model["layers"], heads=model["heads"], settings=[])
        self.tiny_step()
        self.baseline = status("VmRSS:")
        self.tokens = 0
        model = GPT2(shape)
        load(model, args.model)
        self.model, self.cut = parallelize(model, args.mode)
        if self.batch % self.cut:
            fail(f"{self.batch} rows of a step cannot be divided among {self.cut} ranks")
        self.optimizer = make_optimizer(self.model, args.mode, self.config["optim"])

    def tiny_step(self):
        """Loads what a step loads: libraries, threads and connections are not the model's memory."""
        model = DistributedDataParallel(nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

    def mine(self, rows):
        """Returns this rank's part of rows."""
        each = len(rows) // self.cut
        return rows[RANK * each:(RANK + 1) * each] if self.cut > 1 else rows

    def loss(self, inputs, targets, reduction):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.args.precision == "bf16"):
            return whole(self.model(inputs, targets, reduction))

    @loss_parallel()  # the head's logits stay split over the ranks of tensor parallelism
    def step(self, step):
        begin = time.perf_counter()
        keys, first = self.config["optim"], (step - 1) * self.batch
        which = [order.sample(self.config["train"]["seed"], 0, self.data.n, first + i) if
                 self.config["data"]["order"] == "shuffled" else (first + i) % self.data.n for i in range(self.batch)]
        inputs, targets = self.data.rows(which)
        count = int((targets != IGNORED).sum())
        for group in self.optimizer.param_groups:
            group["lr"] = self.rates[step]
        loss = self.loss(self.mine(inputs), self.mine(targets), "sum") / count
        (loss * self.cut).backward()  # gradients are averaged over the ranks that divide the rows
        norm = clip(self.model, keys["clip"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = all_sum(loss.item()) * self.cut / WORLD  # without a cut each rank has all of it
        seconds, self.tokens = time.perf_counter() - begin, self.tokens + count
        return {"step": step, "loss": loss, "grad_norm": norm, "lr": self.rates[step], "tokens": self.tokens,
                "step_ms": seconds * 1e3, "tokens_per_s": inputs.numel() / seconds}

    @torch.no_grad()
    @loss_parallel()
    def evaluate(self, step):
        """The mean loss over all targets of the validation data. Ranks get equally many rows; further ones count nothing."""
        begin, total, count = time.perf_counter(), 0.0, 0
        for first in range(0, self.valid.n, self.batch):
            inputs, targets = self.valid.rows([i if i < self.valid.n else 0 for i in range(first, first + self.batch)])
            targets[max(0, self.valid.n - first):] = IGNORED
            count += int((targets != IGNORED).sum())
            total += self.loss(self.mine(inputs), self.mine(targets), "sum").item()
        total = all_sum(total) * self.cut / WORLD
        return {"step": step, "eval_loss": total / count, "targets": count, "seconds": time.perf_counter() - begin}

    def describe(self):
        return {"program": f"torch {torch.__version__}", "strategy": self.args.mode, "ranks": WORLD,
                "threads": self.args.threads, "device": "cpu", "precision": self.args.precision,
                "parameters": sum(p.numel() for p in self.model.parameters()), "steps": self.steps,
                "mem_baseline": int(all_max(self.baseline)), "time": time.time()}

    def write(self, row, how="a"):
        if RANK == 0:
            with open(self.args.out / "metrics.jsonl", how) as f:
                f.write(json.dumps(row) + "\n")

    def train(self):
        self.args.out.mkdir(parents=True, exist_ok=True)
        self.write(self.describe(), "w")
        reset_peak()
        if 0 in self.evaluated:
            self.write(self.evaluate(0))
        for step in range(1, self.steps + 1):
            row = self.step(step)
            grown = status("VmHWM:") - self.baseline
            row["mem_bytes"] = int(all_max(self.baseline) + all_max(grown))
            row["mem_mean"] = int(all_max(self.baseline) + all_sum(grown) / WORLD)
            self.write(row)
            if step in self.evaluated:
                self.write(self.evaluate(step))


def main():
    torch.set_num_threads(ARGS.threads)
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD)
    Run(ARGS).train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
