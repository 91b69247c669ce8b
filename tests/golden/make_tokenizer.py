"""Writes tokenizer.json in this directory: the ids that Hugging Face `tokenizers` gives for difficult strings, and the
tokenizers that its BpeTrainer makes from a small corpus. Needs the package `tokenizers`; run: python make_tokenizer.py"""

import json
import os
import random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
# Those of the DeepSeek models: several successive splits, of which ByteLevel is the last.
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK]
DEEPSEEK_LLM = ["[\r\n]", "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0370-\u03ff\u0400-\u0481]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", CJK]
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
               r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
               r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
VOCAB = 420
SPACE = "\u2581"  # stands for a space in the names of SentencePiece's tokens


def corpus():
    """Returns documents of prose, code, numbers and several scripts, drawn from word lists with a fixed seed."""
    rng = random.Random(1)
    prose = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had "
             "an they which one you were all her she there would their we him been has when who will no more if "
             "out so what up said about than its into them can only other time new some could these two may first "
             "don't it's we'll I'm they've you'd DON'T").split()
    code = ("int static const char return if (n < 0) for while { } ; = == += -> . , // /* */ size_t struct void "
            "#include #define NULL 0 1 42 1024 0xff i++ data[i] \"%d\\n\" \n \n\n \t \n    \n\t\t").split(" ")
    wide = "naïve café Ångström αβγ привет мир 東京都 日本語 한국어 नमस्ते שלום مرحبا 😀 👍🏽 🇩🇪 ½ Ⅷ １２３ ٣٤ \u00a0 \u3000".split(" ")
    # Characters that some regex engines take for white space and others do not. The merges show where the text was cut.
    odd = "\u180e \u180e. x\u180e. \u180ex \u2003x \u200bx \u0085. \u3000x 'ſx x\r\n".split(" ")
    documents = []
    for words, n in ((prose, 300), (code, 200), (wide + prose[:20], 150), (prose + code, 150), (odd, 600)):
        documents.append("".join(rng.choice(words) + rng.choice((" ", " ", " ", "\n", "  ", ", ")) for _ in range(n)))
    return documents


TEXTS = [
    "", " ", "a", "  ", "\n", "hello world", "Hello, World!  Bye.", "the time of the first two",
    "don't DON'T we'll WE'LL I'M it's 'S 'tis 'Re 'vE they'd'd", "x's''s 's's 'll'LL 'ſ 'S",
    "a  b   c    d", "a \n b\n\nc\r\nd\r\r\n\n e \n", "tab\t\ttab\t x\v\fy", "   leading", "trailing   ", " \n \n ",
    "\u00a0nbsp\u00a0\u00a0x", "a\u180eb \u180e c\u180e\u180e.", "x\u180e. \u180e. \u180ex", "em\u2003en\u2002 thin\u2009x\u200azero\u200bjoin\u200dx",
    "line\u2028para\u2029nel\u0085x", "ideographic\u3000space\u3000\u3000x", "ogham\u1680x\u205f\u202fy\ufeffz",
    "1 12 123 1234 12345 123456 1234567", "3.14159e-10, 0xDEADBEEF; 1,000,000", "１２３４ ٣٤٥ ²³ ½¾ ⅧⅨ ①②",
    "int main(void)\n{\n\tfor (int i = 0; i < 42; i++)\n\t\treturn data[i];\n}\n", "#include <stdio.h>\r\n#define X(a) a##b\r\n",
    "naïve café", "nai\u0308ve cafe\u0301", "A\u030angstro\u0308m \u212b \u2126", "q\u0307\u0323 q\u0323\u0307", "\u0301start \u0301",
    "東京都の日本語テキスト。「括弧」", "中文字符，标点！", "한국어 텍스트", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "नमस्ते दुनिया क्षि", "ไทยภาษา",
    "שָׁלוֹם עולם", "مرحبا بالعالم", "ﬁ ﬂ ﬃ ﷺ", "привет, мир! ЁЖ ё", "αβγ ΑΒΓ ς",
    "😀", "👍🏽👩‍👩‍👧‍👦 🇩🇪🇫🇷", "a😀b 😀😀 c", "\U0001d400\U0001d401\U00020000", "\x01\x02\x7f\x1b[0m",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endoftext", "x <|endoftext|>\n y",
    "ab" * 31 + "a", "ab" * 32, "ab" * 32 + "a", "a" * 200, "the" * 60, " " * 100 + "x", "\n" * 70, "-" * 130, "aab" * 50,
    "before[STRIP] after", "before   [STRIP]   after[STRIP][STRIP] x", "word wordy word, sword word_ (word)", "a word",
    "NoRm caf\u00e9tok cafe\u0301tok", "x[A]y[AB]z[ABC]", "special [SP] and[SP]not", "\t[STRIP]\u3000\n[STRIP]\u180ex",
    "<s>the</s> the <s> </s>a", "</s>the", "a<tool>b <tool>  <tool>the", "  two  spaces", "\u2581the\u2581\u2581of", "<0x0A><0x41>",
    "é\u0301\u0302 ñ\x02\x01é", " naive", "word. x word x", "[STRIP] x  the", "\x80a \U0001f600a", "_" * 5 + "a_b__c", "http://example.org/a/b?c=d&e=f#g", "C:\\dir\\file.txt", "...!!!???", "'", "''''", "\"'`", "\\",
]


def train(pre_tokenizer, normalizer=None, specials=("<|endoftext|>",)):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=list(specials), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def split(*patterns, digits=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] +
                                   [pre_tokenizers.Digits(individual_digits=True)] * digits +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_names():
    return [f"<0x{b:02X}>" for b in range(256)]


def variants():
    """Yields name, tokenizer, and the name of the pattern with which axonn must train the same tokenizer, or None."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    yield "gpt2", train(gpt2), "gpt2"
    yield "llama3", train(split(LLAMA3)), "llama3"
    yield "qwen2", train(split(QWEN2), normalizers.NFC()), "qwen2"

    t = train(split(LLAMA3), specials=("<|begin|>", "<|endoftext|>"))
    model = json.loads(t.to_str())
    model["model"]["ignore_merges"] = True
    model["model"]["vocab"]["ĠOGHAM"] = VOCAB  # reached by ignore_merges only
    model["model"]["vocab"]["example"] = VOCAB + 1
    t = Tokenizer.from_str(json.dumps(model))
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin|> $A <|endoftext|>", special_tokens=[("<|begin|>", 0), ("<|endoftext|>", 1)])])
    yield "ignore_merges, template", t, None

    t = train(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFC())
    t.add_special_tokens([AddedToken("[SP]", normalized=False)])
    t.add_tokens([AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False),
                  AddedToken("word", single_word=True, normalized=False), AddedToken("caf\u00e9tok", normalized=True),
                  AddedToken("[A]", rstrip=True, normalized=True), AddedToken("[AB", normalized=False),
                  AddedToken("[ABC]", normalized=False), AddedToken("x[", normalized=True)])
    yield "prefix space, added tokens", t, None

    yield "three splits", train(split(*DEEPSEEK_V3)), None

    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(" ", "isolated"),
                                       pre_tokenizers.Split(Regex(r"[^\s]+"), "removed", invert=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), normalizers.NFKD())
    yield "digits, literal, removed, NFKD", t, None

    yield "splits and digits", train(split(*DEEPSEEK_CODER, digits=True)), None
    yield "end of line", train(split(*DEEPSEEK_LLM, digits=True)), None
    yield from text_variants()


# ---- SentencePiece's kind ----

WHOLE = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
PREPEND = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]


def train_text(documents, vocab, alphabet, pre_tokenizer):
    """Returns vocabulary and merges in SentencePiece's order: special tokens, bytes, then what the trainer finds, and runs of
    SPACE."""
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizer
    t.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=alphabet))
    model = json.loads(t.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"] + byte_names()
    names += [n for n in sorted(model["vocab"], key=model["vocab"].get) if n not in names]
    runs = [[SPACE * (n // 2), SPACE * (n // 2)] for n in (2, 4, 8, 16)]
    names += [a + b for a, b in runs if a + b not in names]
    return {n: i for i, n in enumerate(names)}, runs + [m for m in model["merges"] if m not in runs]


def text_kind(model, normalizer, pre_tokenizer, decoder, keep=lambda name: True, **how):
    """Makes a tokenizer of a vocabulary and merges; names for which `keep` is false are left out."""
    vocab = {n: i for i, n in enumerate(n for n in model[0] if keep(n))}
    t = Tokenizer(models.BPE(vocab, [tuple(m) for m in model[1]],
                             **{**dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True), **how}))
    if normalizer:
        t.normalizer = normalizers.Sequence(normalizer)
    if pre_tokenizer:
        t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.Sequence(decoder)
    t.add_special_tokens([AddedToken("<unk>", normalized=False), AddedToken("<s>", normalized=False),
                          AddedToken("</s>", normalized=True)])
    t.add_tokens([AddedToken("[STRIP]", lstrip=True, rstrip=True, normalized=False), AddedToken("<tool>", normalized=True),
                  AddedToken(" x", normalized=False), AddedToken("word", single_word=True, normalized=False)])
    return t


def add_template(t):
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    return t


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(SPACE, scheme, split)


def old_spelling(t):
    """Spells the Metaspaces of a tokenizer as older versions of the library did."""
    parts = json.loads(t.to_str())
    for part in (parts["pre_tokenizer"], parts["decoder"]["decoders"][1]):
        del part["prepend_scheme"], part["split"]
        part["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(parts))


def text_variants():
    some = lambda name: not name.startswith("<0xC")
    words = train_text(corpus(), 200, 90, metaspace("always", True))
    lines = train_text([line for d in corpus() for line in d.split("\n")], 200, 90,
                       pre_tokenizers.Sequence([metaspace("always", False), pre_tokenizers.Split(Regex(".{1,40}"), "isolated")]))
    yield "llama2", add_template(text_kind(words, PREPEND, None, WHOLE)), None
    yield "metaspace first", text_kind(words, None, metaspace("first", False), WHOLE), None
    yield "metaspace always, split", old_spelling(text_kind(
        words, [normalizers.NFKC()], metaspace("always", True), [decoders.ByteFallback(), decoders.Metaspace(SPACE, "always")])), None
    yield "metaspace never, digits", text_kind(
        words, None, pre_tokenizers.Sequence([metaspace("never", True), pre_tokenizers.Digits(individual_digits=False)]),
        [decoders.Metaspace(SPACE, "never"), decoders.ByteFallback(), decoders.Fuse()]), None
    yield "words joined", text_kind(lines, PREPEND, None, WHOLE), None
    yield "some bytes, fused", text_kind(words, PREPEND, None, WHOLE, some), None
    yield "some bytes, unfused", text_kind(words, PREPEND, None, WHOLE, some, fuse_unk=False), None
    yield "some bytes, dropped", text_kind(words, PREPEND, None, WHOLE, some, unk_token=None), None
    yield "no bytes, unfused", text_kind(lines, PREPEND, None, WHOLE, fuse_unk=False, byte_fallback=False), None
    # Merges of tokens that stand for bytes: no piece may be cut, because what is left and right of a cut may be such bytes.
    vocab, merges = dict(words[0]), words[1] + [["<0xF0>", "<0x9F>"], ["<0x80>", "a"]]
    for pair in merges[-2:]:
        vocab["".join(pair)] = len(vocab)
    yield "merged bytes", text_kind((vocab, merges), PREPEND, None, WHOLE), None
    vocab = {**words[0], SPACE + "naive": len(words[0])}  # reached by ignore_merges only
    yield "whole words", text_kind((vocab, words[1]), None, metaspace("always", True), WHOLE, ignore_merges=True), None


def main():
    out = {"corpus": corpus(), "vocab": VOCAB, "texts": TEXTS, "variants": []}
    for name, t, pattern in variants():
        # The tokenizer is read back from the file, as the test does, because the file does not store all settings.
        t = Tokenizer.from_str(t.to_str())
        cases = []
        for text in TEXTS:
            plain, whole = t.encode(text, add_special_tokens=False).ids, t.encode(text).ids
            case = [plain, whole if whole != plain else None, t.decode(plain, skip_special_tokens=False)]
            while case[-1] is None or (case[-1] == text and len(case) == 3):  # what is as expected is left out
                case.pop()
            cases.append(case)
        out["variants"].append({"name": name, "trains_as": pattern, "tokenizer": json.loads(t.to_str()), "cases": cases})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")
    with open(path, "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
