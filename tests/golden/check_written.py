#!/usr/bin/env python3
"""Checks with transformers a model or checkpoint that axonn wrote. It must load from all its shards without missing
or unexpected keys, save the same tensors again, and give the logits that `axonn logits` prints.

    python3 tests/golden/check_written.py build/axonn RUN_OR_MODEL [tokens]

Not part of the tests, which need no Python."""
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def tensors(directory):
    """Returns every tensor of a model directory, from the files of its index if it has one."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return load_file(os.path.join(directory, "model.safetensors"))
    with open(index) as f:
        files = set(json.load(f)["weight_map"].values())
    return {k: t for name in files for k, t in load_file(os.path.join(directory, name)).items()}


def main():
    axonn, path = sys.argv[1:3]
    tokens = sys.argv[3] if len(sys.argv) > 3 else "1,2,3,5,8,13"
    if os.path.exists(os.path.join(path, "latest")):
        with open(os.path.join(path, "latest")) as f:
            path = os.path.join(path, "ckpt", f.read().strip())
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, dtype=torch.float32)
    assert not any(info.values()), f"transformers says: {info}"
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        ours, theirs = tensors(path), tensors(again)
        assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
        for key, tensor in ours.items():
            assert torch.equal(tensor.float(), theirs[key]), key
    printed = json.loads(subprocess.check_output([axonn, "logits", path, "--tokens", tokens, "--json"]))
    ours = torch.tensor(printed["logits"]).reshape(printed["shape"])
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([[int(t) for t in tokens.split(",")]])).logits[0]
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert error < 1e-4, f"logits differ by {error:.2e}"
    print(f"{path}: {len(tensors(path))} tensors, logits agree to {error:.1e}")


if __name__ == "__main__":
    main()
