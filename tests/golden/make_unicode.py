"""Writes src/token/unicode.h: the characters whose general category the versions of Unicode from 14 on do not agree on,
with the category and the script that the regular expressions of Hugging Face `tokenizers` (Oniguruma) give them.

    python3 tests/golden/make_unicode.py FOLDER... > src/token/unicode.h

Needs the package `tokenizers` and a Python whose module unicodedata has Unicode 14 (3.11). Each folder holds the package
unicodedata2 of one later version (pip install --target FOLDER --no-deps unicodedata2==16.0.0); the table was made with
15.0.0, 15.1.0, 16.0.0, 17.0.0 and 18.0.0. A run of characters that all versions treat alike is one line. The script of a
line is given by a character of Unicode 14 with the same script; if the script is younger, by the line's first character."""

import subprocess
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SCRIPTS = ("Common Inherited Latin Greek Cyrillic Armenian Hebrew Arabic Syriac Devanagari Bengali Gurmukhi Gujarati Oriya Tamil "
           "Telugu Kannada Malayalam Sinhala Thai Lao Tibetan Myanmar Georgian Hangul Ethiopic Cherokee Khmer Mongolian Hiragana "
           "Katakana Bopomofo Han Balinese Coptic Egyptian_Hieroglyphs Grantha Tirhuta Javanese Khojki Kirat_Rai Garay Todhri "
           "Sunuwar Tulu_Tigalari Gurung_Khema Ol_Onal Kawi Nag_Mundari Ahom Khitan_Small_Script Tangut Cuneiform Nushu Kaithi Chakma Sharada Yezidi Sundanese Duployan").split()


def members(name, characters):
    """Returns those of the characters that have the property \\p{name} in the library's regular expressions."""
    text = "".join(map(chr, characters))
    pieces = pre_tokenizers.Split(Regex(r"\p{%s}+" % name), "removed", invert=True).pre_tokenize_str(text)
    return {c for _, (a, b) in pieces for c in characters[a:b]}


def categories(folder):
    code = "import sys, unicodedata2 as u; print(*[u.category(chr(c)) for c in range(0x110000)])"
    return subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": folder}, capture_output=True, text=True,
                          check=True).stdout.split()


def main():
    assert unicodedata.unidata_version == "14.0.0"
    old = [unicodedata.category(chr(c)) for c in range(0x110000)]
    versions = [old] + [categories(folder) for folder in sys.argv[1:]]
    disputed = [c for c in ALL if len({v[c] for v in versions}) > 1]
    settled = [c for c in ALL[:0x20000] if old[c] not in ("Cn", "Co", "Cc") and not 0x4E01 <= c < 0xD800]
    theirs = {c: name for name in CATEGORIES for c in members(name, disputed)}
    script = {c: name for name in SCRIPTS for c in members(name, disputed)}
    like = {}
    for name in set(script.values()):
        found = members(name, sorted(set(settled) - set(disputed)))
        like[name] = min(found, default=None)
    rows = []
    for c in disputed:
        mine = [v[c] for v in versions] + [theirs.get(c, "Cn"), script.get(c, "Unknown" if c not in theirs else "of its own")]
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == mine:
            rows[-1][1] = c
        else:
            rows.append([c, c, mine])
    print("/* Made by tests/golden/make_unicode.py: the rows of tok_unicode.c. */\n#ifndef AXONN_DATA_TOK_UNICODE_H\n"
          "#define AXONN_DATA_TOK_UNICODE_H\n\n/* clang-format off */\n#define TOK_UNICODE_ROWS \\")
    lines = []
    for first, last, mine in rows:
        name = mine[-1]
        script_of = 0xFDD0 if name == "Unknown" else like.get(name) or first
        lines.append('    {0x%X, 0x%X, "%s", 0x%X},' % (first, last, mine[-2], script_of))
    print(" \\\n".join(lines))
    print("/* clang-format on */\n\n#endif")



main()
