"""Compares axonn with transformers on random conversations, for every template. `axonn data build`: token for token, ids, and
masks beside return_assistant_tokens_mask. The chat_template.jinja of a model that axonn trained on such conversations: the text
that apply_chat_template gives with it. Once all are equal, writes these Jinja templates to chat_jinja.json in this directory.
Needs what make_chat.py needs; run: python check_chat.py AXONN [N [SEED]]"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import make_chat
from transformers import AutoTokenizer

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


def value(rng, depth=0):
    """A random value of JSON."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {content(rng, False)[:9]: value(rng, depth + 1) for _ in range(rng.randrange(4))}
    numbers = (rng.randrange(-1000, 1000), rng.random() * 10.0 ** rng.randrange(-30, 30), float(rng.randrange(-99, 10 ** 18)))
    return (None, rng.random() < 0.5, content(rng, False), *numbers)[kind]


def tooled(rng):
    """A conversation with tools."""
    messages = [{"role": "system", "content": content(rng, False)}] if rng.random() < 0.4 else []
    for _ in range(rng.choice([1, 2, 3])):
        messages.append({"role": "user", "content": content(rng, False)})
        for _ in range(rng.choice([0, 1, 1, 2])):
            calls = [make_chat.call({content(rng, False)[:9]: value(rng) for _ in range(rng.randrange(4))}, rng.choice("fgh"),
                                    rng.random() < 0.5) for _ in range(rng.choice([1, 1, 1, 2]))]
            if rng.random() < 0.1:
                calls[0] = make_chat.call(json.dumps(value(rng)))
            text = rng.choice([None, "", "", "\n", content(rng, False), "<think>" + content(rng, False) + "</think>\n\n"])
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            messages += [{"role": "tool", "content": content(rng, False)} for _ in calls]
        messages.append({"role": "assistant", "content": content(rng, False)})
    tools = [make_chat.TOOL, {"type": "function", "function": {"name": "f", "parameters": value(rng)}}][:rng.randrange(3)]
    return {"messages": messages, **({"tools": rng.choice([tools, json.dumps(tools)])} if rng.random() < 0.8 else {})}


def record(rng, number):
    """Every fifth has contents that look like markup, every third of the others an answer with reasoning, every fourth
    tools."""
    if number % 4 == 3:
        return tooled(rng)
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
    records = [r for r in records if reference.expect(r)]
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
    check_tokens(template, reference, records, out)
    return check_jinja(axonn, template, reference, records, folder)


def check_tokens(template, reference, records, out):
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


def check_jinja(axonn, template, reference, records, folder):
    """Trains a small model for one step, and returns the chat template that its checkpoint has."""
    vocab = reference.base.get_vocab_size()
    with open(os.path.join(folder, "small.yaml"), "w") as f:
        f.write("model: {family: gpt2, layers: 1, hidden: 8, heads: 1, vocab: %d, seq_len: 64}\n"
                "data: {train: chats.tok, tokenizer: tok}\ntrain: {steps: 1, global_batch: 1, micro_batch: 1}\n"
                "runtime: {log: error}\n" % vocab)
    subprocess.run([axonn, "train", "small.yaml", "run.dir=run"], check=True, cwd=folder)
    model = os.path.join(folder, "run", "ckpt", "step-1")
    written, texts = AutoTokenizer.from_pretrained(model), 0
    with open(os.path.join(model, "chat_template.jinja")) as f:
        jinja = f.read()
    assert written.chat_template == jinja
    if os.path.exists(os.path.join(model, "generation_config.json")):
        with open(os.path.join(model, "generation_config.json")) as f:
            assert reference.base.token_to_id(reference.eos) in json.load(f)["eos_token_id"]
    for record in records:
        messages = make_chat.messages_of(record, template)
        if any("input" in m for m in messages):
            continue
        asks = messages[-1]["role"] in ("user", "tool")
        tools = record.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        ours, theirs = (t.apply_chat_template(make_chat.wrapped(template, messages), tools=tools, tokenize=False,
                                              add_generation_prompt=asks) for t in (written, reference.fast))
        if asks and template in HEADERS:
            theirs += HEADERS[template]
        assert ours == theirs, (template, record, ours, theirs)
        texts += 1
    print(f"{template}: chat_template.jinja gives {texts} equal texts")
    return jinja


# The header of an answer, of templates that have it and do not know add_generation_prompt.
HEADERS = {"deepseek-coder": "### Response:\n", "alpaca": "### Response:\n"}


def main():
    axonn, n, seed = sys.argv[1], *map(int, (sys.argv[2:] + ["200", "1"][len(sys.argv) - 2:])[:2])
    rng = random.Random(seed)
    records = [record(rng, i) for i in range(n)]
    print(", ".join(f"{p} {v}" for p, v in make_chat.versions().items()))
    jinja = {}
    for template in make_chat.TEMPLATES:
        with tempfile.TemporaryDirectory() as folder:
            jinja[template] = check(os.path.abspath(axonn), template, records, folder)
    with open(os.path.join(make_chat.HERE, "chat_jinja.json"), "w") as f:
        json.dump(jinja, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
