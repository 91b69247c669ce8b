"""Writes classes.json: the characters that the classes of tokenizers' patterns have in Hugging Face `tokenizers`.

    python3 tests/golden/make_classes.py [CLASS]

Each class is tried on all 1,112,064 characters. The file has the number of its characters, and a hash of its ranges: FNV-1a
of 64 bits over the first and the last character of each range, as 4 bytes each, little-endian. "few" says that the class has
characters in planes 0 to 3 and 14 only: the test tries it only there. The classes Cn and Co, which have all other characters,
are tried on all, and no character has two categories. CLASS, such as '\\p{Lu}', prints the ranges of that class instead. The
class "word" is what AddedToken's single_word takes for a character of a word."""

import json
import os
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co "
              "Cn Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari").split()
CLASSES = [r"\s", r"\S", r"\d"] + [r"\p{%s}" % name for name in CATEGORIES] + [
    r"[^\s\p{L}\p{N}]", r"[\p{L}\p{P}\p{S}]", r"[\p{L}\p{M}]", r"[\p{P}\p{S}]", r"[\p{L}\p{N}\p{Han}]",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"]
TEXT = "".join(map(chr, ALL))


def members(name):
    """Returns the characters of a class, in order."""
    if name != "word":
        pieces = pre_tokenizers.Split(Regex("(?:%s)+" % name), "removed", invert=True).pre_tokenize_str(TEXT)
        return [c for _, (a, b) in pieces for c in ALL[a:b]]
    # "w" is found behind a character unless that is one of a word.
    t = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    t.pre_tokenizer = pre_tokenizers.Split("\n", "removed")
    t.add_tokens([AddedToken("w", single_word=True, normalized=False)])
    found = set()
    for at in range(0, len(ALL), 1 << 16):
        part = ALL[at:at + (1 << 16)]
        encoding = t.encode("".join(chr(c) + "w\n" for c in part))
        found |= {part[a // 3] for token, (a, _) in zip(encoding.tokens, encoding.offsets) if token == "w"}
    return [c for c in ALL if c not in found]


def ranges(characters):
    out = []
    for c in characters:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def few(characters):
    """Returns true if no character lies in planes 4 to 13, 15 and 16, which Unicode leaves unassigned or to private use."""
    return all(c < 0x40000 or 0xE0000 <= c < 0xF0000 for c in characters)


def digest(pairs):
    value = 0xCBF29CE484222325
    for pair in pairs:
        for byte in b"".join(c.to_bytes(4, "little") for c in pair):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % value


def main():
    if len(sys.argv) > 1:
        print(*("%X-%X" % tuple(pair) for pair in ranges(members(sys.argv[1]))))
        return
    classes = []
    for name in CLASSES + ["word"]:
        found = members(name)
        classes.append({"class": name, "characters": len(found), "few": few(found),
                        "ranges": digest(ranges(found))})
    lines = ",\n".join(json.dumps(c) for c in classes)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "classes.json")
    with open(path, "w") as f:
        f.write('{"tokenizers": "%s", "classes": [\n%s\n]}\n' % (tokenizers.__version__, lines))


main()
