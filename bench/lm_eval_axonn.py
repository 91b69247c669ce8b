#!/usr/bin/env python3
"""Runs tasks of lm-eval (EleutherAI's lm-evaluation-harness, PyPI) on models with the axonn program: registers the model
class `axonn`, and starts lm-eval's own command line. All requests for log-likelihoods of a task are one call of
`axonn eval --pairs`, all requests for texts one of `axonn generate --prompts`, on any grid.

Needs lm-eval and transformers, whose tokenizer makes the tokens, so that they are those of lm-eval's class `hf`.
Usage:  python3 bench/lm_eval_axonn.py run --model axonn --model_args pretrained=DIR[,axonn=PROGRAM][,flags=WORDS] \\
                                       --tasks hellaswag
pretrained: a model's directory with its tokenizer. flags: words for axonn, such as `--precision bf16 --device cuda
--ranks 4 --grid z=4`, with ; in place of the commas of a grid.
"""

import json
import pathlib
import shlex
import subprocess
import tempfile

import transformers
from lm_eval import utils
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

ROOT = pathlib.Path(__file__).resolve().parent.parent


@register_model("axonn")
class AxonnLM(TemplateLM):
    def __init__(self, pretrained, axonn=ROOT / "build" / "axonn", flags="", batch_size=None, device=None, **_others):
        super().__init__()
        self.model, self.program, self.flags = pretrained, axonn, shlex.split(flags.replace(";", ","))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained)
        self.max_length = transformers.AutoConfig.from_pretrained(pretrained).max_position_embeddings

    @property
    def tokenizer_name(self):
        return str(self.model).replace("/", "__")

    @property
    def eot_token_id(self):
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self):
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(self, string, add_special_tokens=None, **_others):
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        return self.tokenizer.encode(string, **({} if add_special_tokens is None else
                                                {"add_special_tokens": add_special_tokens}))

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return self.tokenizer.apply_chat_template(chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
                                                  continue_final_message=not add_generation_prompt)

    def call(self, verb, *words):
        done = subprocess.run([self.program, verb, self.model, *words, *self.flags], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"axonn {verb}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def _loglikelihood_tokens(self, requests, **_others):
        if not requests:
            return []
        with tempfile.TemporaryDirectory() as folder:
            pairs, scores = (pathlib.Path(folder) / name for name in ("pairs.jsonl", "scores.jsonl"))
            with pairs.open("w") as out:
                for _texts, context, continuation in requests:
                    # As for lm-eval's class hf, the beginning of what does not fit is not seen.
                    context = context[max(len(context) + len(continuation) - self.max_length - 1, 0):]
                    out.write(json.dumps({"prompt_tokens": context, "continuation_tokens": continuation}) + "\n")
            self.call("eval", "--pairs", pairs, "--out", scores)
            rows = [json.loads(line) for line in scores.open()]
        return [(row["logprob"], row["greedy"]) for row in rows]

    def loglikelihood_rolling(self, requests, **_others):
        windows = [[utils.make_disjoint_window(w) for w in utils.get_rolling_token_windows(
            token_list=self.tok_encode(*request.args), prefix_token=self.prefix_token_id, max_seq_len=self.max_length,
            context_len=1)] for request in requests]
        scores = iter(self._loglikelihood_tokens([(None, *w) for parts in windows for w in parts]))
        return [sum(next(scores)[0] for _part in parts) for parts in windows]

    def generate_until(self, requests, **_others):
        """Greedy texts, all in one call."""
        with tempfile.TemporaryDirectory() as folder:
            prompts, texts = (pathlib.Path(folder) / name for name in ("prompts.jsonl", "texts.jsonl"))
            with prompts.open("w") as out:
                for number, request in enumerate(requests):
                    out.write(json.dumps({"id": number, **self.prompt(*request.args)}) + "\n")
            self.call("generate", "--prompts", prompts, "--out", texts, "--temperature", "0")
            with texts.open() as lines:
                next(lines)  # the settings
                rows = {row["id"]: row["text"] for row in map(json.loads, lines)}
        return [rows[number] for number in range(len(requests))]

    def prompt(self, context, settings):
        if settings.get("do_sample") or settings.get("temperature"):
            raise ValueError("only greedy generation: do_sample false, temperature 0")
        most = settings.get("max_gen_toks", 256)
        until = settings.get("until") or []
        return {"tokens": self.tok_encode(context)[-(self.max_length - most):], "max_tokens": most,
                "until": [stop for stop in ([until] if isinstance(until, str) else until) if stop]}


if __name__ == "__main__":
    cli_evaluate()
