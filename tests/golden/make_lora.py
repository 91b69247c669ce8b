#!/usr/bin/env python3
"""Makes tests/golden/lora: what PEFT and torch's AdamW compute for adapters of the golden models.

As make_gpt2.py, whose functions it uses: weights are float32, results are computed from them in float64.
Usage:  python3 tests/golden/make_lora.py [DIRECTORY]
"""

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from make_gpt2 import BATCHES, HYPER, IGNORE, MICRO_BATCHES, STEPS, forward, make_batch, train

# name: (base, settings of LoraConfig). Ranks: 1, 8, and one above the size of a head.
CASES = {
    "joint": ("gpt2/tanh", dict(r=8, lora_alpha=12, target_modules=["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
                                fan_in_fan_out=True)),
    "one": ("gpt2/tanh", dict(r=1, lora_alpha=2, target_modules=["attn.c_proj", "c_fc", "mlp.c_proj"],
                              fan_in_fan_out=True)),
    "all": ("llama/grouped", dict(r=8, lora_alpha=4, target_modules="all-linear", use_rslora=True)),
    "patterns": ("qwen3/norms", dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"],
                                     rank_pattern={"q_proj": 14}, alpha_pattern={"v_proj": 5})),
    # Blocks differ, and the output layer and the token embedding, which are tied, have an update each.
    "blocks": ("qwen3/norms", dict(r=3, lora_alpha=6,
                                   target_modules=["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                                                   "model.layers.1.mlp.up_proj", "lm_head", "embed_tokens"],
                                   rank_pattern={"layers.1.self_attn.q_proj": 5, "lm_head": 2},
                                   alpha_pattern={"layers.1.mlp.up_proj": 9, "embed_tokens": 4})),
}


def make_case(name, root):
    base, settings = CASES[name]
    torch.manual_seed(sum(name.encode()))
    directory = root / "lora" / name
    single = transformers.AutoModelForCausalLM.from_pretrained(root / base, attn_implementation="eager").eval()
    model = peft.get_peft_model(single, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.normal_(0.0, 0.1)
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    path = directory / "adapter_config.json"
    written = json.loads(path.read_text())
    written["base_model_name_or_path"] = "../../" + base
    written["target_modules"] = sorted(written["target_modules"])
    path.write_text(json.dumps(written, indent=2) + "\n")

    double = transformers.AutoModelForCausalLM.from_pretrained(root / base, dtype=torch.float64,
                                                               attn_implementation="eager").eval()
    tuned = peft.PeftModel.from_pretrained(double, directory, is_trainable=True, autocast_adapter_dtype=False).double()
    vocab, length = double.config.vocab_size, 19
    tokens, targets = make_batch(2, length, vocab, 0.3)
    logits, loss = forward(tuned, tokens, targets)
    (loss / (targets != IGNORE).sum()).backward()
    out = {"forward.tokens": tokens, "forward.targets": targets, "forward.logits": logits.detach(),
           "forward.loss": (loss.detach() / (targets != IGNORE).sum())[None]}
    for key, p in tuned.named_parameters():
        assert p.requires_grad == ("lora_" in key)
        if p.requires_grad:
            out["forward.grad." + key.replace(".default", "")] = p.grad.clone()
    made = [make_batch(2, length, vocab, [0.0, 0.4, 0.8][i % MICRO_BATCHES]) for i in range(BATCHES * MICRO_BATCHES)]
    tokens, targets = (torch.stack(v).unflatten(0, (BATCHES, MICRO_BATCHES)) for v in zip(*made))
    tuned.zero_grad()
    for key, p in list(tuned.named_parameters()):
        p.requires_grad_("lora_" in key)
    trained = torch.nn.ParameterList([p for p in tuned.parameters() if p.requires_grad])
    tuned.parameters = trained.parameters  # make_gpt2.train trains all parameters
    losses, norms, _ = train(tuned, tokens, targets)
    assert losses[-1] < 0.95 * losses[0]
    print(f"  loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    out |= {"train.tokens": tokens, "train.targets": targets, "train.loss": losses, "train.grad_norm": norms}
    out = {k: (v.to(torch.int32) if v.dtype == torch.int64 else
               v.float() if k.startswith(("forward.grad", "forward.logits")) else v).contiguous()
           for k, v in out.items()}
    save_file(out, directory / "golden.safetensors")
    about = {"case": name, "optim": HYPER, "steps": STEPS, "torch": torch.__version__,
             "transformers": transformers.__version__, "peft": peft.__version__}
    (directory / "golden.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{name}: {sum(p.numel() for p in tuned.parameters() if p.requires_grad)} elements of factors")


# Spellings of init_lora_weights.
INITS = [True, False, None, "gaussian", "Gaussian", "GAUSSIAN", "eva", "Eva", "orthogonal", "Orthogonal", "mica", "MiCA",
         "olora", "OLoRA", "pissa", "PiSSA", "pissa_niter_4", "corda", "loftq", "lora_ga", "true", "none", "", 1, [], "new"]


def make_fields(root):
    """Writes lora/fields.json: the members of LoraConfig with their defaults, and for each spelling of init_lora_weights
    how far PEFT's logits for an adapter move with it (null: PEFT refuses it)."""
    fields = peft.LoraConfig().to_dict()
    names = {f.name for f in dataclasses.fields(peft.LoraConfig)}
    fields = {name: fields.get(name) for name in sorted(names)}
    base = root / CASES["all"][0]
    weights = load_file(root / "lora" / "all" / "adapter_model.safetensors")
    tokens = torch.tensor([list(range(16))])
    inits, plain = [], None
    for value in INITS:
        settings = json.loads((root / "lora" / "all" / "adapter_config.json").read_text())
        settings |= {"init_lora_weights": value, "loftq_config": {"loftq_bits": 4} if value == "loftq" else {}}
        with tempfile.TemporaryDirectory() as adapter:
            (pathlib.Path(adapter) / "adapter_config.json").write_text(json.dumps(settings))
            save_file(weights, pathlib.Path(adapter) / "adapter_model.safetensors")
            try:
                model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
                with torch.no_grad():
                    logits = peft.PeftModel.from_pretrained(model.eval(), adapter)(input_ids=tokens).logits
                plain = logits if plain is None else plain
                inits.append([value, (logits - plain).abs().max().item()])
            except Exception as error:
                print(f"  {value!r}: {type(error).__name__}: {str(error)[:80]}")
                inits.append([value, None])
    written = {"peft": peft.__version__, "fields": fields, "init_lora_weights": inits}
    (root / "lora" / "fields.json").write_text(json.dumps(written, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    shutil.rmtree(root / "lora", ignore_errors=True)
    for name in CASES:
        make_case(name, root)
    make_fields(root)


if __name__ == "__main__":
    main()
