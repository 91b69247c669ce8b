"""GPT-2 in PyTorch, as its users would write it, and the Llama of transformers."""

import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.head_dim = d // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (u.view(b, t, -1, self.head_dim).transpose(1, 2)  # tensor parallelism: heads of this rank
                   for u in self.qkv(self.ln_1(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, a):
        """`a` has vocab, hidden, seq, layers, heads and settings; setting "pad" rounds the vocabulary up to 128."""
        super().__init__()
        vocab = -(-a.vocab // 128) * 128 if "pad" in a.settings else a.vocab
        self.wte, self.wpe = nn.Embedding(vocab, a.hidden), nn.Embedding(a.seq, a.hidden)
        self.blocks = nn.ModuleList(Block(a.hidden, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.hidden)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, tokens, targets, reduction="mean"):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.before_head(self.ln_f(x)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)

    def before_head(self, x):
        """What torch_parallel.py replaces."""
        return x


def make_llama(a):
    """A LlamaForCausalLM of transformers; `a` has vocab, hidden, ffn, seq, layers, heads and kv_heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Llama(LlamaForCausalLM):
        def forward(self, tokens, targets, reduction="mean"):
            logits = super().forward(input_ids=tokens, use_cache=False).logits
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)

    return Llama(LlamaConfig(
        vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, max_position_embeddings=a.seq,
        attn_implementation="sdpa"))
