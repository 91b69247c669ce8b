#!/usr/bin/env python3
"""Trains a GPT-2 from token files for --seconds in PyTorch, as nanoGPT does, for comparison.

Rows start at random positions of the training tokens, and attention crosses document boundaries. Output projections are
initialized smaller by the root of the number of branches. AdamW decays matrices; gradients are clipped at 1. The learning
rate is a function of the elapsed time: it rises for a fiftieth of --seconds, then falls to 0 along a cosine, so that all
the time is used. The clock starts after three steps, which compile and warm up, and includes everything except the
validation at the end. Validation reads the validation tokens in rows of --seq and prints bits per byte of text; the first
token of a document counts as log2(vocabulary) bits, as in `axonn eval`.
Usage:  python3 bench/peers/torch_train.py --train train.tok --valid valid.tok --seconds 300 --layers 4 --hidden 192
            --heads 6 --batch 8 --seq 256 --lr 4e-3
"""

import argparse
import json
import math
import time

from torch_settings import BEST, environment

STEPS_BEFORE = 3


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--train", required=True, help="token file of `axonn data build`")
    p.add_argument("--valid", required=True, help="the same")
    for name, default in [("layers", 4), ("hidden", 192), ("heads", 6), ("seq", 256), ("batch", 8), ("threads", 2),
                          ("seed", 0)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    for name, default in [("seconds", 300), ("lr", 4e-3), ("beta2", 0.95), ("weight-decay", 0.1)]:
        p.add_argument(f"--{name}", type=float, default=default, help=f"default {default}")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="bf16", help="bf16: autocast, weights stay fp32")
    p.add_argument("--with", dest="settings", type=lambda x: [w for w in x.split(",") if w],
                   default=BEST["cpu"].split(","), help="as for torch_step.py, default " + BEST["cpu"])
    return p.parse_args()


ARGS = arguments()
environment(ARGS.settings, ARGS.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402

from token_file import Tokens  # noqa: E402
from torch_model import GPT2  # noqa: E402


class Rows(Tokens):
    """A token file, read in rows."""

    def rows(self, places, seq):
        """Returns inputs and targets of the rows that begin at these positions."""
        rows = torch.from_numpy(np.stack([self.ids[i:i + seq + 1].astype(np.int64) for i in places]))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def initialize(model, layers):
    """Initializes as nanoGPT does: the residual stream has about the same size at any depth."""
    for block in model.blocks:
        for linear in (block.out, block.down):
            nn.init.normal_(linear.weight, 0.0, 0.02 / math.sqrt(2 * layers))
        for linear in (block.qkv, block.out, block.up, block.down):
            nn.init.zeros_(linear.bias)


def rate(progress, a):
    """Returns the learning rate after this fraction of the time."""
    if progress < 0.02:
        return a.lr * progress / 0.02
    return a.lr * 0.5 * (1 + math.cos(math.pi * min(1, (progress - 0.02) / 0.98)))


def train(model, run, data, a):
    """Trains for a.seconds; returns the number of steps."""
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.dim() >= 2], "weight_decay": a.weight_decay},
              {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, a.beta2), fused=True)
    generator = np.random.default_rng(a.seed)
    step, start = 0, time.perf_counter()
    while True:
        if step == STEPS_BEFORE:
            start = time.perf_counter()
        progress = (time.perf_counter() - start) / a.seconds if step > STEPS_BEFORE else 0.0
        if progress >= 1:
            return step
        for group in optimizer.param_groups:
            group["lr"] = rate(progress, a)
        inputs, targets = data.rows(generator.integers(0, len(data.ids) - a.seq - 1, a.batch), a.seq)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            loss = run(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1


@torch.no_grad()
def bits_per_byte(run, data, a):
    """Returns bits per byte over all tokens of `data`. The last row overlaps the previous one; only its rest counts."""
    first = np.zeros(len(data.ids), bool)
    first[data.starts] = True
    last, total = len(data.ids) - 1, 0.0
    places = list(range(0, last, a.seq))
    for i in range(0, len(places), a.batch):
        begins = [min(p, last - a.seq) for p in places[i:i + a.batch]]
        begins += [begins[-1]] * (a.batch - len(begins))  # as many rows as were compiled
        inputs, targets = data.rows(begins, a.seq)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            losses = run(inputs, targets, reduction="none").view(a.batch, a.seq).double().numpy()
        for row, (place, begin) in enumerate(zip(places[i:i + a.batch], begins)):
            counts = ~first[begin + 1:begin + 1 + a.seq]
            counts[:place - begin] = False
            total += losses[row][counts].sum()
    return (total / math.log(2) + len(data.starts) * math.log2(data.vocab)) / data.text_bytes


def main():
    torch.set_num_threads(ARGS.threads)
    torch.manual_seed(ARGS.seed)
    data, valid = Rows(ARGS.train), Rows(ARGS.valid)
    ARGS.vocab = data.vocab
    model = GPT2(ARGS)
    initialize(model, ARGS.layers)
    run = torch.compile(model) if "compile" in ARGS.settings else model
    begin = time.perf_counter()
    steps = train(model, run, data, ARGS)
    middle = time.perf_counter()
    bits = bits_per_byte(model, valid, ARGS)
    print(json.dumps({
        "bits_per_byte": bits, "steps": steps, "tokens": steps * ARGS.batch * ARGS.seq,
        "parameters": sum(p.numel() for p in model.parameters()), "train_seconds": middle - begin,
        "eval_seconds": time.perf_counter() - middle, "torch": torch.__version__, "settings": vars(ARGS)}))


if __name__ == "__main__":
    main()
