#!/usr/bin/env python3
"""Prompts of ParEval (https://github.com/parallelcodefoundry/ParEval) for axonn generate, and samples for its drivers.

    pareval.py to prompts.json --instruct > prompts.jsonl
    axonn generate MODEL --prompts prompts.jsonl --out samples.jsonl --samples 20 --temperature 0.2 --top-p 0.95
    pareval.py from prompts.json samples.jsonl > outputs.json     # for drivers/run-all.py

A prompt has no id there: name and parallelism_model together are unique. --instruct asks for the completion in the form
of Alpaca's instructions, with one newline before the response, as ParEval does for HPC-Coder; without it the model
continues the prompt, and `--braces` of axonn generate ends the text. Standard library only. See docs/guide/judge.md for
problems that need no ParEval."""
import argparse
import json
import sys

INSTRUCTION = ('Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n'
               '### Instruction:\nComplete the following C++ function.\n```cpp\n{prompt}\n```\nWrite only the function '
               '{name}. Enclose the solution in ```cpp and ```.\n### Response:\n')


def key(prompt):
    return f"{prompt['name']}/{prompt['parallelism_model']}"


def read_prompts(path):
    with open(path) as file:
        prompts = json.load(file)
    seen = set()
    for prompt in prompts:
        if key(prompt) in seen:
            sys.exit(f'{path}: two prompts are named {key(prompt)}')
        seen.add(key(prompt))
    return prompts


def function_name(prompt):
    """The name before the last parenthesis that opens parameters: `void f(int x) {`."""
    line = prompt.rstrip().rstrip('{')
    return line[:line.rindex('(')].split()[-1].lstrip('*&')


def write_prompts(args):
    for prompt in read_prompts(args.prompts):
        if args.models and prompt['parallelism_model'] not in args.models:
            continue
        line = {'id': key(prompt), 'kind': prompt['problem_type'], 'way': prompt['parallelism_model']}
        text = prompt['prompt'].strip()
        line['prompt'] = INSTRUCTION.format(name=function_name(text), prompt=text) if args.instruct else text
        print(json.dumps(line))


def body(text, prompt):
    """The body of the function up to the brace that closes it, without the prompt and a fence if the text repeats them."""
    prompt = prompt.strip()
    if '```' in text:
        text = text.split('```')[1]
        text = text.split('\n', 1)[1] if '\n' in text else text
    if prompt in text:
        text = text[text.index(prompt) + len(prompt):]
    text = text.strip()
    depth = 1
    for at, character in enumerate(text):
        depth += (character == '{') - (character == '}')
        if depth == 0:
            return text[:at + 1]
    return text


def read_samples(path, known):
    """The settings of axonn generate, which are the first line, and the texts of each prompt."""
    samples = {}
    with open(path) as file:
        settings = json.loads(next(file))
        if 'weights' not in settings:
            sys.exit(f'{path}:1: not the settings of axonn generate --prompts')
        for number, line in enumerate(file, 2):
            sample = json.loads(line)
            if sample['id'] not in known:
                sys.exit(f'{path}:{number}: there is no prompt {sample["id"]!r}')
            samples.setdefault(sample['id'], []).append(sample['text'])
    return settings, samples


def write_outputs(args):
    prompts = read_prompts(args.prompts)
    settings, samples = read_samples(args.samples, {key(prompt) for prompt in prompts})
    how = {'temperature': settings['temperature'], 'top_p': settings['top_p'], 'do_sample': settings['temperature'] > 0,
           'max_new_tokens': settings['max_tokens'], 'prompted': False}
    outputs = [{**prompt, **how, 'outputs': [body(text, prompt['prompt']) for text in samples[key(prompt)]]}
               for prompt in prompts if key(prompt) in samples]
    json.dump(outputs, sys.stdout, indent=4)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    to = commands.add_parser('to', help='prompts.json of ParEval as prompts for axonn generate')
    to.add_argument('prompts')
    to.add_argument('--instruct', action='store_true', help='as instructions to a tuned model')
    to.add_argument('--models', nargs='+', help='only these parallelism models (serial, omp, mpi, mpi+omp, ...)')
    to.set_defaults(run=write_prompts)
    back = commands.add_parser('from', help='samples of axonn generate as outputs for the drivers of ParEval')
    back.add_argument('prompts')
    back.add_argument('samples')
    back.set_defaults(run=write_outputs)
    args = parser.parse_args()
    args.run(args)


if __name__ == '__main__':
    main()
