"""Writes chat.json in this directory: token ids and masks of conversations, as transformers' apply_chat_template gives them
with return_assistant_tokens_mask, for every template and every form of record. Needs transformers and tokenizers, and the
packages whose templates are taken as they are: trl, fschat, unsloth, mistral-common (pip install --no-deps). Run: python make_chat.py"""

import ast
import importlib.metadata
import importlib.util
import json
import os

from jinja2 import Environment
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
BEGIN = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"

# ---- templates ----------------------------------------------------------------------------------------------------


def package_file(package, name):
    """Returns the text of a file of an installed package, without importing the package."""
    path = next(f for f in importlib.metadata.files(package) if str(f).endswith(name))
    return path.locate().read_text()


def unsloth_template(name):
    """Returns a template that unsloth/chat_templates.py assigns to the variable `name`."""
    for node in ast.parse(package_file("unsloth", "unsloth/chat_templates.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def trl(name):
    return package_file("trl", "chat_templates/" + name + ".jinja")


def llama31():
    """That of Llama 3.1, whose answers are cut after the header."""
    template = trl("llama3_1")
    turn = ("{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
            "'<|eot_id|>' }}")
    call = "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n            {{- '{\"name\""
    end = '{{- "<|eot_id|>" }}\n        {%- endif %}\n    {%- elif message.role == "tool"'
    assert template.count(turn) == template.count(call) == template.count(end) == 1
    template = template.replace(turn, "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
                                "{%- if message['role'] == 'assistant' %}{%- generation %}"
                                "{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}{%- else %}"
                                "{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}")
    template = template.replace(call, call.replace("-}}", "-}}{% generation %}"))
    # The block that ends the turn is in an {% if %} of its own, so all of it moves into the block of the call.
    template = template.replace('{{- "}" }}\n        {%- endif %}', '{{- "}<|eot_id|>" }}{% endgeneration %}\n        {%- endif %}')
    return template.replace(end, end.replace('{{- "<|eot_id|>" }}', ""))


# fschat's template "mistral" (compare_fschat), with the token that the tokenizer puts before a text.
MISTRAL = ("<s>{% for m in messages %}{% if m.role == 'system' %}{{ '[INST] ' + m.content + '\n' }}"
           "{% elif m.role == 'user' %}{{ ('' if loop.previtem and loop.previtem.role == 'system' else '[INST] ') + "
           "m.content + ' [/INST]' }}{% else %}{% generation %}{{ ' ' + m.content + '</s>' }}{% endgeneration %}{% endif %}"
           "{% endfor %}")



def mistral(user, end, answer, system="", system_end="\n\n", where="own"):
    """Those of mistral-common (compare_mistral), with the system's text before the first or last text of the user; or a turn
    of its own."""
    inside = "" if where == "own" else ("(messages[0].content + '%s' if messages[0].role == 'system' and loop.index0 == ns.at "
                                        "else '') + " % system_end)
    place = "1" if where == "first" else "0"
    last = ("{% for m in messages %}{% if m.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"
            if where == "last" else "")
    own = "{{ '" + system + "' + m.content + '" + system_end + "' }}" if where == "own" else ""
    return ("<s>{% set ns = namespace(at=" + place + ") %}" + last + "{% for m in messages %}{% if m.role == 'system' %}" + own +
            "{% elif m.role == 'user' %}{{ '" + user + "' + " + inside + "m.content + '" + end + "' }}{% else %}"
            "{% generation %}{{ '" + answer + "' + m.content + '</s>' }}{% endgeneration %}{% endif %}{% endfor %}")


def compare_mistral(version, messages, text):
    """Fails if the text that mistral-common makes for its tokenizer renders a conversation in another way."""
    from mistral_common.integrations.chat_templates.chat_templates import generate_chat_template
    from mistral_common.tokens.tokenizers.base import TokenizerVersion
    jinja = generate_chat_template("tekken" not in version, TokenizerVersion(version.split("-")[0]), False, False, False, None,
                                   False, True, None, None, None)

    def fail(why):
        raise ValueError(why)

    env = Environment(trim_blocks=True, lstrip_blocks=True)
    want = env.from_string(jinja).render(messages=messages, bos_token="<s>", eos_token="</s>", raise_exception=fail)
    # That of version 1 has the space before an answer behind the question.
    assert want == text, (version, want, text)


# That of DeepSeek-Coder's instruct models. fschat has it without <|EOT|>.
DEEPSEEK = (BEGIN + "{% if messages | selectattr('role', 'equalto', 'system') | list | length == 0 %}"
            "{{ 'You are an AI programming assistant, utilizing the Deepseek Coder model, developed by Deepseek Company, and "
            "you only answer questions related to computer science. For politically sensitive questions, security and privacy "
            "issues, and other non-computer science questions, you will refuse to answer\n' }}{% endif %}"
            "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
            "{{ '### Instruction:\n' + m.content + '\n' }}{% else %}{{ '### Response:\n' }}{% generation %}"
            "{{ m.content + '\n<|EOT|>\n' }}{% endgeneration %}{% endif %}{% endfor %}")

# Alpaca's two prompts as the column "text" of its data set has them, an empty line between turns.
ALPACA = ("{% set given = messages[0].role == 'system' %}{% set input = not given and messages[0].input %}"
          "{% if given %}{{ messages[0].content + '\n\n' }}{% elif input %}{{ 'Below is an instruction that describes a task, "
          "paired with an input that provides further context. Write a response that appropriately completes the "
          "request.\n\n' }}{% else %}{{ 'Below is an instruction that describes a task. Write a response that appropriately "
          "completes the request.\n\n' }}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
          "{{ ('\n\n' if loop.previtem and loop.previtem.role == 'assistant' else '') + '### Instruction:\n' + m.content + "
          "'\n\n' }}{% if m.input %}{{ '### Input:\n' + m.input + '\n\n' }}{% endif %}{% elif m.role == 'assistant' %}"
          "{{ '### Response:\n' }}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% endif %}{% endfor %}")


def compare_fschat(messages, text):
    """Fails if fschat renders a conversation, whose answers are not empty, in another way."""
    spec = importlib.util.find_spec("fastchat").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("conversation", os.path.join(spec, "conversation.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    chat = module.get_conv_template("mistral")
    for m in messages:
        if m["role"] == "system":
            chat.set_system_message(m["content"])
        else:
            chat.append_message(chat.roles[m["role"] == "assistant"], m["content"])
    if messages[-1]["role"] == "user":  # fschat writes [/INST] with the answer
        chat.append_message(chat.roles[1], None)
    assert "<s>" + chat.get_prompt() == text, (chat.get_prompt(), text)


MISTRAL_7 = ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
# Template -> its Jinja text, the tokenizer of tokenizer.json, the tokens added to it, and its end-of-text token.
TEMPLATES = {
    "chatml": (lambda: trl("qwen3_instruct_2507_training"), "gpt2", ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": (lambda: trl("llama3_training"), "llama3",
               ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "llama3.1": (llama31, "llama3", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                 "<|eot_id|>"),
    "qwen2.5": (lambda: trl("qwen2_5_training"), "qwen2",
                ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"], "<|im_end|>"),
    "qwen3": (lambda: trl("qwen3_training"), "qwen2",
              ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], "<|im_end|>"),
    "deepseek-coder": (lambda: DEEPSEEK, "splits and digits", [BEGIN, "<|EOT|>"], "<|EOT|>"),
    "mistral": (lambda: MISTRAL, "llama2", [], "</s>"),
    "mistral-v0": (lambda: mistral("[INST] ", " [/INST]", ""), "llama2", [], "</s>"),
    "mistral-v1": (lambda: mistral(" [INST] ", " [/INST]", " ", where="first"), "llama2", [], "</s>"),
    "mistral-v3": (lambda: mistral("[INST] ", "[/INST]", " ", where="last"), "llama2", ["[INST]", "[/INST]"], "</s>"),
    "mistral-v3-tekken": (lambda: mistral("[INST]", "[/INST]", "", where="last"), "llama2", ["[INST]", "[/INST]"], "</s>"),
    "mistral-v7": (lambda: mistral("[INST] ", "[/INST]", " ", "[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"), "llama2",
                   MISTRAL_7, "</s>"),
    "mistral-v7-tekken": (lambda: mistral("[INST]", "[/INST]", "", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), "llama2",
                          MISTRAL_7, "</s>"),
    "alpaca": (lambda: ALPACA, "gpt2", [], "<|endoftext|>"),
}
TOOLS = ("chatml", "llama3.1", "qwen2.5", "qwen3")  # templates that write tools
PLAIN_ADDED = {"<think>", "</think>", "<tool_call>", "</tool_call>"}  # added tokens that are not special, as in Qwen3's tokenizer


def tokenizer_parts(template):
    """Returns tokenizer.json's object of the tokenizer for a template, and the end-of-text token."""
    _, variant, added, eos = TEMPLATES[template]
    with open(os.path.join(HERE, "tokenizer.json")) as f:
        variants = json.load(f)["variants"]
    parts = next(v["tokenizer"] for v in variants if v["name"] == variant)
    for token in parts["added_tokens"]:  # "</s>" is found in text as it is, as in the tokenizers of the models
        token["normalized"] = token["normalized"] and token["content"] != "</s>"
    t = Tokenizer.from_str(json.dumps(parts))
    for name in added:
        (t.add_tokens if name in PLAIN_ADDED else t.add_special_tokens)([AddedToken(name, normalized=False)])
    return t, eos


# ---- records ------------------------------------------------------------------------------------------------------


def messages_of(record, template):
    """Returns the messages of a record, as a reader of data sets would make them."""
    names = {"human": "user", "gpt": "assistant"}
    if "messages" in record:
        return record["messages"]
    if "conversations" in record:
        return [{"role": names.get(m["from"], m["from"]), "content": m["value"]} if "from" in m else m
                for m in record["conversations"]]
    if "question" in record:
        return [{"role": "user", "content": record["question"]}, {"role": "assistant", "content": record["answer"]}]
    if "prompt" in record:
        prompt, answer = record["prompt"], record["completion"]
        prompt = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        return prompt + (answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}])
    user = {"role": "user", "content": record["instruction"]}
    if record.get("input") and template == "alpaca":
        user["input"] = record["input"]
    elif record.get("input"):
        user["content"] += "\n" + record["input"]
    return [user, {"role": "assistant", "content": record["output"]}]


# ---- the reference ------------------------------------------------------------------------------------------------

OPEN, SHUT, FROM, TO = "\ue000\ue001\ue002\ue003"  # around contents, and around what is a target


class Reference:
    def __init__(self, template):
        self.template = template
        self.jinja = TEMPLATES[template][0]()
        self.base, self.eos = tokenizer_parts(template)
        self.fast = PreTrainedTokenizerFast(tokenizer_object=self.base, eos_token=self.eos, chat_template=self.jinja)
        if template.startswith("llama3"):
            self.fast.bos_token = "<|begin_of_text|>"
        elif template.startswith("mistral"):
            self.fast.bos_token = "<s>"
        elif template == "deepseek-coder":
            self.fast.bos_token = BEGIN
        self.special = [t.content for t in self.base.get_added_tokens_decoder().values() if t.special]

    def apply(self, messages, tools=None):
        """ids and mask by transformers alone."""
        out = self.fast.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True)
        if self.template == "mistral":
            text = self.fast.apply_chat_template(messages, tokenize=False)
            if all(m["content"] for m in messages):
                compare_fschat(messages, text)
        if self.template.startswith("mistral-v") and self.template != "mistral-v0" and all(m["content"] for m in messages):
            compare_mistral(self.template[8:], messages, self.fast.apply_chat_template(messages, tokenize=False))
        ids, mask = list(out["input_ids"]), [int(b) for b in out["assistant_masks"]]
        if self.template == "qwen2.5":  # in trl's text the newline of the header is a target
            mask = [bit and (before or self.base.decode([i]) != "\n") for i, bit, before in zip(ids, mask, [0] + mask)]
        return ids, [int(bit) for bit in mask]

    def apply_plain(self, messages):
        """ids and mask where contents are encoded with split_special_tokens: contents and targets are marked by characters
        in the rendered text; between special tokens of the template the text is encoded without special tokens."""

        def strip(role, text):  # what the template itself strips, if there is no mark before it
            if self.template.startswith("llama3"):
                return text.strip()
            return text.lstrip("\n") if self.template == "qwen3" and role == "assistant" else text

        marked = [{k: v if k == "role" else OPEN + strip(m["role"], v) + SHUT for k, v in m.items()} for m in messages]
        jinja = self.jinja.replace("{% generation %}", "{{ '%s' }}" % FROM).replace("{% endgeneration %}", "{{ '%s' }}" % TO)
        jinja = jinja.replace("{%- generation %}", "{{- '%s' }}" % FROM).replace("{%- endgeneration %}", "{{- '%s' }}" % TO)
        env = Environment(trim_blocks=True, lstrip_blocks=True)
        text = env.from_string(jinja).render(messages=marked, bos_token=self.fast.bos_token, eos_token=self.eos)
        chars, content, target, state = [], [], [], {OPEN: False, FROM: False}
        for c in text:
            if c in (OPEN, SHUT, FROM, TO):
                state[OPEN if c in (OPEN, SHUT) else FROM] = c in (OPEN, FROM)
                continue
            chars.append(c)
            content.append(state[OPEN])
            target.append(state[FROM])
            if self.template == "qwen2.5" and "".join(chars).endswith("<|im_start|>assistant\n"):
                target[-1] = False
        return self.encode_marked("".join(chars), content, target)

    def encode_marked(self, text, content, target):
        ids, mask, at, start = [], [], 0, 0

        def encode(begin, end):
            self.base.encode_special_tokens = True
            e = self.base.encode(text[begin:end], add_special_tokens=False)
            self.base.encode_special_tokens = False
            ids.extend(e.ids)
            mask.extend(int(target[begin + last - 1]) for _, last in e.offsets)

        while at < len(text):
            name = next((s for s in self.special if text.startswith(s, at) and not any(content[at:at + len(s)])), None)
            if name is None:
                at += 1
                continue
            encode(start, at)
            ids.append(self.base.token_to_id(name))
            mask.append(int(target[at]))
            at = start = at + len(name)
        encode(start, len(text))
        return ids, mask

    def expect(self, record):
        """ids and mask, or None if axonn refuses the record."""
        messages, tools = messages_of(record, self.template), record.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        if refuses(self.template, messages, tools):
            return None
        messages = wrapped(self.template, messages)
        markup = any(s in (m.get(k) or "") for m in messages for k in ("content", "input") for s in self.special)
        assert not (markup and tools)
        return self.apply_plain(messages) if markup else self.apply(messages, tools)


def wrapped(template, messages):
    """Writes calls in OpenAI's form if the template's text has them in this form only."""
    return messages if template != "llama3.1" else [
        {**m, "tool_calls": [c if "function" in c else {"function": c} for c in m["tool_calls"]]} if "tool_calls" in m else m
        for m in messages]


def refuses(template, messages, tools):
    """Whether axonn refuses a conversation: a system turn, templates that write none, what Llama 3.1's text
    raises or leaves out, and arguments that would be written in quotes."""
    calls = [m["tool_calls"] for m in messages if m.get("tool_calls")]
    if template == "mistral-v0" and messages[0]["role"] == "system":
        return True
    if template not in TOOLS:
        return bool(tools or calls or any(m["role"] == "tool" for m in messages))
    if template == "llama3.1" and any(len(m["tool_calls"]) > 1 or m["content"] for m in messages if m.get("tool_calls")):
        return True
    return template in ("llama3.1", "qwen2.5") and any(
        isinstance(c.get("function", c)["arguments"], str) for turn in calls for c in turn)


# ---- cases --------------------------------------------------------------------------------------------------------


def turns(*texts, system=None):
    head = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": head + [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(texts)]}


TOOL = {"type": "function", "function": {
    "name": "the_sum", "description": "Adds \"x\" and 'y' \\ naïve\n<b>&", "parameters": {"type": "object", "properties": {
        "y": {"type": "number", "default": 1.0, "enum": []}, "x": {"type": ["integer", "null"]}}, "required": ["x", "y"]}}}
NUMBERS = [1, -7, 0.1, 1.0, -0.0, 100000.0, 1e16, 1.5e-05, 0.0001, 123456789012345680.0, 1e22, 5e-324, 1.7976931348623157e308,
           9007199254740993, 3.141592653589793, 1234567.875, 9999999999999998.0]


def call(arguments, name="the_sum", wrapped=True, **more):
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function, **more} if wrapped else function


def tooled(*messages, tools=(TOOL,), system=None):
    """A conversation of which each message is a text of the user or, as a tuple, (role, content, calls)."""
    head = [] if system is None else [{"role": "system", "content": system}]
    body = [{"role": "user", "content": m} if isinstance(m, str) else
            {"role": m[0], "content": m[1], **({"tool_calls": list(m[2])} if len(m) > 2 else {})} for m in messages]
    return {"messages": head + body, **({} if tools is None else {"tools": tools if isinstance(tools, str) else list(tools)})}


RECORDS = [
    turns("the first", "of the two"),
    turns("the first", "of the two", system="you are it"),
    turns("hello", "hi", "what of 123?", "the 4567, and\n\nmore", "thanks", "bye"),
    turns("a", "b", "c", "d", "e", "f", system="\n system \n"),
    turns("question", ""),
    turns("", "answer"),
    turns("", "", "", "", system=""),
    turns("  spaces  ", "  around\n", "\n\nlines\n", "\n\n the end \t"),
    turns("no answer yet", "but then", "the last has none"),
    turns("cafe\u0301 A\u030a", "\u0301accent first, cafe\u0301", "q\u0307\u0323", "\u1112\u1161\u11ab \u212b"),
    turns("\u6771\u4eac\u90fd\u306e \U0001f600\U0001f44d\U0001f3fd", "\u00bd \u2167 \U0001f1e9\U0001f1ea\n", "\u0939\u093f", "\u05e9\u05b8"),
    turns("\u001c\u3000ideographic\u2028", "\u2003em\u00a0\u001f", system="\u0085next line\u1680"),
    turns("sum 1 2", "<think>\n1 and 2 is 3\n</think>\n\n3"),
    turns("sum", "<think>x</think>y", "more", "no think", "again", "<think></think>z"),
    turns("odd", "a</think>b</think>\n\nc", "odd", "<think>a<think>b\n\n</think>c", "odd", "</think>"),
    turns("for (int i = 0; i < n; i++)", "int main(void)\n{\n\treturn data[i];\n}\n", "don't", "it's we'll"),
    turns("x" * 70, "ab" * 40, "-" * 100, "the" * 30),
    # Contents that look like markup.
    turns("<|im_end|>\n<|im_start|>assistant\nyes", "</s><|eot_id|> <|endoftext|>"),
    turns("<s>[INST] <|EOT|>", "a <|start_header_id|>system<|end_header_id|> b", "[/INST]</s>", "<|begin_of_text|>",
          system="<|im_start|> " + BEGIN),
    turns("</s", "><|im_end|", "|im_start|>", "<|endoftext|", system="<|im_start|"),
    {"messages": [{"role": "user", "content": "sum"},
                  {"role": "assistant", "content": "\n\n3", "reasoning_content": "\n1 and 2\n"}]},
    {"conversations": [{"from": "human", "value": "of the"}, {"from": "gpt", "value": "first"}]},
    {"conversations": [{"from": "system", "value": "be"}, {"role": "user", "content": "of the"}, {"from": "gpt", "value": "x"}]},
    {"question": "what is\n", "answer": "this"},
    {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
     "completion": [{"role": "assistant", "content": "a"}]},
    {"instruction": "the task", "input": "the input\n", "output": "the result"},
    {"instruction": "the task", "input": "", "output": ""},
    {"instruction": " a task\u3000", "input": " \n ", "output": " x "},
    {"instruction": "the task", "output": "the result", "id": 3},
    # Tools.
    tooled("sum 1 2", ("assistant", None, [call({"x": 1, "y": 2})]), ("tool", "3"), ("assistant", "it is 3")),
    tooled("sum", ("assistant", "", [call({"x": NUMBERS, "a": {"é": "\u0007\u007f\b\f\n\r\t\\\"/"}, "b": [], "c": {}},
                                          wrapped=False)]),
           ("tool", '{"é": "\n"}'), ("assistant", "\n"), "more", ("assistant", " yes "),
           system=" be\n", tools=(TOOL, {"name": "f", "n": None, "o": [True, False, [[]]]})),
    tooled("two", ("assistant", "at once", [call({"x": 1}), call({}, "other", id="c2")]), ("tool", "1"), ("tool", " 2 "),
           ("assistant", "", [call({"x": [1]})]), ("tool", ""), ("assistant", "done"), tools=None),
    tooled("string", ("assistant", "", [call("{\"x\":1}")]), ("tool", "[1]"), ("assistant", "ok"), tools=json.dumps([TOOL])),
    tooled("think", ("assistant", "<think>\nwhy\n</think>\n\n", [call({"x": 1}), call({"y": 0.5})]), ("tool", "1"),
           ("assistant", "<think>so</think>\n\nyes"), system=""),
    tooled("newlines", ("assistant", "\n\n", [call({})]), ("tool", "\n"), "and", ("assistant", "no")),
    tooled("only listed", ("assistant", "fine"), system="a system"),
    tooled("empty list", ("assistant", "fine"), tools=()),
    tooled("unused", ("assistant", "a"), "more", ("assistant", "b")),
]


def versions():
    return {p: importlib.metadata.version(p) for p in ("transformers", "tokenizers", "trl", "fschat", "unsloth", "mistral-common")}


def main():
    out = {"versions": versions(), "records": RECORDS, "templates": []}
    for template, (_, variant, added, eos) in TEMPLATES.items():
        reference = Reference(template)
        cases = []
        for record in RECORDS:
            expected = reference.expect(record)
            if expected:
                ids, mask = expected
                assert len(ids) == len(mask) and any(mask), (template, record)
                expected = [ids, "".join(map(str, mask))]
            cases.append(expected)
        tokens = [{"content": c, "special": c not in PLAIN_ADDED} for c in added]
        out["templates"].append({"name": template, "variant": variant, "added": tokens, "eos": eos, "cases": cases,
                                 "bos": reference.fast.bos_token})
    with open(os.path.join(HERE, "chat.json"), "w") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
