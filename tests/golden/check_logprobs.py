"""Compares the sums of log-probabilities of `axonn eval --pairs` with transformers, for texts of up to 1000 tokens.

    python3 tests/golden/check_logprobs.py build/axonn [FLAG...]

Needs torch and transformers. Makes a GPT-2 of two layers with random weights and the vocabulary of GPT-2 124M, and random texts.
Each line has how far sums are from those in float64: axonn's in fp32; transformers' log-probabilities in fp32, added in fp32 as
lm-eval's class `hf` does; the same, added in float64; and half of the distance of fp32 numbers at the sum. Exit code 1 if axonn is
more than 1e-4 off."""

import copy
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2)).eval()
exact = copy.deepcopy(model).double()
texts = [torch.randint(0, model.config.vocab_size, (n,)).tolist() for n in (50, 300, 600, 900, 1000)]
with tempfile.TemporaryDirectory() as tmp:
    folder, pairs, out = (os.path.join(tmp, name) for name in ("model", "pairs.jsonl", "scores.jsonl"))
    model.save_pretrained(folder)
    with open(pairs, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt_tokens": ids[:1], "continuation_tokens": ids[1:]}) + "\n" for ids in texts)
    subprocess.run([sys.argv[1], "eval", folder, "--pairs", pairs, "--out", out, *sys.argv[2:]], check=True, capture_output=True)
    with open(out, encoding="utf-8") as f:
        ours = [json.loads(line)["logprob"] for line in f]
worst = 0.0
for ids, got in zip(texts, ours):
    tensor = torch.tensor([ids])
    with torch.no_grad():
        single, double = (torch.log_softmax(m(tensor).logits[0, :-1], -1).gather(1, tensor[0, 1:, None])[:, 0] for m in (model, exact))
    want = float(double.sum())
    half = torch.finfo(torch.float32).eps * 2 ** int(torch.log2(double.sum().abs())) / 2
    worst = max(worst, abs(got - want))
    print(f"{len(ids) - 1} tokens, {want:.3f}: axonn {got - want:+.1e}, transformers {float(single.sum()) - want:+.1e}, added in "
          f"float64 {float(single.double().sum()) - want:+.1e}, rounding up to {half:.1e}")
sys.exit(worst > 1e-4)
