#!/usr/bin/env python3
"""Checks adapters that axonn wrote: PEFT loads them with no factor missing or left over, and computes the logits that
`axonn logits` prints; transformers loads the merged model (`axonn ckpt convert`) and computes the same ones.

Usage:  python3 tests/golden/check_adapter.py build/axonn ADAPTER
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file


def axonn_logits(program, model, tokens):
    text = subprocess.run([program, "logits", model, "--tokens", ",".join(map(str, tokens)), "--json"], check=True,
                          capture_output=True, text=True).stdout
    answer = json.loads(text)
    return torch.tensor(answer["logits"], dtype=torch.float64).view(answer["shape"])


def gap(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


def main():
    program, adapter = sys.argv[1], pathlib.Path(sys.argv[2])
    transformers.utils.logging.disable_progress_bar()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    base = transformers.AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"], dtype=torch.float32)
    tokens = torch.randint(base.config.vocab_size, (base.config.max_position_embeddings,),
                           generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        plain = base.eval()(input_ids=torch.tensor([tokens])).logits[0]
        model = peft.PeftModel.from_pretrained(base, adapter).eval()
        written = load_file(adapter / "adapter_model.safetensors")
        loaded = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        assert written.keys() == loaded.keys(), written.keys() ^ loaded.keys()
        assert all(torch.equal(written[k].float(), loaded[k].float()) for k in written)
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
    mine = axonn_logits(program, adapter, tokens)
    with tempfile.TemporaryDirectory() as parent:
        merged = pathlib.Path(parent) / "merged"
        subprocess.run([program, "ckpt", "convert", adapter, "--out", merged], check=True, capture_output=True)
        whole = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
        with torch.no_grad():
            of_merged = whole(input_ids=torch.tensor([tokens])).logits[0]
    print(f"{adapter}: {len(written)} factors; PEFT's logits within {gap(mine, logits):.1e}, the merged model's within "
          f"{gap(of_merged, logits):.1e}; the adapter changes the base's by {gap(plain, logits):.1e}")
    assert gap(mine, logits) < 1e-5 and gap(of_merged, logits) < 1e-5 and gap(plain, logits) > 1e-3


if __name__ == "__main__":
    main()
