#!/usr/bin/env python3
"""Times training steps of a GPT-2 or a Llama in PyTorch, for comparison, written as its users would write them.

Forward, backward, clipping by global norm and fused AdamW on random tokens, with torch's fused attention. A Llama
(--kv-heads, --ffn) is that of transformers. The loss is the mean over --batch rows, of which --micro are computed at a
time. --ranks N uses DistributedDataParallel over gloo: N processes of --threads each; --batch is then the global batch.
--device cuda uses the first GPU; fp32 is fp32 there, not tf32. --with LIST turns on settings that make torch faster on
some machines, --best those that were fastest on this kind of device; --settings lists them. Prints one JSON object.
Interleave its runs with axonn's on the same machine before you trust a ratio.
Usage:  python3 bench/peers/torch_step.py --precision bf16 --batch 4 --seq 256 --threads 2
        python3 bench/peers/torch_step.py --precision bf16 --batch 256 --micro 64 --seq 1024 --device cuda --best
"""

import argparse
import contextlib
import json
import resource
import socket
import statistics
import sys
import time

from torch_settings import BEST, EITHER, GPU_ONLY, SETTINGS, environment


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("seq", 256),
                          ("batch", 4), ("steps", 10), ("warmup", 2), ("threads", 2), ("ranks", 1)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--micro", type=int, default=0, help="rows that are computed at a time, default all")
    p.add_argument("--kv-heads", type=int, default=0, help="a Llama with this number of key heads; needs transformers")
    p.add_argument("--ffn", type=int, default=0, help="width of the Llama's MLP")
    p.add_argument("--device", choices=list(BEST), default="cpu", help="default %(default)s")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, weights stay fp32")
    p.add_argument("--with", dest="settings", type=lambda x: [w for w in x.split(",") if w], default=[],
                   metavar="LIST", help="settings, separated by commas")
    p.add_argument("--best", action="store_true",
                   help="".join(f"{at}on {name} --with {what}" for at, (name, what) in zip(["", "; "], BEST.items())))
    p.add_argument("--settings", action="store_true", dest="list", help="list the settings, and exit")
    args = p.parse_args()
    if args.list:
        print("\n".join(f"{name:10s}{what}" for name, what in SETTINGS.items()))
        p.exit()
    if args.best:
        args.settings = BEST[args.device].split(",")
    known = EITHER | GPU_ONLY if args.device == "cuda" else SETTINGS.keys() - GPU_ONLY
    unknown = [w for w in args.settings if w not in known]
    if unknown:
        p.error(f"--with: no setting {', '.join(unknown)} on {args.device}; there are "
                + ", ".join(w for w in SETTINGS if w in known))
    args.micro = args.micro or args.batch
    if (args.kv_heads > 0) != (args.ffn > 0):
        p.error("--kv-heads and --ffn belong together")
    if args.micro < 0 or args.batch % args.micro:
        p.error(f"--batch {args.batch} is not divisible by --micro {args.micro}")
    if args.ranks > 1 and (args.micro < args.batch or args.device == "cuda"):
        p.error("--ranks is of the CPU, without --micro")
    return args


ARGS = arguments()
environment(ARGS.settings, ARGS.threads)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torch.nn as nn  # noqa: E402

from torch_model import GPT2, make_llama  # noqa: E402


def attention(a):
    """Returns a context that selects the attention of the settings, never torch's unfused one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    if not GPU_ONLY & set(a.settings):
        return contextlib.nullcontext()
    return sdpa_kernel(order if "cudnn" in a.settings else order[::-1], set_priority=True)


def step_on(run, stream, a):
    """Accumulates the gradient of the mean loss over all rows of the stream, and returns that loss."""
    total = 0
    for rows in stream.split(a.micro):
        with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            loss = run(rows[:, :-1], rows[:, 1:])
        if len(rows) < len(stream):
            loss = loss * (len(rows) / len(stream))
        loss.backward()
        total += loss.detach()
    return total


def train(rank, a, port):
    torch.set_num_threads(a.threads)
    torch.set_flush_denormal("flush" in a.settings)
    torch.manual_seed(0)
    if a.device == "cuda":
        if not torch.cuda.is_available():
            sys.exit("torch sees no GPU: nvidia-smi says whether there is one; torch.version.cuda is "
                     f"{torch.version.cuda}")
        torch.set_float32_matmul_precision("highest")  # no tf32
    with torch.device(a.device):
        model = make_llama(a) if a.kv_heads else GPT2(a)
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
        tuned = "max-autotune" if a.device == "cpu" else "max-autotune-no-cudagraphs"
        run = torch.compile(model, mode=tuned if "autotune" in a.settings else "default")
    ready = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    seconds = []
    for step in range(a.warmup + a.steps):
        stream = torch.randint(a.vocab, (a.batch // a.ranks, a.seq + 1), device=a.device)
        ready()
        start = time.perf_counter()
        with attention(a):
            loss = step_on(run, stream, a)
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        ready()
        if step >= a.warmup:
            seconds.append(time.perf_counter() - start)
    if a.ranks > 1:
        dist.destroy_process_group()
    if rank:
        return
    rate = [a.batch * a.seq / s for s in seconds]
    on_gpu = {}
    if a.device == "cuda":  # used memory includes torch's cache, the context, and other processes
        free, total = torch.cuda.mem_get_info()
        on_gpu = {"gpu_bytes": total - free, "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
                  "gpu": torch.cuda.get_device_name()}
    family = "llama" if a.kv_heads else "gpt2"
    print(json.dumps({
        "case": f"torch.{family}.{a.precision}" + (f".ddp{a.ranks}" if a.ranks > 1 else ""), "unit": "tokens/s",
        "runs": a.steps, "median": round(statistics.median(rate), 1), "min": round(min(rate), 1),
        "max": round(max(rate), 1), "step_ms": round(1e3 * statistics.median(seconds), 2), "loss": loss.item(),
        "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "parameters": sum(p.numel() for p in params), "torch": torch.__version__, "settings": vars(a),
        **on_gpu}))


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
