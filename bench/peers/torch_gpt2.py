#!/usr/bin/env python3
"""A peer to compare with: training steps of GPT-2 in PyTorch on the CPU, as its users would write them.

Forward, backward, clipping by global norm and fused AdamW on random tokens; attention is torch's fused one.
With --ranks N it is DistributedDataParallel over gloo, N processes of --threads each; --batch is the global batch.
--with LIST sets what makes torch faster on some machines, --best what did here; --settings says what there is.
Prints one JSON object. Interleave its runs with axonn's on the same machine before believing a ratio.
Usage:  python3 bench/peers/torch_gpt2.py --precision bf16 --batch 4 --seq 256 --threads 2
"""

import argparse
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

LIB = "/usr/lib/x86_64-linux-gnu/"
SETTINGS = {
    "mkl": "MKL takes its AVX-512 kernels on processors that are not Intel's too, rather than plain SSE ones",
    "thp": "tensors on huge pages (THP_MEM_ALLOC_ENABLE)",
    "malloc": "glibc keeps freed memory, on huge pages",
    "jemalloc": "jemalloc that keeps freed memory, on huge pages; needs libjemalloc2",
    "tcmalloc": "needs libtcmalloc-minimal4",
    "bind": "OpenMP's threads bound to cores (OMP_PROC_BIND)",
    "iomp": "LLVM's OpenMP (Intel's) instead of GNU's, spinning; needs libomp5",
    "flush": "denormal numbers are zero",
    "pad": "the vocabulary rounded up to a multiple of 128",
    "compile": "torch.compile; needs a C++ compiler",
    "autotune": "torch.compile, max-autotune",
}
ENVIRONMENT = {
    "thp": {"THP_MEM_ALLOC_ENABLE": "1"},
    "malloc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
               "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)},
    "jemalloc": {"MALLOC_CONF": "thp:always,metadata_thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
                                "oversize_threshold:0"},
    "bind": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    "iomp": {"KMP_BLOCKTIME": "200"},
}
PRELOAD = {"jemalloc": LIB + "libjemalloc.so.2", "tcmalloc": LIB + "libtcmalloc_minimal.so.4",
           "iomp": LIB + "libomp.so.5"}
BEST = "mkl,malloc,pad,compile"
# What MKL asks before it looks at the instruction sets.
MKL_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("seq", 256),
                          ("batch", 4), ("steps", 10), ("warmup", 2), ("threads", 2), ("ranks", 1)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, weights stay fp32")
    p.add_argument("--with", dest="settings", type=lambda x: [w for w in x.split(",") if w], default=[],
                   metavar="LIST", help="settings, with commas between them")
    p.add_argument("--best", action="store_const", dest="settings", const=BEST.split(","), help=f"--with {BEST}")
    p.add_argument("--settings", action="store_true", dest="list", help="say what settings there are, and end")
    args = p.parse_args()
    if args.list:
        print("\n".join(f"{name:10s}{what}" for name, what in SETTINGS.items()))
        p.exit()
    unknown = [w for w in args.settings if w not in SETTINGS]
    if unknown:
        p.error(f"--with: no setting {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
    return args


def environment(args):
    """Starts this script anew in the environment that the settings want, which torch reads while it loads."""
    wanted, preload = {"OMP_NUM_THREADS": str(args.threads), "PEER_SETTINGS": ",".join(args.settings)}, []
    if all(os.environ.get(key) == value for key, value in wanted.items()):
        return
    for name in args.settings:
        wanted.update(ENVIRONMENT.get(name, {}))
        if name in PRELOAD:
            if not os.path.exists(PRELOAD[name]):
                sys.exit(f"{PRELOAD[name]} is missing: {SETTINGS[name]}")
            preload.append(PRELOAD[name])
    if "mkl" in args.settings:
        shim = pathlib.Path(tempfile.gettempdir()) / f"peer-mkl-{os.getuid()}.so"
        made = shim.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=MKL_SHIM, text=True, check=True)
        made.replace(shim)  # another process may have it open
        preload.append(str(shim))
    if preload:
        wanted["LD_PRELOAD"] = ":".join(preload)
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **wanted})


ARGS = arguments()
environment(ARGS)

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
        vocab = -(-a.vocab // 128) * 128 if "pad" in a.settings else a.vocab
        self.wte, self.wpe = nn.Embedding(vocab, a.hidden), nn.Embedding(a.seq, a.hidden)
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
    torch.set_flush_denormal("flush" in a.settings)
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
    run = model
    if "compile" in a.settings or "autotune" in a.settings:
        run = torch.compile(model, mode="max-autotune" if "autotune" in a.settings else "default")
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
        "case": f"torch.gpt2.{a.precision}" + (f".ddp{a.ranks}" if a.ranks > 1 else ""), "unit": "tokens/s",
        "runs": a.steps, "median": round(statistics.median(rate), 1), "min": round(min(rate), 1),
        "max": round(max(rate), 1), "step_ms": round(1e3 * statistics.median(seconds), 2), "loss": loss.item(),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
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
