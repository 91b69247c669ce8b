"""Writes chat_known.json in this directory: chat templates in Jinja, as packages have them, and the template of axonn that
writes the same conversations. Fails unless transformers renders 200 random conversations equally by a text and by what axonn
prints (chat_jinja.json). Packages as for make_chat.py, and xxhash. Texts that are in no package come from FOLDER, where MODEL.json
is the tokenizer_config.json of a model; without FOLDER, their entries, which have the text's hash alone, stay as they are.
Run: python make_chat_known.py [FOLDER]"""

import json
import os
import random
import sys

import check_chat
import make_chat
import xxhash

# Template of axonn -> package and file, or variable of unsloth/chat_templates.py.
KNOWN = {
    "llama3": ["trl/llama3.jinja", "trl/llama3_training.jinja", "unsloth/llama3_template"],
    "qwen3": ["trl/qwen3.jinja", "trl/qwen3_training.jinja", "axonn/qwen3"],
    "llama3.1": ["trl/llama3_1.jinja"],
    "qwen2.5": ["trl/qwen2_5.jinja", "trl/qwen2_5_training.jinja"],
    "chatml": ["trl/qwen3_instruct_2507.jinja", "trl/qwen3_instruct_2507_training.jinja", "unsloth/chatml_template",
               "unsloth/yi_chat_template", "model/chatml", "model/chatml-newlines", "axonn/chatml"],
    "mistral-v0": ["model/mixtral-8x7b-instruct-v0.1"],
    "mistral-v1": ["model/mistral-v1"],
    "mistral-v3": ["model/mistral-v3", "model/mistral-7b-instruct-v0.3"],
    "mistral-v3-tekken": ["model/mistral-nemo-instruct-2407", "model/mistral-nemo-instruct-2407-first"],
    "mistral-v7": ["model/mistral-v7"],
    "mistral-v7-tekken": ["model/mistral-v7-tekken"],
    "deepseek-coder": ["model/deepseek-coder-6.7b-instruct"],
}
# Qwen3's own text leaves out the reasoning of answers before the last question, which the log of axonn says.
WITHOUT_TOOLS = ("unsloth/chatml_template", "unsloth/yi_chat_template", "axonn/chatml", "axonn/qwen3",
                 "model/chatml", "model/chatml-newlines")
REASONING_OF_THE_LAST = "trl/qwen3.jinja"


def text_of(source):
    package, name = source.split("/")
    if package == "model":
        with open(os.path.join(sys.argv[1], name + ".json")) as f:
            return json.load(f)["chat_template"]
    if package == "axonn":  # what axonn printed before it wrote tools; this file alone has it
        with open(os.path.join(make_chat.HERE, "chat_known.json")) as f:
            return next(entry["jinja"] for entry in json.load(f) if entry["source"] == source)
    return make_chat.unsloth_template(name) if package == "unsloth" else make_chat.package_file(package, "/" + name)


# Others that differ where the log of axonn says so: no turn of the system if an answer is last, no spaces around answers.
WITHOUT_SYSTEM = ("model/mistral-v3", "model/mistral-7b-instruct-v0.3", "model/mistral-nemo-instruct-2407",
                  "model/mistral-nemo-instruct-2407-first")
WITHOUT_SPACES = "model/mistral-7b-instruct-v0.3"


def differs(source, messages):
    """Whether a text renders a conversation in another way, as the log of axonn says."""
    answers = [m["content"] or "" for m in messages if m["role"] == "assistant"]
    asks, told = messages[-1]["role"] == "user", messages[0]["role"] == "system"
    return (source == REASONING_OF_THE_LAST and (len(answers) > 1 or asks) or
            source in WITHOUT_SYSTEM and told and not asks or
            source == WITHOUT_SPACES and any(a != a.strip() for a in answers))


def writes_tools(template, source):
    return template in make_chat.TOOLS and source not in WITHOUT_TOOLS


def compare(template, source, ours, theirs, records):
    fast = make_chat.Reference(template).fast
    texts = 0
    for record in records:
        messages, tools = make_chat.messages_of(record, "chatml"), record.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        # A template without tools refuses what it otherwise would and all tools.
        if differs(source, messages) or make_chat.refuses(template, messages, tools) or (
                not writes_tools(template, source) and make_chat.refuses("none", messages, tools)):
            continue
        messages = make_chat.wrapped(template, messages)
        for prompt in {False, messages[-1]["role"] == "user"}:
            a, b = (fast.apply_chat_template(messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt,
                                             chat_template=t) for t in (ours, theirs))
            assert a == b, (template, source, a, b)
            texts += 1
    print(f"{source}: {texts} texts equal to those of {template}")


def main():
    rng = random.Random(1)
    records = [check_chat.record(rng, i) for i in range(200)]
    with open(os.path.join(make_chat.HERE, "chat_jinja.json")) as f:
        jinja = json.load(f)
    with open(os.path.join(make_chat.HERE, "chat_known.json")) as f:
        before = {entry["source"]: entry for entry in json.load(f)}
    out = []
    for template, sources in KNOWN.items():
        for source in sources:
            if source.startswith("model/") and len(sys.argv) < 2:
                out.append(before[source])
                continue
            text = text_of(source)
            compare(template, source, jinja[template], text, records)
            entry = {"template": template, "source": source, "tools": writes_tools(template, source)}
            own = {"hash": xxhash.xxh3_64_hexdigest(text.rstrip("\n").encode())}
            out.append({**entry, **(own if source.startswith("model/") else {"jinja": text})})
    with open(os.path.join(make_chat.HERE, "chat_known.json"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
