#!/usr/bin/env python3
"""Times training steps of low-rank adapters with PEFT on PyTorch, for comparison.

The model is one of transformers, with its fused attention (sdpa). Forward, backward, clipping by global norm and fused
AdamW on random tokens; fp32, or bf16 with a base in bf16 and adapters in fp32, as PEFT makes them. --make writes the
directory of a model with random weights and exits: axonn times the same one. Settings are those of torch_step.py.
Prints one JSON object. Interleave its runs with axonn's (bench/lora.py does) before you trust a ratio.
Usage:  python3 bench/peers/peft_step.py --make DIR
        python3 bench/peers/peft_step.py --model DIR --precision bf16 --batch 4 --seq 256 --rank 16 --targets all --best
"""

import argparse
import json
import pathlib
import resource
import statistics
import time

from torch_settings import BEST, environment

TARGETS = {"all": ["c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"], "qv": ["c_attn"]}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--make", type=pathlib.Path, metavar="DIR", help="write a GPT-2 of random weights, and exit")
    p.add_argument("--model", type=pathlib.Path, metavar="DIR")
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("positions", 1024),
                          ("seq", 256), ("batch", 4), ("rank", 16), ("steps", 10), ("warmup", 2), ("threads", 2)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    p.add_argument("--targets", choices=list(TARGETS), default="all",
                   help="qv: in GPT-2 an adapter of c_attn, which PEFT cannot divide into q, k and v")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    p.add_argument("--with", dest="settings", type=lambda x: [w for w in x.split(",") if w], default=[], metavar="LIST")
    p.add_argument("--best", action="store_true", help=f"--with {BEST['cpu']}")
    args = p.parse_args()
    if not args.make and not args.model:
        p.error("give --model DIR, or --make DIR")
    args.settings = BEST["cpu"].split(",") if args.best else args.settings
    return args


ARGS = arguments()
environment(ARGS.settings, ARGS.threads)

import torch  # noqa: E402
import transformers  # noqa: E402


def make(a):
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=a.layers, n_embd=a.hidden, n_head=a.heads, vocab_size=a.vocab,
                                     n_positions=a.positions, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0,
                                     bos_token_id=None, eos_token_id=None)
    transformers.GPT2LMHeadModel(config).save_pretrained(a.make)


def main(a):
    import peft
    if a.make:
        return make(a)
    torch.set_num_threads(a.threads)
    torch.set_flush_denormal("flush" in a.settings)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if a.precision == "bf16" else torch.float32
    base = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa")
    model = peft.get_peft_model(base, peft.LoraConfig(
        task_type="CAUSAL_LM", r=a.rank, lora_alpha=2 * a.rank, lora_dropout=0.0, target_modules=TARGETS[a.targets],
        fan_in_fan_out=True))
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if {"compile", "autotune"} & set(a.settings) else model
    vocab, seconds = base.config.vocab_size, []
    for step in range(a.warmup + a.steps):
        stream = torch.randint(vocab, (a.batch, a.seq + 1))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "bf16"):
            logits = run(input_ids=stream[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), stream[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        if step >= a.warmup:
            seconds.append(time.perf_counter() - start)
    print(json.dumps({"case": f"peft.{a.precision}.{a.targets}", "step_ms": round(1e3 * statistics.median(seconds), 2),
                      "loss": loss.item(), "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "trained": sum(p.numel() for p in params), "torch": torch.__version__,
                      "peft": peft.__version__}))


if __name__ == "__main__":
    main(ARGS)
