#!/usr/bin/env python3
"""Makes tests/golden/gpt2: what transformers' GPT-2 and torch's AdamW compute for small random models.

Weights are float32, as in every model directory. All results are computed from them in float64, and again in
float32, to check that a float32 program can reach them. README.md in this directory describes the files.
Usage:  python3 tests/golden/make_gpt2.py [DIRECTORY]
"""

import json
import math
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

IGNORE = -100
STEPS = 50
BATCHES = 3  # distinct global batches, taken in turn
MICRO_BATCHES = 3
HYPER = {
    "lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0,
    "schedule": "cosine", "warmup": 5, "min_lr": 1e-3, "steps": STEPS,
}

# name: (config, length of the forward case, prompt length, packed case too)
CASES = {
    "tanh": (dict(n_layer=2, n_embd=20, n_head=5, vocab_size=67, n_positions=24), 19, 4, True),
    "exact": (dict(n_layer=3, n_embd=21, n_head=3, vocab_size=101, n_positions=17, n_inner=50,
                   activation_function="gelu", layer_norm_epsilon=1e-3), 17, 7, False),
    "tiny": (dict(n_layer=1, n_embd=8, n_head=1, vocab_size=11, n_positions=13), 6, 3, False),
}


def make_model(config):
    """Makes every tensor random, and so large that a missing term shows in the results."""
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0.0, 0.2)
            if ".ln_" in name and name.endswith("weight"):
                p.add_(1.0)
    return model.eval()


def make_batch(rows, length, vocab, masked):
    """Returns tokens and targets [rows, length]. A share `masked` of the targets is IGNORE, but never all."""
    stream = torch.randint(vocab, (rows, length + 1))
    targets = stream[:, 1:].clone()
    targets[torch.rand(rows, length) < masked] = IGNORE
    targets[0, 0] = stream[0, 1]
    return stream[:, :-1].clone(), targets


def forward(model, tokens, targets, **where):
    """Returns logits, and the loss summed over unmasked targets. (transformers' own loss rounds to float32.)"""
    logits = model(input_ids=tokens, use_cache=False, **where).logits
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    return logits, loss


def forward_backward(model, tokens, targets, extra=None, **where):
    """`extra(model, tokens)` is a loss that is added to the mean of the targets' losses, but not to what is returned."""
    model.zero_grad()
    logits, loss = forward(model, tokens, targets, **where)
    loss = loss / (targets != IGNORE).sum()
    (loss + (extra(model, tokens) if extra else 0)).backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    return logits.detach(), loss.detach(), grads


def learning_rate(step):
    h = HYPER
    if step <= h["warmup"]:
        return h["lr"] * step / h["warmup"]
    done = (step - h["warmup"]) / (STEPS - h["warmup"])
    return h["min_lr"] + 0.5 * (h["lr"] - h["min_lr"]) * (1 + math.cos(math.pi * done))


def train(model, tokens, targets, extra=None):
    """Trains STEPS steps on [BATCHES, MICRO_BATCHES, b, T]; returns losses, norms before clipping, learning rates.
    `extra(model, tokens)`: a further loss, a mean over samples."""
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() >= 2], "weight_decay": HYPER["weight_decay"]},
         {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}],
        lr=0.0, betas=HYPER["betas"], eps=HYPER["eps"], foreach=False)
    losses, norms, rates = [], [], []
    for step in range(1, STEPS + 1):
        batch = (step - 1) % BATCHES
        count = (targets[batch] != IGNORE).sum()
        optimizer.zero_grad()
        total = 0.0
        for x, y in zip(tokens[batch], targets[batch]):
            loss = forward(model, x, y)[1] / count
            (loss + (extra(model, x) / MICRO_BATCHES if extra else 0)).backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(params, HYPER["clip"])  # min(1, clip / (norm + 1e-6))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        losses.append(total)
        norms.append(norm.item())
        rates.append(learning_rate(step))
    return [torch.tensor(v, dtype=torch.float64) for v in (losses, norms, rates)]


def final_sums(model):
    """Returns [sum, sum of squares] of each tensor. The key third of c_attn.bias counts as zero: its gradient is
    zero in exact arithmetic, so Adam turns rounding errors into its updates (they change no output)."""
    sums = {}
    for name, p in model.named_parameters():
        w = p.detach().double().clone()
        if name.endswith("c_attn.bias"):
            w[w.numel() // 3: 2 * w.numel() // 3] = 0
        sums[name] = torch.stack([w.sum(), w.square().sum()])
    return sums


def packed_documents(length, rows):
    """Returns document ids, positions from the document's start, and the mask [rows, 1, query, key]; True: attends."""
    cuts = [[0, 7, 8], [0, 3, 15]]  # a document of one token, and one that ends with the row
    ids = torch.zeros(rows, length, dtype=torch.long)
    positions = torch.zeros_like(ids)
    for row in range(rows):
        for i, start in enumerate(cuts[row]):
            ids[row, start:] = i
            positions[row, start:] = torch.arange(length - start)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return ids, positions, (ids[:, :, None] == ids[:, None, :])[:, None] & causal


def packed_case(model, length, vocab):
    rows = 2
    tokens, targets = make_batch(rows, length, vocab, 0.1)
    ids, positions, mask = packed_documents(length, rows)
    targets[:, :-1][ids[:, 1:] != ids[:, :-1]] = IGNORE  # the first token of a document is no target
    additive = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, torch.finfo(torch.float64).min)
    logits, loss, grads = forward_backward(model, tokens, targets, attention_mask=additive,
                                           position_ids=positions)
    for row in range(rows):  # each document alone gives the same
        for i in range(3):
            part = ids[row] == i
            alone = model(input_ids=tokens[row][part][None], use_cache=False).logits[0]
            assert torch.allclose(alone, logits[row][part], rtol=1e-10, atol=1e-10)
    out = {"tokens": tokens, "targets": targets, "documents": ids, "positions": positions,
           "logits": logits, "loss": loss[None]}
    return out | {"grad." + name: g for name, g in grads.items()}


def generate(model, prompt_length, vocab):
    """Returns a prompt and ten greedy tokens. The best token always leads clearly, and the tokens differ."""
    while True:
        prompt = torch.randint(vocab, (1, prompt_length))
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False)
        top = model(input_ids=out[:, :-1]).logits[0, prompt_length - 1:].topk(2).values
        new = out[0, prompt_length:]
        if (top[:, 0] - top[:, 1]).min() > 0.02 and new.unique().numel() >= min(4, vocab // 5):
            assert new.numel() == 10
            return prompt[0], new


def relative(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


def make_case(name, directory):
    settings, length, prompt_length, with_packed = CASES[name]
    torch.manual_seed(sum(name.encode()))
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                                     eos_token_id=None, **settings)
    config._attn_implementation = "eager"
    single = make_model(config)
    single.save_pretrained(directory)
    double = transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float64,
                                                          attn_implementation="eager").eval()
    vocab = config.vocab_size

    tokens, targets = make_batch(2, length, vocab, 0.3)
    logits, loss, grads = forward_backward(double, tokens, targets)
    assert relative(forward_backward(single, tokens, targets)[0], logits) < 1e-5
    out = {"forward.tokens": tokens, "forward.targets": targets, "forward.logits": logits,
           "forward.loss": loss[None]}
    out |= {"forward.grad." + k: g for k, g in grads.items()}
    if with_packed:
        out |= {"packed." + k: v for k, v in packed_case(double, config.n_positions, vocab).items()}
    out["generate.prompt"], out["generate.tokens"] = generate(double, prompt_length, vocab)

    # Micro-batches have very different numbers of targets, so that the mean of their means would be wrong.
    made = [make_batch(2, config.n_positions, vocab, [0.0, 0.4, 0.8][i % MICRO_BATCHES])
            for i in range(BATCHES * MICRO_BATCHES)]
    tokens, targets = (torch.stack(v).unflatten(0, (BATCHES, MICRO_BATCHES)) for v in zip(*made))
    losses, norms, rates = train(double, tokens, targets)
    losses32, norms32, _ = train(single, tokens, targets)
    gaps = [((a - b).abs() / b).max().item() for a, b in ((losses32, losses), (norms32, norms))]
    assert gaps[0] < 1e-5 and gaps[1] < 1e-4, gaps
    clipped = (norms > HYPER["clip"]).sum().item()
    assert 0 < clipped < STEPS and losses[-1] < 0.9 * losses[0]
    out |= {"train.tokens": tokens, "train.targets": targets, "train.loss": losses,
            "train.grad_norm": norms, "train.lr": rates}
    out |= {"train.final." + k: v for k, v in final_sums(double).items()}

    out = {k: (v.to(torch.int32) if v.dtype == torch.int64 else v).contiguous() for k, v in out.items()}
    save_file(out, directory / "golden.safetensors")
    about = {"case": name, "optim": HYPER, "batches": BATCHES, "micro_batches": MICRO_BATCHES,
             "ignore": IGNORE, "torch": torch.__version__, "transformers": transformers.__version__}
    (directory / "golden.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {clipped} of {STEPS} steps clipped, "
          f"float32 differs by {gaps[0]:.1e} (loss) {gaps[1]:.1e} (norm)")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "gpt2")
    for name in CASES:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
        make_case(name, root / name)


if __name__ == "__main__":
    main()
