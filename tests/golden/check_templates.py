"""Compares the ids that axonn and transformers give to conversations by chat templates of released models.

    python3 tests/golden/check_templates.py build/libaxonn.so [--unmarked] TEMPLATE.jinja ... [N]

The texts of the templates are not in this tree: packages trl and unsloth (PyPI) and the source of llama-cpp-python have
them. For each, N conversations (50) with and without a prompt for an answer: ids must be equal, or both programs refuse. Of
templates with {% generation %} also the masks; with --unmarked axonn gets the text without these tags, and must find the
answers by itself."""
import ctypes
import datetime
import json
import os
import random
import re
import sys
import tempfile

os.environ["SOURCE_DATE_EPOCH"] = "1753315200"
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = os.path.dirname(os.path.abspath(__file__))
WORDS = "the of and to in is 12 4567 int return (n < 0) { } ; \"%d\\n\" naïve café привет 東京都 😀 e\u0301 ### ".split(" ")


class Now(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = Now


class Buf(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Turns(ctypes.Structure):
    _fields_ = [("turn", ctypes.c_void_p), ("n", ctypes.c_size_t), ("capacity", ctypes.c_size_t), ("plain", ctypes.c_bool),
                *((name, ctypes.c_void_p) for name in ("tools", "documents", "variables", "record", "ignored", "made"))]


class Axonn:
    def __init__(self, library, folder):
        self.lib, self.jansson = ctypes.CDLL(library), ctypes.CDLL("libjansson.so.4")
        self.jansson.json_loads.restype = ctypes.c_void_p
        self.lib.ax_error_message.restype = ctypes.c_char_p
        self.tok, self.chat, self.encoder = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.try_(self.lib.ax_tokenizer_load(folder.encode(), ctypes.byref(self.tok)))
        self.try_(self.lib.ax_chat_create(self.tok, None, ctypes.byref(self.chat)))
        self.try_(self.lib.ax_encoder_create(self.tok, ctypes.byref(self.encoder)))
        self.lib.ax_chat_name.restype = ctypes.c_char_p
        self.name = self.lib.ax_chat_name(self.chat).decode()

    def try_(self, status):
        if status:
            raise RuntimeError(self.lib.ax_error_message().decode(errors="replace"))

    def encode(self, record, prompt):
        turns, text, ids, mask = Turns(), ctypes.create_string_buffer(512), Buf(), Buf()
        value = ctypes.c_void_p(self.jansson.json_loads(json.dumps(record).encode(), ctypes.c_size_t(0x10), None))
        self.try_(self.lib.ax_chat_read(value, None, ctypes.byref(turns)))
        self.try_(self.lib.ax_chat_render(self.chat, ctypes.byref(turns), ctypes.c_bool(prompt), text))
        self.try_(self.lib.ax_chat_encode(self.encoder, text, ctypes.byref(ids), ctypes.byref(mask)))
        return (list((ctypes.c_int32 * ids.size).from_address(ids.data)) if ids.size else [],
                list((ctypes.c_uint8 * mask.size).from_address(mask.data)) if mask.size else [])


def content(rng):
    if rng.random() < 0.06:
        return ""
    text = "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", "\n", "\n\n", ", "]) for _ in range(rng.choice([1, 3, 9, 20])))
    return text if rng.random() < 0.3 else text.strip()


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name <of> the \"city\""},
                                     "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}}


def record(rng, number):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "developer" if number % 10 == 9 else "system", "content": content(rng)})
    for _ in range(rng.choice([1, 1, 2, 3])):
        text = content(rng)
        messages.append({"role": "user", "content": [{"type": "text", "text": text}] if number % 8 == 7 else text})
        if number % 3 == 2:
            arguments = {"city": content(rng), "days": rng.randrange(3), "list": [1.5, None, True]}
            said = content(rng)
            messages.append({"role": "assistant", "content": None if number % 4 == 2 else said, "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]})
            messages.append({"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": content(rng)})
        answer = {"role": "assistant", "content": content(rng)}
        if number % 4 == 1:
            answer["reasoning_content"] = content(rng)
        elif number % 4 == 3:
            answer["content"] = "<think>\n" + content(rng) + "\n</think>\n\n" + answer["content"]
        messages.append(answer)
    if rng.random() < 0.5:
        messages.append({"role": "user", "content": content(rng)})
    return {"messages": messages, **({"tools": [TOOL]} if number % 3 == 2 else {})}


def make_tokenizer(template):
    with open(os.path.join(HERE, "tokenizer.json")) as f:
        variant = next(v for v in json.load(f)["variants"] if v["name"] == "gpt2")
    tok = Tokenizer.from_str(json.dumps(variant["tokenizer"]))
    marks = set(re.findall(r"<[|｜][^<>\s'\"{}]{1,40}[|｜]>|\[/?[A-Z_]{2,20}\]|</?[a-z_]{2,24}>|<\|[a-z]+|<(?:start|end)_of_turn>", template))
    marks |= {f"<|{r}|>" for r in ("user", "assistant", "system", "tool", "end")} | {"<s>", "</s>"}
    tok.add_special_tokens(sorted(m for m in marks if "think" not in m and not m.startswith("<|") or m.endswith("|>")))
    tok.add_tokens(sorted(m for m in marks if "think" in m and not m.startswith("<|")) + [AddedToken(s, normalized=False) for s in ("\n\n", "  ")])
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", chat_template=template)


def reference(fast, r, prompt, masks=False):
    return fast.apply_chat_template(r["messages"], tools=r.get("tools"), add_generation_prompt=prompt, tokenize=True,
                                    return_dict=True, return_assistant_tokens_mask=masks)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def forget_prompts(fast, r, want):
    """Takes what the prompt for an answer has out of a mask: where marks begin is the choice of who puts them."""
    def write(messages, prompt=False):
        return fast.apply_chat_template(messages, tools=r.get("tools"), add_generation_prompt=prompt, tokenize=False)

    messages, text, mask = r["messages"], write(r["messages"]), want["assistant_masks"]
    ends = [end for _, end in fast(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]]
    for k, m in enumerate(messages):
        if m["role"] == "assistant" and k:
            prompt = write(messages[:k], True)
            end = common(prompt, text)
            while end < len(prompt) and end and text[end - 1] not in ">\n":
                end -= 1  # the answer begins as the rest of the prompt does
            at = sum(e <= end for e in ends)
            while at and mask[at - 1]:
                at -= 1
                mask[at] = 0


def outcome(function):
    try:
        return function(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def check(library, path, n, unmarked):
    with open(path, encoding="utf-8") as f:
        template = f.read()
    rng, fast = random.Random(1), make_tokenizer(template)
    with tempfile.TemporaryDirectory() as folder:
        fast.save_pretrained(folder)
        if unmarked:
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
                f.write(re.sub(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}", r"{%\1 if true \2%}{%\1 endif \2%}", template))
        ours, why = outcome(lambda: Axonn(library, folder))
    if not ours:
        return {"other": [why]}
    equal = refused = untold = masks = 0
    other, wrong_masks, reasons, runs = [], [], {}, {}
    has_masks = re.search(r"\{%-?\s*generation", template)
    for number in range(n):
        r = record(rng, number)
        if not ours.name.startswith("own-"):  # such a template joins parts, which the text of the model may not do
            for m in r["messages"]:
                m["content"] = m["content"][0]["text"] if isinstance(m["content"], list) else m["content"]
        last = r["messages"][-1]["role"]
        for prompt in (False, True):
            if prompt and last == "assistant":
                continue
            told = True
            want, theirs = outcome(lambda: reference(fast, r, prompt, bool(has_masks)))
            got, mine = outcome(lambda: ours.encode(r, prompt))
            if not got and "cannot be told" in mine:
                untold += 1
                told = False
                why_untold = mine.split("cannot be told, because the model's chat_template ")[1].split(":")[0]
                reasons[why_untold] = reasons.get(why_untold, 0) + 1
                unlearned = [dict(m, weight=0) if m["role"] == "assistant" else m for m in r["messages"]]
                got, mine = outcome(lambda: ours.encode(dict(r, messages=unlearned), prompt))
            if not want and not got:
                refused += 1
            elif want and got and want["input_ids"] == got[0]:
                equal += 1
                if has_masks and not prompt and told:
                    if unmarked:
                        forget_prompts(fast, r, want)
                    masks += want["assistant_masks"] == got[1]
                    if want["assistant_masks"] != got[1]:
                        wrong_masks.append(number)
                        for how, mine, theirs in (("+", got[1], want["assistant_masks"]), ("-", want["assistant_masks"], got[1])):
                            for run in re.finditer("1+", "".join("1" if a and not b else "0" for a, b in zip(mine, theirs))):
                                text = how + fast.decode(got[0][run.start():run.end()])
                                runs[text] = runs.get(text, 0) + 1
            else:
                other.append(f"{number} {prompt}: transformers {theirs or 'writes'}; axonn {mine or 'writes'}"
                             + ("\n" + repr(fast.decode(want["input_ids"])) + "\n" + repr(fast.decode(got[0])) if want and got else ""))
    return {"equal": equal, "refused": refused, "untold": untold, "masks": masks, "wrong_masks": wrong_masks, "other": other, "reasons": reasons,
            "name": ours.name, "runs": dict(sorted(runs.items(), key=lambda x: -x[1])[:5])}


def main():
    library, paths = os.path.abspath(sys.argv[1]), sys.argv[2:]
    unmarked = paths[0] == "--unmarked"
    paths = paths[unmarked:]
    n = int(paths.pop()) if paths[-1].isdigit() else 50
    good = 0
    for path in paths:
        result = check(library, path, n, unmarked)
        good += not result["other"]
        shown = {k: v for k, v in result.items() if k != "other"}
        print("ok " if not result["other"] else "NOT", os.path.basename(path), shown, *[o[:1500] for o in result["other"][:1]], flush=True)
    print(f"{good} of {len(paths)} templates: all ids equal")


main()
