"""Trains a tokenizer and encodes text with `axonn tok` and with Hugging Face `tokenizers`, interleaved on the same text.
Prints medians, ratios and whether the results are the same.

    python3 bench/tokenizer.py [--axonn build/axonn] [--mb 30] [--vocab 32000] [--pattern gpt2] [--runs 3] [FILE...]
    python3 bench/tokenizer.py --tokenizer DIR... [--axonn build/axonn] [--mb 30] [--runs 3] [FILE...]

Needs the package `tokenizers`. Without files it reads the C headers under /usr/include. Training is timed in elapsed
seconds, with all cores for both. Encoding is timed in CPU seconds of one thread: for the peer documents of 64 KiB, for
axonn the whole command with loading, reading and printing the ids. With --tokenizer nothing is trained: both encode with
each DIR/tokenizer.json, for example those that tests/golden/check_tokens.py makes."""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = "<|endoftext|>"


def read_text(files, size):
    if not files:
        files = sorted(p for p in pathlib.Path("/usr/include").rglob("*.h") if p.is_file())
    text = bytearray()
    for name in files:
        text += pathlib.Path(name).read_bytes()
        if len(text) >= size:
            break
    return bytes(text[:size]).decode("utf-8", "ignore")


def peer_train(text, vocab, parts):
    """Trains the peer with the pattern and normalizer of axonn's tokenizer.json, so that both do the same work."""
    t = Tokenizer(models.BPE())
    if parts["pre_tokenizer"]["type"] == "Sequence":
        pattern = parts["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if parts["normalizer"]:
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[SPECIAL], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def cpu(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def axonn_encode(axonn, tokenizer, source):
    """Returns the ids and the CPU seconds."""
    start = cpu(resource.RUSAGE_CHILDREN)
    with open(source, "rb") as stdin:
        ids = subprocess.run([axonn, "tok", "encode", tokenizer], stdin=stdin, check=True, capture_output=True).stdout
    return ids, cpu(resource.RUSAGE_CHILDREN) - start


def peer_encode(peer, documents):
    """Returns the CPU seconds."""
    start = cpu(resource.RUSAGE_SELF)
    for document in documents:
        peer.encode(document, add_special_tokens=False)
    return cpu(resource.RUSAGE_SELF) - start


def report(case, mine, other, mb):
    m, o = statistics.median(mine), statistics.median(other)
    print(f"{case:16} axonn {m:8.2f} s ({mb / m:6.1f} MB/s)   tokenizers {o:8.2f} s ({mb / o:6.1f} MB/s)   ratio {o / m:.1f}",
          flush=True)


def encode_only(a, text, documents, mb):
    """Times encoding with the tokenizers that were given."""
    print(f"{mb:.0f} MB of text, {a.runs} runs, medians")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "text.txt")
        pathlib.Path(source).write_text(text, newline="")
        for name in a.tokenizer:
            peer, mine, other = Tokenizer.from_file(os.path.join(name, "tokenizer.json")), [], []
            for _ in range(a.runs):
                mine.append(axonn_encode(a.axonn, name, source)[1])
                other.append(peer_encode(peer, documents))
            report(os.path.basename(name.rstrip("/")), mine, other, mb)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--axonn", default="build/axonn")
    parser.add_argument("--mb", type=float, default=30)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--pattern", default="gpt2")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tokenizer", nargs="+", metavar="DIR")
    a = parser.parse_args()
    os.environ["AXONN_LOG"] = "warn"
    text = read_text(a.files, int(a.mb * 1e6))
    documents = [text[i:i + 65536] for i in range(0, len(text), 65536)]
    mb = len(text.encode()) / 1e6
    if a.tokenizer:
        return encode_only(a, text, documents, mb)
    seconds = {"train": ([], []), "encode": ([], [])}
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "text.txt"), os.path.join(folder, "tok")
        pathlib.Path(source).write_text(text, newline="")
        for _ in range(a.runs):
            start = time.time()
            subprocess.run([a.axonn, "tok", "train", "--input", source, "--vocab", str(a.vocab), "--out", out,
                            "--pattern", a.pattern], check=True, stdout=subprocess.DEVNULL)
            seconds["train"][0].append(time.time() - start)
            ours = json.loads(pathlib.Path(out, "tokenizer.json").read_text())

            start = time.time()
            peer = peer_train(text, a.vocab, ours)
            seconds["train"][1].append(time.time() - start)
            theirs = json.loads(peer.to_str())
            same_merges = ours["model"] == theirs["model"]

            ids, spent = axonn_encode(a.axonn, out, source)
            seconds["encode"][0].append(spent)
            seconds["encode"][1].append(peer_encode(peer, documents))
        same_ids = [int(i) for i in ids.split(b",")] == peer.encode(text, add_special_tokens=False).ids
    print(f"{mb:.0f} MB of text, vocabulary {a.vocab}, pattern {a.pattern}, {a.runs} runs, medians")
    for case, (mine, other) in seconds.items():
        report(case, mine, other, mb)
    print(f"same vocabulary and merges: {same_merges}; same ids: {same_ids}")


main()
