"""Compares loss and token ids of plain text with transformers, for a model directory whose tokenizer puts tokens around a text.

    python3 tests/golden/check_eval.py build/axonn MODEL TEXT.jsonl

Needs torch and transformers. Each line of TEXT.jsonl is an object with the member "text". The documents that `axonn data build`
writes must be what the model's tokenizer returns and then, unless it is there, the end-of-text token; the loss of `axonn eval`
must be that of transformers on these ids. Exit code 1 if something differs."""

import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

axonn, folder, path = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
documents, loss, targets = [], 0.0, 0
for line in open(path, encoding="utf-8"):
    ids = tokenizer(json.loads(line)["text"])["input_ids"]
    if not ids or ids[-1] != tokenizer.eos_token_id:
        ids.append(tokenizer.eos_token_id)
    documents.append(ids)
    with torch.no_grad():
        tensor = torch.tensor([ids])
        loss += model(tensor, labels=tensor).loss.item() * (len(ids) - 1)
    targets += len(ids) - 1
with tempfile.TemporaryDirectory() as tmp:
    tok = os.path.join(tmp, "text.tok")
    subprocess.run([axonn, "data", "build", "--input", path, "--tokenizer", folder, "--out", tok], check=True, capture_output=True)
    wrong = 0
    for i, ids in enumerate(documents):
        got = subprocess.run([axonn, "data", "show", tok, "--document", str(i)], check=True, capture_output=True, text=True).stdout
        wrong += [int(x) for x in got.split(",")] != ids
    out = subprocess.run([axonn, "eval", folder, "--data", path, "--pack", "documents", "--precision", "fp32", "--json"], check=True,
                         capture_output=True, text=True).stdout
result = json.loads(out)
print(f"{len(documents)} documents, {wrong} differ; loss {result['loss']:.6f} of {result['targets']} targets, transformers "
      f"{loss / targets:.6f} of {targets}")
sys.exit(wrong > 0 or result["targets"] != targets or abs(result["loss"] - loss / targets) > 1e-5)
