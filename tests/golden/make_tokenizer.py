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
VOCAB = 420


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
    "_" * 5 + "a_b__c", "http://example.org/a/b?c=d&e=f#g", "C:\\dir\\file.txt", "...!!!???", "'", "''''", "\"'`", "\\",
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


def split(*patterns, prefix=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])


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

    cjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    main = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")
    yield "three splits", train(split(r"\p{N}{1,3}", cjk, main)), None

    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(" ", "isolated"),
                                       pre_tokenizers.Split(Regex(r"[^\s]+"), "removed", invert=True),
                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]), normalizers.NFKD())
    yield "digits, literal, removed, NFKD", t, None


def main():
    out = {"corpus": corpus(), "vocab": VOCAB, "variants": []}
    for name, t, pattern in variants():
        # The tokenizer is read back from the file, as the test does, because the file does not store all settings.
        t = Tokenizer.from_str(t.to_str())
        cases = [[s, t.encode(s, add_special_tokens=False).ids, t.encode(s).ids] for s in TEXTS]
        for case in cases:
            if case[1] == case[2]:
                case.pop()
        out["variants"].append({"name": name, "trains_as": pattern, "tokenizer": json.loads(t.to_str()), "cases": cases})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")
    with open(path, "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


main()
