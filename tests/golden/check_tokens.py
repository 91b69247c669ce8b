"""Compares token ids and decoded text with Hugging Face `tokenizers` on much text, for tokenizers of each kind that axonn
reads.

    python3 tests/golden/check_tokens.py build/libaxonn.so [--mb 100] [--seed 7] [--only NAME...] [--keep DIR] [FOLDER...]

Needs the package `tokenizers`. The text: files under the folders (default: those of this machine with code, prose and
word lists of many languages), and generated documents of random Unicode, emoji, control characters, white space, long
runs, special tokens, and all characters that normalization concerns. --keep writes the tokenizers, which are trained on part of the text, to DIR/NAME/tokenizer.json;
bench/tokenizer.py --tokenizer times them. For documents with bytes that are not UTF-8, which the peer cannot be given,
the valid stretches between them must have the peer's ids, and decoding must return all bytes. Exit code 1 if something
differs."""

import argparse
import ctypes
import json
import os
import pathlib
import random
import sys
import time
import unicodedata

try:
    import unicodedata2 as unicode
except ImportError:
    unicode = unicodedata

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from make_tokenizer import (DEEPSEEK_CODER, DEEPSEEK_LLM, DEEPSEEK_V3, LLAMA3, PREPEND, QWEN2, SPACE, WHOLE, add_template, metaspace, split,
                            text_kind, train_text)

FOLDERS = ["/usr/include", "/usr/share/doc", "/usr/share/perl", "/usr/share/i18n", "/usr/share/hunspell", "/usr/share/unicode",
           "/usr/lib/python3", "/usr/lib/python3.11", "/usr/share/cmake-3.25", "/usr/share/vim", "/usr/share/locale",
           "/usr/share/common-licenses", "/usr/share/misc", "/usr/share/zoneinfo", "/usr/share/X11"]


# ---- text ----


def read_files(folders, size, rng):
    """Returns documents of at most 64 Ki characters from files in UTF-8, in random order."""
    paths = [p for f in folders for p in sorted(pathlib.Path(f).rglob("*")) if p.is_file() and not p.is_symlink()]
    rng.shuffle(paths)
    out, total = [], 0
    for path in paths:
        try:
            data = path.read_bytes()[:1 << 21]
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "\0" in text[:1000]:
            continue
        while text:
            n = rng.choice((100, 1000, 10000, 65536))
            out.append(text[:n])
            text = text[n:]
        total += len(data)
        if total >= size:
            break
    return out


def generate(size, rng):
    """Returns documents that no file has. Characters are those that Unicode 14 assigns, which is what the regular expressions
    of both sides know, and private and unassigned ones that no later version assigns."""
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    emoji = "😀👍🏽👩‍👩‍👧‍👦🇩🇪🇫🇷❤️🏴󠁧󠁢󠁥󠁮󠁧󠁿🧑🏿‍🚀"
    blank = [chr(c) for c in (9, 10, 11, 12, 13, 32, 32, 32, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x3000, 0xFEFF)]
    scripts = [range(0x400, 0x530), range(0x590, 0x600), range(0x600, 0x700), range(0x900, 0x980), range(0xE00, 0xE60),
               range(0x1100, 0x1200), range(0x3040, 0x3100), range(0x4E00, 0x9FFF), range(0xAC00, 0xD7A0), range(0x300, 0x370)]
    known = set(assigned)
    scripts = [[chr(c) for c in s if chr(c) in known] for s in scripts]
    sources = [
        lambda: rng.choice(assigned), lambda: chr(rng.randrange(128)), lambda: rng.choice(emoji), lambda: rng.choice(blank),
        lambda: chr(rng.randrange(32)), lambda: rng.choice("ab"), lambda: rng.choice("0123456789"),
        lambda: rng.choice((SPACE, " ", "a")), lambda: rng.choice(("<s>", "</s>", "<unk>", "<0x0A>", "<tool>", "[STRIP]", " ", "x")),
        lambda: rng.choice(("<|endoftext|>", "'s", "'LL", " ", "é", "e\u0301")), lambda: chr(rng.randrange(0xE000, 0xF900)),
    ] + [lambda s=s: rng.choice(s) for s in scripts]
    out, total = [], 0
    while total < size:
        n = rng.choice((1, 3, 10, 40, 200, 2000))
        mine = rng.sample(sources, rng.choice((1, 1, 2, 3)))
        text = "".join(rng.choice(mine)() * rng.choice((1, 1, 1, 1, 2, 5)) for _ in range(n))
        out.append(text)
        total += len(text.encode())
    return out


def marks():
    """Returns documents with all characters that normalization concerns, one with a combining class between marks of other
    classes, one with a decomposition whole and decomposed. With the package unicodedata2 these are those of later versions of
    Unicode as well."""
    words = []
    for c in map(chr, range(0x110000)):
        if unicode.combining(c):
            words += ["a\u0345" + c + "\u0334", c + "\u0300e" + c + "\u0301"]
        elif unicode.decomposition(c):
            words += [c, unicode.normalize("NFD", c), "a\u0323" + c + "\u0301"]
    words += [c + "\u11a7" for c in ("\ud050", "\u1112\u1161", "a\u0301")]
    return [" ".join(words[i:i + 50]) for i in range(0, len(words), 50)]


# ---- tokenizers ----

VOCAB = 32000
ADDED = ("<unk>", "<s>", "</s>", "[STRIP]", "<tool>", " x", "word")  # of text_kind; a space is put after some


def train_byte_level(sample, pre_tokenizer, normalizer=None):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(sample, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def kinds(sample):
    """Yields name, tokenizer, and a tokenizer that encodes what follows bytes that are not UTF-8 (without a space before)."""
    by_bytes = {
        "gpt2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None), "llama3": (split(LLAMA3), None),
        "qwen2": (split(QWEN2), normalizers.NFC()), "deepseek-coder": (split(*DEEPSEEK_CODER, digits=True), None),
        "deepseek-llm": (split(*DEEPSEEK_LLM, digits=True), None), "deepseek-v3": (split(*DEEPSEEK_V3), None)}
    for name, parts in by_bytes.items():
        yield name, lambda parts=parts: (train_byte_level(sample, *parts),) * 2
    model = []
    replace = PREPEND[1:]

    def text(normalizer, pre_tokenizer, decoder, later, **how):
        def make():
            if not model:
                model.append(train_text(sample, VOCAB, 3000, metaspace("always", True)))
            return add_template(text_kind(model[0], normalizer, pre_tokenizer, decoder, **how)), text_kind(model[0], *later, decoder, **how)
        return make

    def some(name):
        return not name.startswith("<0x8")

    yield "llama2", text(PREPEND, None, WHOLE, (replace, None))
    yield "mistral", text(None, metaspace("first", False), WHOLE, (None, metaspace("never", False)))
    yield "metaspace", text(None, metaspace("always", True), [decoders.ByteFallback(), decoders.Metaspace(SPACE, "always")],
                            (None, metaspace("never", True)))
    yield "some-bytes", text(PREPEND, None, WHOLE, (replace, None), keep=some)
    yield "some-bytes-unfused", text(PREPEND, None, WHOLE, (replace, None), keep=some, fuse_unk=False)


# ---- axonn ----


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Axonn:
    def __init__(self, library, folder):
        self.lib = ctypes.CDLL(library)
        self.lib.ax_error_message.restype = ctypes.c_char_p
        self.tok, self.encoder, self.ids, self.text = ctypes.c_void_p(), ctypes.c_void_p(), Array(), Array()
        self.check(self.lib.ax_tokenizer_load(os.fsencode(folder), ctypes.byref(self.tok)))
        self.check(self.lib.ax_encoder_create(self.tok, ctypes.byref(self.encoder)))

    def check(self, status):
        if status:
            raise SystemExit(self.lib.ax_error_message().decode())

    def encode(self, data, flags=0):
        self.ids.size = 0
        self.check(self.lib.ax_encode(self.encoder, data, ctypes.c_size_t(len(data)), flags, ctypes.byref(self.ids)))
        return list((ctypes.c_int32 * self.ids.size).from_address(self.ids.data)) if self.ids.size else []

    def decode(self, ids, flags=0):
        self.text.size = 0
        array = (ctypes.c_int32 * len(ids))(*ids)
        self.check(self.lib.ax_decode(self.tok, array, ctypes.c_size_t(len(ids)), flags, ctypes.byref(self.text)))
        return ctypes.string_at(self.text.data, self.text.size) if self.text.size else b""


def damage(text, rng):
    """Returns stretches of text with bytes between them that are not UTF-8."""
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(3))
    stretches = [text[a:b] for a, b in zip([0] + cuts, cuts + [len(text)])]
    return stretches, [rng.choice((b"\xff", b"\x80", b"\xc0", b"\xfe\xfe", b"\xf8")) for _ in cuts]


def compare_damaged(axonn, tok, later, text, rng):
    stretches, bad = damage(text, rng)
    data, want = stretches[0].encode(), list(tok.encode(stretches[0], add_special_tokens=False).ids)
    for stretch, bytes_ in zip(stretches[1:], bad):
        data += bytes_ + stretch.encode()
        want += [i for b in bytes_ for i in axonn.encode(bytes([b]))]
        want += later.encode(stretch, add_special_tokens=False).ids
    got = axonn.encode(data)
    exact = tok.decode(tok.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
    return got == want and (not exact or axonn.decode(got) == data)


def compare(name, axonn, tok, later, documents, rng):
    """Returns the number of documents that differ, and shows the first."""
    wrong = exact = size = tokens = damaged = 0
    start = time.time()
    for at in range(0, len(documents), 1000):
        batch = documents[at:at + 1000]
        theirs = tok.encode_batch(batch, add_special_tokens=True)
        texts = tok.decode_batch([e.ids for e in theirs], skip_special_tokens=False)
        for text, encoding, back in zip(batch, theirs, texts):
            data = text.encode()
            got = axonn.encode(data, 1)
            mine = axonn.decode(got)
            # The peer decodes a run of bytes that is not UTF-8 to U+FFFD, axonn to these bytes.
            same = got == encoding.ids and (mine.decode("utf-8", "replace") == back or "\ufffd" in back)
            if same and len(text) < 500 and not name.startswith("some-bytes") and not any(t in text for t in ADDED):
                damaged += 1
                same = compare_damaged(axonn, tok, later, text, rng)
            if not same:
                wrong += 1
                if wrong <= 3:
                    k = next((i for i, (a, b) in enumerate(zip(got, encoding.ids)) if a != b), -1)
                    print(f"{name}: differs at token {k}: {text[:200]!r}\n  axonn {got[max(k - 2, 0):k + 8]} {mine[:80]!r}\n"
                          f"  peer  {encoding.ids[max(k - 2, 0):k + 8]} {back[:80]!r}")
            size += len(data)
            tokens += len(got)
            exact += mine.endswith(data)
    print(f"{name:20} {size / 1e6:7.1f} MB, {len(documents)} documents, {tokens} tokens: {wrong} differ; {exact} return their "
          f"bytes; {damaged} also with bytes that are not UTF-8 ({time.time() - start:.0f} s)", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--seed", type=int, default=7, help="of the choice of files and of the generated text")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--keep", default="/tmp/axonn-check-tokens")
    a = parser.parse_args()
    rng = random.Random(a.seed)
    documents = read_files(a.folders, a.mb * 0.9e6, rng)
    documents += generate(a.mb * 0.1e6, rng)
    rng.shuffle(documents)
    documents += marks()
    sample, size = [], 0
    for document in documents:
        size += len(document)
        sample.append(document.replace("\0", ""))
        if size > 6e6:
            break
    wrong = 0
    for name, make in kinds(sample):
        if a.only and name not in a.only:
            continue
        folder = pathlib.Path(a.keep, name)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "tokenizer.json", folder / "later.json"]
        if not all(f.exists() for f in files):
            for file, tok in zip(files, make()):
                tok.save(str(file))
        tok, later = (Tokenizer.from_file(str(f)) for f in files)
        wrong += compare(name, Axonn(a.library, folder), tok, later, documents, rng)
    sys.exit(1 if wrong else 0)


main()
