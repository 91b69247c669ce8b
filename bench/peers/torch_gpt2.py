#!/usr/bin/env python3
"""A peer to compare with: training steps of GPT-2 in PyTorch on the CPU, as its users would write them.

Forward, backward, clipping by global norm and fused AdamW on random tokens; attention is torch's fused one.
With --ranks N it is DistributedDataParallel over gloo, N processes of --threads each; --batch is the global batch.
Prints one JSON object. Interleave its runs with axonn's on the same machine before believing a ratio.
Usage:  python3 bench/peers/torch_gpt2.py --precision bf16 --batch 4 --seq 256 --threads 2
"""

import argparse
import json
import os
import socket
import statistics
import time


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("seq", 256),
                          ("batch", 4), ("steps", 10), ("warmup", 2), ("threads", 2), ("ranks", 1)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, weights stay fp32")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    return p.parse_args()


ARGS = arguments()
os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)  # read when torch loads its OpenMP

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (u.view(b, t, self.heads, d // self.heads).transpose(1, 2)
                   for u in self.qkv(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocab, a.hidden), nn.Embedding(a.seq, a.hidden)
        self.blocks = nn.ModuleList(Block(a.hidden, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.hidden)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(rank, a, port):
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = GPT2(a)
    if a.ranks > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=a.ranks)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if a.compile else model
    seconds = []
    for step in range(a.warmup + a.steps):
        stream = torch.randint(a.vocab, (a.batch // a.ranks, a.seq + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            loss = run(stream[:, :-1], stream[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if step >= a.warmup:
            seconds.append(time.perf_counter() - start)
    if a.ranks > 1:
        dist.destroy_process_group()
    if rank:
        return
    rate = [a.batch * a.seq / s for s in seconds]
    print(json.dumps({
        "case": f"torch.gpt2.{a.precision}" + (f".ddp{a.ranks}" if a.ranks > 1 else ""), "unit": "tokens/s", "runs": a.steps,
        "median": round(statistics.median(rate), 1), "min": round(min(rate), 1), "max": round(max(rate), 1),
        "step_ms": round(1e3 * statistics.median(seconds), 2), "loss": loss.item(),
        "parameters": sum(p.numel() for p in params), "torch": torch.__version__, "settings": vars(a)}))


def main():
    if ARGS.batch % ARGS.ranks:
        raise SystemExit(f"--batch {ARGS.batch} is not divisible by --ranks {ARGS.ranks}")
    if ARGS.ranks == 1:
        return train(0, ARGS, 0)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(train, (ARGS, port), ARGS.ranks)


if __name__ == "__main__":
    main()
