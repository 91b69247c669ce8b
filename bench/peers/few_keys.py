#!/usr/bin/env python3
"""Perplexity of a model of transformers whose tokens read few keys, in PyTorch: full attention, the exact top K, Loki in
the basis of a file of `axonn loki calibrate`, H2O, and attention in the D elements alone. Also how far Loki's choices are
the exact ones (Jaccard: common keys over all keys of the two). The text is cut into rows as by
`axonn eval --pack stream --cross-documents`, so perplexities with full attention are equal.

H2O (arXiv 2306.14048) keeps K keys, half of them the newest, half those of the largest sums of weights so far; what it has
dropped is gone. K is a share of the keys that a token sees, as for the others; "fixed": of the row's positions, so that the
first tokens drop nothing. For models whose layers have no sliding window.
Usage:  python3 few_keys.py --model DIR --data valid.tok --loki keys.safetensors [--keys 0.25] [--dims 0.25] [--seq 1024]
"""
import argparse
import json
import math
import struct

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AttentionInterface, AutoModelForCausalLM


def read_rows(path, seq, most):
    """Rows of inputs and targets of a token file of axonn data build; the last may be shorter."""
    head = open(path, "rb").read(256)
    if head[:8] != b"AXTOKENS":
        raise SystemExit(f"{path} is no token file of axonn data build")
    width, = struct.unpack_from("<I", head, 12)
    count, = struct.unpack_from("<Q", head, 16)
    at, = struct.unpack_from("<Q", head, 64)
    ids = torch.from_numpy(np.fromfile(path, "<u2" if width == 2 else "<u4", count, offset=at).astype(np.int64))
    return [ids[i:i + seq + 1] for i in range(0, count - 1, seq)][:most or None]


class FewKeys:
    """Attention of one way; `way` is set before each pass of the model."""

    def __init__(self, args):
        self.args, self.way = args, "full"
        self.jaccard = torch.zeros(2, dtype=torch.float64)  # the sum over rows, heads and queries, and their number
        self.turns = load_file(args.loki)

    def count(self, seen):
        """How many of `seen` keys a token reads."""
        return torch.clamp(torch.ceil(self.args.keys * seen - 1e-6), min=1).to(torch.int64)

    def best(self, scores):
        """Marks the K largest of each row's visible scores, of equal ones the earlier."""
        n = scores.shape[-1]
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        mine = torch.arange(n) < self.count(torch.arange(1, n + 1))[:, None]
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, mine.expand_as(scores))

    def heavy_hitters(self, scores):
        """Marks the keys that H2O has kept for each query, one query after the other."""
        b, h, n, _ = scores.shape
        kept, sums = torch.zeros(b, h, n, dtype=torch.bool), torch.zeros(b, h, n)
        marks = torch.zeros_like(scores, dtype=torch.bool)
        for i in range(n):
            kept[..., i] = True
            budget = self.count(torch.tensor(n if self.way == "h2o fixed" else i + 1)).item()
            if i + 1 > budget:
                newest = max(budget // 2, 1)
                old = sums[..., :i + 1 - newest].masked_fill(~kept[..., :i + 1 - newest], -1)
                stay = torch.zeros_like(old, dtype=torch.bool)
                if budget > newest:
                    stay.scatter_(-1, old.topk(min(budget - newest, old.shape[-1]), dim=-1).indices, True)
                kept[..., :i + 1 - newest] &= stay
            row = scores[..., i, :i + 1].masked_fill(~kept[..., :i + 1], -math.inf)
            sums[..., :i + 1] += row.softmax(-1)
            marks[..., i, :] = kept
        return marks

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **_):
        n, e = query.shape[-2:]
        group = query.shape[1] // key.shape[1]
        dims = min(e, 8 * math.ceil(self.args.dims * e / 8 - 1e-6))
        turn = self.turns[f"layers.{module.layer_idx}.turn"].to(query.dtype)[:, :, :dims]
        low_q = query @ turn.repeat_interleave(group, 0)
        low_k = (key @ turn).repeat_interleave(group, 1)
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(-1, -2)).mul_(scaling).masked_fill_(hidden, -math.inf)
        if self.way in ("loki", "dims alone"):
            low = (low_q @ low_k.transpose(-1, -2)).mul_(scaling).masked_fill_(hidden, -math.inf)
        if self.way == "dims alone":
            scores = low
        elif self.way == "loki":
            chosen, exact = self.best(low), self.best(scores)
            share = ((chosen & exact).sum(-1) / (chosen | exact).sum(-1))[:, :, n // 8:]
            self.jaccard += torch.tensor([share.sum().item(), share.numel()], dtype=torch.float64)
            scores.masked_fill_(~chosen, -math.inf)
        elif self.way == "exact":
            scores.masked_fill_(~self.best(scores), -math.inf)
        elif self.way.startswith("h2o"):
            scores.masked_fill_(~self.heavy_hitters(scores), -math.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2), None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="directory of the Hugging Face layout")
    p.add_argument("--data", required=True, help="token file of axonn data build")
    p.add_argument("--loki", required=True, help="file of axonn loki calibrate")
    p.add_argument("--keys", type=float, default=0.25, help="share of the keys")
    p.add_argument("--dims", type=float, default=0.25, help="share of a head's elements")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--rows", type=int, default=0, help="rows of --seq tokens; 0: all")
    p.add_argument("--batch", type=int, default=4, help="rows at a time")
    p.add_argument("--ways", nargs="+", default=["full", "exact", "loki", "h2o", "h2o fixed", "dims alone"])
    args = p.parse_args()
    few = FewKeys(args)
    AttentionInterface.register("few_keys", few)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="few_keys").eval()
    rows = read_rows(args.data, args.seq, args.rows)
    batches = [torch.stack(rows[i:i + args.batch]) for i in range(0, len(rows) - 1, args.batch)
               if len({len(row) for row in rows[i:i + args.batch]}) == 1]
    done = sum(len(b) for b in batches)
    batches += [row[None] for row in rows[done:]]
    found = {}
    for few.way in args.ways:
        total, tokens = 0.0, 0
        for batch in batches:
            with torch.no_grad():
                logits = model(batch[:, :-1], use_cache=False).logits
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
            tokens += batch[:, 1:].numel()
        found[few.way] = math.exp(total / tokens)
        print(f"{few.way}: perplexity {found[few.way]:.4f} over {tokens} tokens", flush=True)
    if few.jaccard[1]:
        found["jaccard"] = (few.jaccard[0] / few.jaccard[1]).item()
        print(f"Jaccard of Loki's and the exact choice, queries from an eighth of a row on: {found['jaccard']:.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
