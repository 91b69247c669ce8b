"""Compares the tokens of `axonn generate --prompts` at temperature 0 with transformers, for a model directory.

    python3 tests/golden/check_generate.py build/axonn MODEL [PROMPTS [TOKENS [FLAG...]]]

Needs torch and transformers. PROMPTS prompts of random tokens (40), of 1 token up to half of the model's positions, are continued
in fp32 by up to TOKENS tokens each (32), 1 for the first prompt and more for each further one; FLAGs go to axonn (such as
--batch 5). For each token, transformers computes the logits in float64 from the prompt and the tokens before. A token is right if
it has the largest logit. If its logit is within 1e-4 of the largest it is a near tie, which is counted: from there on transformers
alone might write another text. Exit code 1 if a token is neither."""

import json
import os
import random
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

TIE = 1e-4
axonn, folder = sys.argv[1:3]
prompts, most = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 40), (4, 32)))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
rng = random.Random(1)
longest = model.config.max_position_embeddings // 2
records = [{"id": i, "tokens": [rng.randrange(model.config.vocab_size) for _ in range(1 + (longest - 1) * i // max(prompts - 1, 1))],
            "max_tokens": min(1 + i, most)} for i in range(prompts)]
with tempfile.TemporaryDirectory() as tmp:
    path, out = os.path.join(tmp, "prompts.jsonl"), os.path.join(tmp, "texts.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(record) + "\n" for record in records)
    subprocess.run([axonn, "generate", folder, "--prompts", path, "--out", out, "--temperature", "0", "--ignore-end", *sys.argv[5:]],
                   check=True, capture_output=True)
    with open(out, encoding="utf-8") as f:
        texts = {text["id"]: text["tokens"] for text in map(json.loads, list(f)[1:])}
right = ties = wrong = different = 0
for record in records:
    ids = texts[record["id"]]
    with torch.no_grad():
        logits = model(torch.tensor([record["tokens"] + ids])).logits[0, len(record["tokens"]) - 1:-1]
    behind = logits.max(dim=-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    same = logits.argmax(dim=-1) == torch.tensor(ids)
    right += int(same.sum())
    ties += int((~same & (behind <= TIE)).sum())
    wrong += int((~same & (behind > TIE)).sum())
    different += not bool(same.all())
print(f"{prompts} texts, {right + ties + wrong} tokens: {right} those of transformers, {ties} near ties, {wrong} others; "
      f"{different} texts differ")
sys.exit(wrong > 0 or len(texts) != prompts)
