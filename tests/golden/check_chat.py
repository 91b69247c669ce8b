"""Compares `axonn data build` with transformers on random conversations, token for token: ids, and masks beside
return_assistant_tokens_mask, for every template. Needs what make_chat.py needs; run: python check_chat.py AXONN [N [SEED]]"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import make_chat

WORDS = ("the of and to in is that for it as was with be by not he his but at are this don't it's we'll I'm 1 12 123 4567 "
         "int static return if (n < 0) { } ; = += -> // \"%d\\n\" data[i] naïve café привет 東京都 日本語 한국어 नमस्ते שלום 😀 👍🏽 🇩🇪 ½ "
         "e\u0301 A\u030a \u1112\u1161\u11ab \u212b \u0301 ### Instruction: Response: [INST] [/INST] ").split(" ")
SPACES = [" ", " ", " ", " ", "\n", "  ", "\n\n", "\t", "", ", ", "\u00a0", "\u3000", "\r\n", "\u2028"]
MARKUP = ["<|im_end|>", "<|im_start|>user\n", "</s>", "<s>", "<|eot_id|>", "<|EOT|>", make_chat.BEGIN, "<|endoftext|>",
          "<|start_header_id|>", "<|im_", "</", "[STRIP]"]


def content(rng, markup):
    if rng.random() < 0.08:
        return rng.choice(["", "", " ", "\n", "\n\n"])
    n = rng.choice([1, 2, 5, 12, 40])
    pick = lambda: rng.choice(MARKUP) if markup and rng.random() < 0.1 else rng.choice(WORDS)
    text = "".join(pick() + rng.choice(SPACES) for _ in range(n))
    return rng.choice(["", "", " ", "\n"]) + text if rng.random() < 0.5 else text.strip()


def record(rng, number):
    """Every fifth has contents that look like markup, every third of the others an answer with reasoning."""
    markup = number % 5 == 0
    if number % 7 == 6:
        return {"instruction": content(rng, markup), "input": content(rng, markup), "output": content(rng, markup)}
    messages = [{"role": "system", "content": content(rng, markup)}] if rng.random() < 0.4 else []
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        answer = content(rng, markup)
        if not markup and rng.random() < 0.3:
            answer = "<think>" + rng.choice(["", "\n"]) + content(rng, False) + "</think>" + rng.choice(["", "\n\n"]) + answer
        messages += [{"role": "user", "content": content(rng, markup)}, {"role": "assistant", "content": answer}]
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": content(rng, markup)})
    return {"messages": messages}


def read_tokens(path):
    """Returns the documents of a token file: lists of ids and of mask bits. Also the id that closes documents."""
    with open(path, "rb") as f:
        data = f.read()
    _, version, width, tokens, documents, _, _, end, _, at, index, _, _, mask = struct.unpack("<8sIIQQQQqQQQQQQ", data[:104])
    assert version == 2
    ids = struct.unpack("<%d%s" % (tokens, "H" if width == 2 else "I"), data[at:at + tokens * width])
    starts = struct.unpack("<%dQ" % (documents + 1), data[index:index + 8 * documents + 8])
    bits = [data[mask + i // 8] >> i % 8 & 1 for i in range(tokens)]
    return [(list(ids[a:b]), bits[a:b]) for a, b in zip(starts, starts[1:])], end


def check(axonn, template, records, folder):
    reference = make_chat.Reference(template)
    lines, tok, out = (os.path.join(folder, n) for n in ("chats.jsonl", "tok", "chats.tok"))
    os.makedirs(tok, exist_ok=True)
    reference.base.save(os.path.join(tok, "tokenizer.json"))
    with open(os.path.join(tok, "tokenizer_config.json"), "w") as f:
        json.dump({"eos_token": reference.eos}, f)
    with open(lines, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in records)
    subprocess.run([axonn, "data", "build", "--input", lines, "--tokenizer", tok, "--template", template, "--out", out],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([axonn, "data", "check", out], check=True, stdout=subprocess.DEVNULL)
    documents, end = read_tokens(out)
    assert len(documents) == len(records)
    tokens = targets = 0
    for number, (r, (ids, mask)) in enumerate(zip(records, documents)):
        want, bits = reference.expect(r)
        if want[-1] != end:  # the token that closes a document, no target
            want, bits = want + [end], bits + [0]
        assert ids == want and mask == bits, (template, number, r, ids, want, mask, bits)
        tokens += len(ids)
        targets += sum(mask)
    print(f"{template}: {len(records)} conversations, {tokens} tokens, {targets} targets: all ids and masks equal")


def main():
    axonn, n, seed = sys.argv[1], *map(int, (sys.argv[2:] + ["200", "1"][len(sys.argv) - 2:])[:2])
    rng = random.Random(seed)
    records = [record(rng, i) for i in range(n)]
    print(", ".join(f"{p} {v}" for p, v in make_chat.versions().items()))
    for template in make_chat.TEMPLATES:
        with tempfile.TemporaryDirectory() as folder:
            check(os.path.abspath(axonn), template, records, folder)


if __name__ == "__main__":
    main()
