"""Writes beside.json: token ids that transformers gives with tokenizers of which tokenizer.json does not say all.

    python3 tests/golden/make_beside.py

Each variant is a tokenizer of tokenizer.json ("base"), members that replace those of its tokenizer.json ("json"), and the files
beside it. AutoTokenizer loads the directory. A variant has for each text the ids, with the special tokens around it. The class LlamaTokenizer
is left out: transformers 5 does not take its normalizer and pre-tokenizer from tokenizer.json, but axonn does, as transformers 4
and the library tokenizers do."""

import json
import os
import tempfile

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from make_tokenizer import DEEPSEEK_V3, LLAMA3, split

HERE = os.path.dirname(os.path.abspath(__file__))
END = "<|endoftext|>"
TEXTS = ["", "the time", " the  of", "a<|x|>b <|x|> c", "the <|y|>the", "<|x|><|y|>", "<|endoftext|>the<|endoftext|> x", "x  <|x|>  \n y",
         "the<|z|>the <|z|>", "\n\n<|y|>\n", "na\u00efve caf\u00e9", "word<s>the</s> it's", "1234 12"]


def token(content, **flags):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True, **flags}


def template(before=(), after=()):
    single = [{"SpecialToken": {"id": b, "type_id": 0}} for b in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    single += [{"SpecialToken": {"id": a, "type_id": 0}} for a in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}}}


def variants():
    """Yields name, base, members of tokenizer.json, files."""
    def config(**members):
        return {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **members}}

    n = 420
    yield "added_tokens_decoder", "gpt2", {}, config(added_tokens_decoder={"0": token(END), str(n): token("<|x|>"),
                                                                          str(n + 1): token("<|y|>", special=False)})
    yield "added_tokens_decoder, out of order", "gpt2", {}, config(added_tokens_decoder={
        str(n + 1): token("<|y|>", lstrip=True), str(n): token("<|x|>", rstrip=True)})
    yield "added_tokens_decoder changes flags", "gpt2", {}, config(added_tokens_decoder={"0": token(END, lstrip=True, rstrip=True)})
    yield "strips", "gpt2", {}, config(added_tokens_decoder={str(n): token("<|x|>", lstrip=True, rstrip=True),
                                                              str(n + 1): token("<|z|>", single_word=True)})
    yield "additional_special_tokens", "gpt2", {}, config(additional_special_tokens=["<|x|>", token("<|y|>", lstrip=True)])
    yield "extra_special_tokens, a list", "gpt2", {}, config(extra_special_tokens=["<|y|>", "<|x|>"])
    yield "extra_special_tokens, an object", "gpt2", {}, config(extra_special_tokens={"image_token": "<|y|>", "b_token": "<|x|>"})
    yield "both lists", "gpt2", {}, config(extra_special_tokens=["<|z|>"], additional_special_tokens=["<|x|>"])
    yield "eos_token as an object", "gpt2", {}, config(eos_token=token("<|x|>", lstrip=True), pad_token=token("<|y|>"))
    yield "named tokens", "gpt2", {}, config(bos_token="<|z|>", eos_token="<|y|>", unk_token="<|x|>", pad_token=None)
    yield "a token of the vocabulary", "gpt2", {}, config(eos_token="the", pad_token="e")
    yield "other members", "gpt2", {}, config(image_token="<|x|>", mask_token="<|y|>")
    yield "special_tokens_map", "gpt2", {}, {**config(), "special_tokens_map.json": {
        "eos_token": "<|x|>", "additional_special_tokens": [token("<|y|>", rstrip=True)]}}
    yield "special_tokens_map beside added_tokens_decoder", "gpt2", {}, {
        **config(added_tokens_decoder={str(n): token("<|x|>")}), "special_tokens_map.json": {"eos_token": "<|y|>"}}
    yield "added_tokens", "gpt2", {}, {**config(eos_token="<|z|>"), "added_tokens.json": {"<|x|>": n, "<|y|>": n + 1}}
    yield "split_special_tokens", "gpt2", {}, config(split_special_tokens=True, additional_special_tokens=["<|x|>"],
                                                      added_tokens_decoder={str(n): token("<|y|>", special=False)})
    for value in (True, False):
        for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer"):
            yield "add_prefix_space %s, %s" % (value, name), "gpt2", {}, config(add_prefix_space=value, tokenizer_class=name)
    yield "add_prefix_space, Qwen2Tokenizer", "qwen2", {}, config(add_prefix_space=False, tokenizer_class="Qwen2Tokenizer")
    for bos, eos in ((True, True), (False, False), (None, None), (True, False), (False, True)):
        members = dict(add_bos_token=bos, add_eos_token=eos, bos_token=END, eos_token=token(END))
        yield "around %s %s" % (bos, eos), "gpt2", {}, config(**members)
        yield "around %s %s, template" % (bos, eos), "gpt2", {"post_processor": template([END])}, config(**members)
    yield "template after", "gpt2", {"post_processor": template([], [END])}, config(add_bos_token=True, bos_token=END)
    yield "no configuration", "gpt2", {"post_processor": template([END], [END])}, {}
    yield "llama2", "llama2", {}, config(add_bos_token=False, bos_token="<s>", eos_token=token("</s>"), unk_token="<unk>",
                                         additional_special_tokens=["<|x|>"])


# ---- letters of Unicode 15 and 16 ----

NEW = ["\U00010d4a\U00010d4b\U00010d50", "\u1c89\u1c8a\ua7cb", "\U0001fa77\U0001fabf\U0001fae9", "\U00011f50\U00011f51\U00011f59",
       "\U00011f02\U00011f04", "\U0002ebf0\U0002ebf1", "\U00031350\u4e2d", "\U0001ccf0\U0001ccf1", "\U00010d4e\U00010d6e", "\u2ffc\u31e4"]
NEW_TEXTS = [a + b for a in NEW for b in ("x" + a, a, " " + a, "1" + a)] + [a + b for a, b in zip(NEW, NEW[1:])] + \
    [" " + a + "!" + a + "\n" + a for a in NEW] + ["\u0897\u1c89\u0897 \u1b4e\u1b7f"]


def new_tokenizer(pre_tokenizer):
    """Returns a tokenizer with the pre-tokenizer, whose merges join characters whatever their classes are."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(NEW_TEXTS * 3, trainers.BpeTrainer(vocab_size=700, special_tokens=[END], show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.pre_tokenizer = pre_tokenizer
    return Tokenizer.from_str(t.to_str())


def new_variants():
    parts = {"gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False), "llama3": split(LLAMA3), "deepseek v3": split(*DEEPSEEK_V3),
             "marks": split(r"\p{Mn}|\p{Mc}", r"\p{Lu}+", r"[^\s\p{L}\p{N}\p{Sm}]+")}
    whole = new_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    cuts = []
    for name, part in parts.items():
        t = Tokenizer.from_str(whole.to_str())
        t.pre_tokenizer = part
        cuts.append({"name": name, "pre_tokenizer": json.loads(t.to_str())["pre_tokenizer"], "ids": [t.encode(x).ids for x in NEW_TEXTS]})
    return {"tokenizer": json.loads(whole.to_str()), "texts": NEW_TEXTS, "cuts": cuts}


def main():
    with open(os.path.join(HERE, "tokenizer.json")) as f:
        bases = {v["name"]: v["tokenizer"] for v in json.load(f)["variants"]}
    out = []
    for name, base, members, files in variants():
        with tempfile.TemporaryDirectory() as d:
            for file, value in {"tokenizer.json": {**bases[base], **members}, **files}.items():
                with open(os.path.join(d, file), "w") as f:
                    json.dump(value, f)
            t = AutoTokenizer.from_pretrained(d)
            out.append({"name": name, "base": base, "json": members, "files": files, "ids": [t.encode(x) for x in TEXTS]})
    with open(os.path.join(HERE, "beside.json"), "w") as f:
        f.write('{"transformers": "%s", "texts": %s,\n"variants": [\n' % (transformers.__version__, json.dumps(TEXTS)))
        f.write(",\n".join(json.dumps(v, separators=(",", ":")) for v in out))
        f.write('],\n"unicode": %s}\n' % json.dumps(new_variants(), separators=(",", ":")))


main()
