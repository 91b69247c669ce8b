#!/usr/bin/env python3
"""Times a layer with experts beside a dense MLP of the same active parameters, and beside transformers' layer.

Forward and backward in bf16 (transformers: --peer-dtype) on this machine's cores, accumulating into gradients that are there. The sides take turns:
axonn's layer, axonn's dense MLP (build/bench_experts), transformers' Qwen3MoeSparseMoeBlock with experts_implementation
"grouped_mm", and its Qwen3MoeMLP. Prints medians, minima and maxima, and ratios of axonn's time to the others'.
Usage:  cmake --build build --target bench_experts && python3 bench/experts.py [--rounds N] [--threads N] [--peer-dtype float32] [CASE...]
"""

import argparse
import pathlib
import statistics
import subprocess
import time

import torch
import transformers
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

# experts, chosen, width, inner width, rows of an expert: as in bench/experts.c
CASES = [(8, 2, 768, 2048, 256), (64, 8, 1024, 512, 256), (8, 2, 768, 2048, 64), (64, 8, 1024, 512, 64)]
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Peer:
    def __init__(self, case, dense, dtype):
        experts, k, d, f, rows = case
        config = transformers.Qwen3MoeConfig(hidden_size=d, intermediate_size=k * f, moe_intermediate_size=f,
                                             num_experts=experts, num_experts_per_tok=k, norm_topk_prob=True)
        config._experts_implementation = "grouped_mm"
        self.net = (qwen.Qwen3MoeMLP(config, k * f) if dense else qwen.Qwen3MoeSparseMoeBlock(config)).to(dtype)
        with torch.no_grad():
            for p in self.net.parameters():
                p.normal_(0, 0.02)
        self.x = torch.randn(1, rows * experts // k, d, dtype=dtype, requires_grad=True)
        self.dy = torch.randn_like(self.x)

    def round(self):
        begin = time.perf_counter()
        y = self.net(self.x)
        (y[0] if isinstance(y, tuple) else y).backward(self.dy)
        return (time.perf_counter() - begin) * 1e3


class Ours:
    def __init__(self, case, dense, threads):
        self.command = f"{CASES.index(case)} {int(dense)}\n"
        self.program = subprocess.Popen([ROOT / "build/bench_experts", "serve", str(threads)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def round(self):
        self.program.stdin.write(self.command)
        self.program.stdin.flush()
        return float(self.program.stdout.readline())

    def close(self):
        self.program.stdin.close()
        self.program.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("case", type=int, nargs="*", default=list(range(len(CASES))))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-dtype", default="bfloat16", help="float32 is faster in PyTorch on processors without bf16")
    args = parser.parse_args()
    dtype = getattr(torch, args.peer_dtype)
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, peer in {args.peer_dtype}")
    for number in args.case:
        case = CASES[number]
        sides = {"experts": Ours(case, False, args.threads), "dense": Ours(case, True, args.threads),
                 "transformers": Peer(case, False, dtype), "transformers dense": Peer(case, True, dtype)}
        times = {name: [] for name in sides}
        for turn in range(args.rounds + 1):
            for name, side in sides.items():
                spent = side.round()
                if turn:
                    times[name].append(spent)
        medians = {name: statistics.median(t) for name, t in times.items()}
        print("E {} k {} d {} f {}, {} rows an expert".format(*case))
        for name, t in times.items():
            print(f"  {name:19} {medians[name]:7.0f} ms ({min(t):.0f} ... {max(t):.0f})")
        print(f"  of the dense MLP's rate {medians['dense'] / medians['experts']:.2f}, of transformers' rate "
              f"{medians['transformers'] / medians['experts']:.2f}", flush=True)
        sides["experts"].close()
        sides["dense"].close()


if __name__ == "__main__":
    main()
