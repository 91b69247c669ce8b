"""Writes chat_known.json in this directory: chat templates in Jinja, as packages have them, and the template of axonn that
writes the same conversations. Fails unless transformers renders 200 random conversations equally by a text and by what axonn
prints (chat_jinja.json). Packages as for make_chat.py. Run: python make_chat_known.py"""

import json
import os
import random

import check_chat
import make_chat

# Template of axonn -> package and file, or variable of unsloth/chat_templates.py.
KNOWN = {
    "llama3": ["trl/llama3.jinja", "trl/llama3_training.jinja", "unsloth/llama3_template"],
    "qwen3": ["trl/qwen3.jinja", "trl/qwen3_training.jinja"],
    "chatml": ["trl/qwen3_instruct_2507.jinja", "trl/qwen3_instruct_2507_training.jinja", "unsloth/chatml_template",
               "unsloth/yi_chat_template"],
}
# Qwen3's own text leaves out the reasoning of answers before the last question, which the log of axonn says.
REASONING_OF_THE_LAST = "trl/qwen3.jinja"


def text_of(source):
    package, name = source.split("/")
    return make_chat.unsloth_template(name) if package == "unsloth" else make_chat.package_file(package, "/" + name)


def compare(template, source, ours, theirs, records):
    fast = make_chat.Reference(template).fast
    texts = 0
    for messages in records:
        answers = sum(m["role"] == "assistant" for m in messages)
        if source == REASONING_OF_THE_LAST and (answers > 1 or messages[-1]["role"] == "user"):
            continue
        for prompt in {False, messages[-1]["role"] == "user"}:
            a, b = (fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, chat_template=t)
                    for t in (ours, theirs))
            assert a == b, (template, source, a, b)
            texts += 1
    print(f"{source}: {texts} texts equal to those of {template}")


def main():
    rng = random.Random(1)
    records = [make_chat.messages_of(check_chat.record(rng, i), "chatml") for i in range(200)]
    with open(os.path.join(make_chat.HERE, "chat_jinja.json")) as f:
        jinja = json.load(f)
    out = []
    for template, sources in KNOWN.items():
        for source in sources:
            compare(template, source, jinja[template], text_of(source), records)
            out.append({"template": template, "source": source, "jinja": text_of(source)})
    with open(os.path.join(make_chat.HERE, "chat_known.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
