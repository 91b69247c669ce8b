#!/usr/bin/env python3
"""Makes tests/golden/{llama,mistral,ministral,qwen2,qwen3,mixtral,qwen3_moe,olmoe} and rope.json: what transformers and torch's AdamW compute for small
random models.

As make_gpt2.py, whose functions it uses: weights are float32, results are computed from them in float64, and again in
float32, to check that a float32 program can reach them. (transformers computes RMSNorm, the softmax of attention and
rotary embeddings in float32 whatever the model's dtype: results are exact to about 1e-6.)
Usage:  python3 tests/golden/make_decoder.py [DIRECTORY [CASE…]]
"""

import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

from make_gpt2 import (BATCHES, HYPER, IGNORE, MICRO_BATCHES, STEPS, forward_backward, make_batch, relative, train)

EAGER = dict(attn_implementation="eager", experts_implementation="eager")
NEW_TOKENS = 20
Z_LOSS = 0.02  # coefficient of the z loss; that of the balance loss is router_aux_loss_coef

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN_ALL = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 12, "beta_fast": 16.0,
            "beta_slow": 2.0, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}

# family/name: (config, what is made beside the forward case). "old": config.json in the spelling of transformers 4;
# "base": weights without the prefix "model."; "fused": one array for all experts of a layer; "num_experts": the number of
# experts under the name that transformers 4 knows; "mistral": a Ministral, which transformers makes of a file of Mistral's
# that has layer_types, in such a file.
CASES = {
    "llama/grouped": (dict(num_hidden_layers=2, hidden_size=30, num_attention_heads=3, num_key_value_heads=1,
                           intermediate_size=44, vocab_size=67, max_position_embeddings=40),
                      "train packed generate".split()),
    "llama/llama3": (dict(num_hidden_layers=1, hidden_size=36, num_attention_heads=6, num_key_value_heads=2,
                          intermediate_size=50, vocab_size=41, max_position_embeddings=64, rope_theta=500.0,
                          rope_scaling=LLAMA3, tie_word_embeddings=True), ["old", "generate"]),
    "llama/linear": (dict(num_hidden_layers=1, hidden_size=22, num_attention_heads=2, head_dim=14,
                          intermediate_size=17, vocab_size=31, max_position_embeddings=64,
                          rope_scaling=LINEAR), ["base"]),
    "llama/yarn": (dict(num_hidden_layers=1, hidden_size=24, num_attention_heads=2, num_key_value_heads=2,
                        intermediate_size=19, vocab_size=31, max_position_embeddings=64, rope_scaling=YARN), []),
    "llama/biases": (dict(num_hidden_layers=2, hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                          intermediate_size=23, vocab_size=37, max_position_embeddings=40, attention_bias=True,
                          mlp_bias=True), "train packed generate".split()),
    "mistral/types": (dict(num_hidden_layers=3, hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
                           intermediate_size=21, vocab_size=29, head_dim=6,
                           max_position_embeddings=40, sliding_window=5,
                           layer_types=["full_attention", "sliding_attention", "full_attention"]),
                      "mistral packed generate".split()),
    "ministral/types": (dict(num_hidden_layers=3, hidden_size=15, num_attention_heads=3, num_key_value_heads=1,
                             intermediate_size=19, vocab_size=23, head_dim=8, max_position_embeddings=40,
                             sliding_window=4,
                             layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
                        "packed generate".split()),
    "mistral/window": (dict(num_hidden_layers=2, hidden_size=28, num_attention_heads=4, num_key_value_heads=2,
                            head_dim=10, intermediate_size=33, vocab_size=53, max_position_embeddings=40,
                            sliding_window=7), "train packed generate".split()),
    "mistral/whole": (dict(num_hidden_layers=1, hidden_size=21, num_attention_heads=3, num_key_value_heads=1,
                           head_dim=8, intermediate_size=29, vocab_size=37, max_position_embeddings=40,
                           sliding_window=None, tie_word_embeddings=True), ["old"]),
    "mistral/yarn": (dict(num_hidden_layers=1, hidden_size=20, num_attention_heads=5, num_key_value_heads=5,
                          head_dim=6, intermediate_size=23, vocab_size=29, max_position_embeddings=64,
                          sliding_window=11, rope_scaling=YARN_ALL), ["old"]),
    "qwen2/tied": (dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                        intermediate_size=46, vocab_size=61, max_position_embeddings=40, rope_theta=1e6,
                        tie_word_embeddings=True), "train packed generate".split()),
    "qwen2/windows": (dict(num_hidden_layers=3, hidden_size=20, num_attention_heads=5, num_key_value_heads=1,
                           intermediate_size=27, vocab_size=43, max_position_embeddings=40,
                           use_sliding_window=True, sliding_window=5, max_window_layers=1), "packed generate".split()),
    "qwen2/yarn": (dict(num_hidden_layers=1, hidden_size=24, num_attention_heads=3, num_key_value_heads=3,
                        intermediate_size=21, vocab_size=31, max_position_embeddings=64, rope_scaling=YARN),
                   ["old", "base"]),
    "qwen3/norms": (dict(num_hidden_layers=2, hidden_size=26, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=12, intermediate_size=39, vocab_size=59, max_position_embeddings=40,
                         tie_word_embeddings=True), "train packed generate".split()),
    "qwen3/biases": (dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                          head_dim=10, intermediate_size=19, vocab_size=29, max_position_embeddings=40,
                          attention_bias=True, tie_word_embeddings=True), ["generate"]),
    "qwen3/types": (dict(num_hidden_layers=3, hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                         head_dim=8, intermediate_size=25, vocab_size=31, max_position_embeddings=40,
                         use_sliding_window=True, sliding_window=4,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"]), ["generate"]),
    "qwen3/one": (dict(num_hidden_layers=1, hidden_size=15, num_attention_heads=1, num_key_value_heads=1, head_dim=14,
                       intermediate_size=13, vocab_size=23, max_position_embeddings=64, rope_theta=50.0,
                       rope_scaling=LINEAR), ["old"]),
    "mixtral/window": (dict(num_hidden_layers=2, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
                            intermediate_size=14, vocab_size=47, max_position_embeddings=40, num_local_experts=5,
                            num_experts_per_tok=2, sliding_window=7, router_aux_loss_coef=0.05),
                       "train packed generate".split()),
    "mixtral/fused": (dict(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, num_key_value_heads=1,
                           intermediate_size=11, vocab_size=29, max_position_embeddings=40, num_local_experts=4,
                           num_experts_per_tok=3, sliding_window=None, router_aux_loss_coef=0.1), ["fused"]),
    "mixtral/all": (dict(num_hidden_layers=1, hidden_size=21, num_attention_heads=3, num_key_value_heads=3, head_dim=10,
                         intermediate_size=9, vocab_size=23, max_position_embeddings=40, num_local_experts=3,
                         num_experts_per_tok=3, sliding_window=None, router_aux_loss_coef=0.05,
                         tie_word_embeddings=True), ["old", "packed", "generate"]),
    "qwen3_moe/dense": (dict(num_hidden_layers=3, hidden_size=18, num_attention_heads=3, num_key_value_heads=1,
                             head_dim=8, intermediate_size=23, moe_intermediate_size=9, vocab_size=37,
                             max_position_embeddings=40, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True,
                             mlp_only_layers=[1], router_aux_loss_coef=0.05), "packed generate".split()),
    "qwen3_moe/step": (dict(num_hidden_layers=4, hidden_size=16, num_attention_heads=2, num_key_value_heads=2,
                            head_dim=10, intermediate_size=19, moe_intermediate_size=12, vocab_size=31,
                            max_position_embeddings=40, num_experts=7, num_experts_per_tok=1, norm_topk_prob=False,
                            decoder_sparse_step=2, router_aux_loss_coef=0.05), ["old", "num_experts"]),
    "qwen3_moe/biases": (dict(num_hidden_layers=2, hidden_size=15, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=6, intermediate_size=11, moe_intermediate_size=17, vocab_size=29,
                              max_position_embeddings=40, num_experts=5, num_experts_per_tok=4, norm_topk_prob=True,
                              mlp_only_layers=[0], attention_bias=True, use_sliding_window=True, sliding_window=5,
                              router_aux_loss_coef=0.1), ["fused", "num_experts", "generate"]),
    "qwen3_moe/tied": (dict(num_hidden_layers=3, hidden_size=14, num_attention_heads=2, num_key_value_heads=1,
                            intermediate_size=13, moe_intermediate_size=6, vocab_size=27, max_position_embeddings=40,
                            head_dim=12, num_experts=11, num_experts_per_tok=5, norm_topk_prob=False,
                            decoder_sparse_step=3, router_aux_loss_coef=0.05, tie_word_embeddings=True), ["packed"]),
    "olmoe/grouped": (dict(num_hidden_layers=2, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
                           intermediate_size=10, vocab_size=41, max_position_embeddings=40, num_experts=6,
                           num_experts_per_tok=3, norm_topk_prob=False, router_aux_loss_coef=0.05),
                      "packed generate".split()),
    "olmoe/fused": (dict(num_hidden_layers=1, hidden_size=18, num_attention_heads=3, num_key_value_heads=3,
                         intermediate_size=13, vocab_size=29, max_position_embeddings=40, num_experts=4,
                         num_experts_per_tok=2, norm_topk_prob=True, router_aux_loss_coef=0.05), ["fused"]),
    "olmoe/tied": (dict(num_hidden_layers=1, hidden_size=30, num_attention_heads=5, num_key_value_heads=1,
                        intermediate_size=7, vocab_size=37, max_position_embeddings=40, num_experts=9,
                        num_experts_per_tok=1, norm_topk_prob=False, router_aux_loss_coef=0.1,
                        tie_word_embeddings=True), ["old", "generate"]),
}


def make_model(config):
    """Makes every tensor random, and so large that a missing term shows in the results."""
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0.0, 0.2)
            if "norm" in name:
                p.add_(1.0)
    return model.eval()


def router_losses(model, tokens):
    """Returns the balance and the z loss of the routers: means over layers and samples, each as docs/training.md defines
    it for one sample and layer; None if the model has no routers."""
    routers = [m for name, m in model.named_modules() if name.endswith(".gate")]
    logits, k = [], getattr(model.config, "num_experts_per_tok", 0)
    hooks = [m.register_forward_pre_hook(lambda m, x: logits.append(F.linear(x[0], m.weight))) for m in routers]
    model(input_ids=tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    if not logits:
        return None
    logits = torch.stack([x.reshape(*tokens.shape, -1) for x in logits])  # layers, samples, positions, experts
    probs = logits.softmax(-1)
    chosen = F.one_hot(probs.topk(k).indices, probs.shape[-1]).sum(-2).to(probs.dtype)
    balance = probs.shape[-1] * (chosen.mean(2) * probs.mean(2)).sum(-1)
    return balance.mean(), logits.logsumexp(-1).square().mean()


def extra_loss(model, tokens):
    losses = router_losses(model, tokens)
    return losses[0] * model.config.router_aux_loss_coef + losses[1] * Z_LOSS if losses else 0


def write_model(model, directory, options, config):
    """Writes the model, then respells its files as older programs do."""
    (model.model if "base" in options else model).save_pretrained(directory, save_original_format="fused" not in options)
    path = directory / "config.json"
    written = json.loads(path.read_text())
    written["architectures"] = [type(model).__name__]
    if "mistral" in options:
        written |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    if "base" in options and not model.config.tie_word_embeddings:
        weights = {k.removeprefix("model."): v.contiguous() for k, v in model.state_dict().items()}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    if "num_experts" in options:
        written["num_experts"] = written.pop("num_local_experts")
    if "old" in options:
        parameters = written.pop("rope_parameters")
        written["rope_theta"] = parameters.pop("rope_theta")
        kind = parameters.pop("rope_type")
        written["rope_scaling"] = None if kind == "default" else {"type": kind} | parameters
        written["torch_dtype"] = written.pop("dtype")
        written.pop("layer_types", None)
    path.write_text(json.dumps(written, indent=2) + "\n")


def masks(config, ids):
    """Returns the additive masks [rows, 1, query, key] by type of layer: documents `ids`, causal, and the window."""
    t = ids.shape[1]
    at = torch.arange(t)
    seen = (ids[:, :, None] == ids[:, None, :])[:, None] & (at[:, None] >= at[None, :])
    near = seen & (at[:, None] - at[None, :] < (getattr(config, "sliding_window", None) or t))
    additive = [torch.zeros(m.shape, dtype=torch.float64).masked_fill(~m, torch.finfo(torch.float64).min)
                for m in (seen, near)]
    if getattr(config, "layer_types", None):
        return {"full_attention": additive[0], "sliding_attention": additive[1]}
    return additive[1]


def packed_case(model, length):
    """Two rows of three documents, in one of which a document of one token, and one that ends with the row."""
    config, rows = model.config, 2
    tokens, targets = make_batch(rows, length, config.vocab_size, 0.1)
    ids, positions = torch.zeros(rows, length, dtype=torch.long), torch.zeros(rows, length, dtype=torch.long)
    for row, cuts in enumerate([[0, 7, 8], [0, 3, 15]]):
        for i, start in enumerate(cuts):
            ids[row, start:] = i
            positions[row, start:] = torch.arange(length - start)
    targets[:, :-1][ids[:, 1:] != ids[:, :-1]] = IGNORE  # the first token of a document is no target
    logits, loss, _ = forward_backward(model, tokens, targets, attention_mask=masks(config, ids),
                                       position_ids=positions)
    for row in range(rows):  # each document alone gives the same
        for i in range(3):
            part = ids[row] == i
            alone = model(input_ids=tokens[row][part][None], use_cache=False).logits[0]
            assert torch.allclose(alone, logits[row][part], rtol=1e-5, atol=1e-5)
    return {"tokens": tokens, "targets": targets, "documents": ids, "loss": loss[None]}


def generate(model, length, vocab):
    """Returns a prompt and the greedy tokens after it. The best token always leads clearly, and the tokens differ."""
    while True:
        prompt = torch.randint(vocab, (1, length))
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS,
                             do_sample=False, pad_token_id=0)
        top = model(input_ids=out[:, :-1]).logits[0, length - 1:].topk(2).values
        new = out[0, length:]
        if (top[:, 0] - top[:, 1]).min() > 0.02 and new.unique().numel() >= 4:
            assert new.numel() == NEW_TOKENS
            return prompt[0], new


def final_sums(model):
    """Returns [sum, sum of squares] of each tensor."""
    return {name: torch.stack([p.detach().double().sum(), p.detach().double().square().sum()])
            for name, p in model.named_parameters()}


def train_case(single, double, vocab, length):
    # Micro-batches have very different numbers of targets, so that the mean of their means would be wrong.
    made = [make_batch(2, length, vocab, [0.0, 0.4, 0.8][i % MICRO_BATCHES]) for i in range(BATCHES * MICRO_BATCHES)]
    tokens, targets = (torch.stack(v).unflatten(0, (BATCHES, MICRO_BATCHES)) for v in zip(*made))
    losses, norms, rates = train(double, tokens, targets, extra_loss)
    losses32, norms32, _ = train(single, tokens, targets, extra_loss)
    gaps = [((a - b).abs() / b).max().item() for a, b in ((losses32, losses), (norms32, norms))]
    assert gaps[0] < 1e-5 and gaps[1] < 1e-4, gaps
    clipped = (norms > HYPER["clip"]).sum().item()
    assert 0 < clipped < STEPS and losses[-1] < 0.9 * losses[0]
    print(f"  loss {losses[0]:.4f} -> {losses[-1]:.4f}, {clipped} of {STEPS} steps clipped, float32 differs by "
          f"{gaps[0]:.1e} (loss) {gaps[1]:.1e} (norm)")
    out = {"tokens": tokens, "targets": targets, "loss": losses, "grad_norm": norms, "lr": rates}
    return out | {"final." + k: v for k, v in final_sums(double).items()}


def make_case(name, directory):
    settings, options = CASES[name]
    torch.manual_seed(sum(name.encode()))
    family = "ministral" if "mistral" in options else name.split("/")[0]
    config = transformers.AutoConfig.for_model(family, bos_token_id=None, eos_token_id=None, pad_token_id=None,
                                               **settings)
    single = make_model(config)
    single.save_pretrained(directory)
    double = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, **EAGER).eval()
    write_model(single, directory, options, config)
    vocab, length = config.vocab_size, min(config.max_position_embeddings, 37)

    tokens, targets = make_batch(2, length, vocab, 0.3)
    logits, loss, grads = forward_backward(double, tokens, targets, extra_loss)
    again = transformers.AutoModelForCausalLM.from_pretrained(directory, **EAGER).eval()
    assert relative(again(input_ids=tokens, use_cache=False).logits, logits) < 1e-5  # the files as they were respelled
    assert relative(forward_backward(single, tokens, targets)[0], logits) < 1e-5
    out = {"forward.tokens": tokens, "forward.targets": targets, "forward.logits": logits, "forward.loss": loss[None]}
    out |= {"forward.grad." + k: g for k, g in grads.items()}
    if losses := router_losses(double, tokens):
        out |= {"forward.balance_loss": losses[0].detach()[None], "forward.z_loss": losses[1].detach()[None]}
    print(f"{name}: {sum(p.numel() for p in single.parameters())} parameters, {transformers.__version__}")
    if "packed" in options:
        out |= {"packed." + k: v for k, v in packed_case(double, length).items()}
    if "generate" in options:
        out["generate.prompt"], out["generate.tokens"] = generate(double, 5, vocab)
    if "train" in options:
        out |= {"train." + k: v for k, v in train_case(single, double, vocab, 24).items()}
    out = {k: (v.to(torch.int32) if v.dtype == torch.int64 else
               v.float() if k.startswith(("forward.grad", "forward.logits")) else v).contiguous()
           for k, v in out.items()}
    save_file(out, directory / "golden.safetensors")
    about = {"case": name, "optim": HYPER, "batches": BATCHES, "micro_batches": MICRO_BATCHES, "ignore": IGNORE,
             "torch": torch.__version__, "transformers": transformers.__version__}
    (directory / "golden.json").write_text(json.dumps(about, indent=2) + "\n")


# theta, parameters, size of a head
ROPES = [
    (10000.0, {"rope_type": "default"}, 64),
    (1000000.0, {"rope_type": "default"}, 80),
    (100000.0, {"rope_type": "linear", "factor": 4.0}, 128),
    (500000.0, {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}, 64),
    (1000000.0, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 128),
    (10000.0, {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0,
               "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False}, 48),
    (50000.0, {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048,
               "attention_factor": 1.5}, 30),
]


def make_ropes(path):
    """Writes frequencies, and cosines and sines at some positions, of rotary embeddings at real sizes."""
    cases = []
    for theta, parameters, size in ROPES:
        config = transformers.LlamaConfig(hidden_size=size, num_attention_heads=1, max_position_embeddings=131072,
                                          rope_parameters=parameters | {"rope_theta": theta})
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        positions = torch.tensor([[1, 8191, 65537]])
        cos, sin = (v[0, :, : size // 2].tolist() for v in rotary(torch.zeros(1), positions))
        cases.append({"config": {"rope_theta": theta, "rope_scaling": parameters}, "head_dim": size,
                      "frequencies": rotary.inv_freq.tolist(), "attention_factor": rotary.attention_scaling,
                      "positions": positions[0].tolist(), "cos": cos, "sin": sin})
    path.write_text(json.dumps(cases) + "\n")


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    if len(sys.argv) <= 2:
        make_ropes(root / "rope.json")
    for name in sys.argv[2:] or CASES:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
        make_case(name, root / name)


if __name__ == "__main__":
    main()
