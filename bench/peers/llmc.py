#!/usr/bin/env python3
"""Times training steps of GPT-2 in llm.c's trainers, for comparison.

--source is a checkout of github.com/karpathy/llm.c. A copy of it is built with its own Makefile. The tokens are random.
Prints one JSON object.

On the CPU (train_gpt2.c: fp32, OpenMP, -Ofast -march=native) batch size and number of steps are constants in its source;
this script edits them in the copy, and writes the file from which the trainer reads its weights.

On a GPU (--device cuda, train_gpt2.cu: bf16 with fp32 master weights, --micro rows at a time) the trainer initializes the
weights itself, and only has GPT-2's four sizes. --program names the built trainer; it is built if it does not exist. With
--build the script only builds it, for use on another machine. Attention is cuDNN's if the trainer is built with
--cudnn-frontend, a checkout of github.com/NVIDIA/cudnn-frontend (1.14.1 compiles with CUDA 13, 1.8 does not), else
matrix products of cuBLAS and a softmax.
Usage:  python3 bench/peers/llmc.py --source llm.c --batch 4 --seq 256 --threads 2
        python3 bench/peers/llmc.py --device cuda --source llm.c --cudnn-frontend cudnn-frontend --program train --build
        python3 bench/peers/llmc.py --device cuda --program train --layers 48 --hidden 1600 --heads 25 --seq 1024
                                    --batch 256 --micro 16
"""

import argparse
import array
import importlib.util
import json
import os
import pathlib
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile

HEADER = 256  # int32 words before the contents of either file
DEPTHS = {(12, 768, 12): "d12", (24, 1024, 16): "d24", (36, 1280, 20): "d36", (48, 1600, 25): "d48"}
CUDA = pathlib.Path("/usr/local/cuda")
# If GPU memory is too small, llm.c falls back on managed memory, with an argument whose type CUDA 13 has changed. The shim
# lets this code compile, and makes the fallback fail: a step that reads host memory cannot be compared, and too much
# managed memory stops some machines.
CUDA_SHIM = """#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
#undef cudaCpuDeviceId
#define cudaCpuDeviceId cudaMemLocation{cudaMemLocationTypeHost, 0}
#endif
#define cudaMallocManaged(...) cudaErrorMemoryAllocation
"""


def run(command, cwd, **environment):
    done = subprocess.run(command, cwd=cwd, env=dict(os.environ, **environment), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def copy(args, work):
    if not (args.source and (args.source / "train_gpt2.c").is_file()):
        sys.exit(f"--source {args.source} is no checkout of llm.c: git clone --depth 1 "
                 "https://github.com/karpathy/llm.c")
    shutil.copytree(args.source, work, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)


def build(args, work):
    copy(args, work)
    text = (work / "train_gpt2.c").read_text()
    for old, new in [("int B = 4;", f"int B = {args.batch};"), ("int T = 64;", f"int T = {args.seq};"),
                     ("step <= 40;", f"step < {args.warmup + args.steps};"),
                     ("int val_num_batches = 5;", "int val_num_batches = 1;")]:
        if text.count(old) != 1:
            sys.exit(f"{args.source}/train_gpt2.c: expected '{old}' once: a version that this script does not know")
        text = text.replace(old, new)
    (work / "train_gpt2.c").write_text(text)
    run(["make", "train_gpt2", f"CC={args.cc}"], work)


def cudnn_package():
    """Returns the folder of the Python package that contains cuDNN, or None."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return None
    return pathlib.Path(spec.submodule_search_locations[0]) if spec else None


def build_cuda(args, work):
    """Builds the trainer as args.program, without NCCL and MPI, and without editing it."""
    copy(args, work)
    os.environ["PATH"] += f":{CUDA}/bin"
    for tool in ["make", "nvcc", "g++"]:
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: install it, or build elsewhere with --build and bring what --program names")
    libraries, package, flags = work / "libraries", cudnn_package(), [f"-include {work}/shim.h"]
    (work / "shim.h").write_text(CUDA_SHIM)
    libraries.mkdir()
    # The trainer is linked with NVML. Without nvml.h it calls no function of it, so an empty library suffices; where the
    # header is installed, CUDA's stub library is too.
    run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", libraries / "libnvidia-ml.so"], work)
    words = ["train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", f"GPU_COMPUTE_CAPABILITY={args.arch}"]
    if args.cudnn_frontend:
        include = args.cudnn_frontend.resolve() / "include"
        if not (include / "cudnn_frontend.h").is_file():
            sys.exit(f"--cudnn-frontend {args.cudnn_frontend} is no checkout of cudnn-frontend: git clone --depth 1 "
                     "--branch v1.14.1 https://github.com/NVIDIA/cudnn-frontend")
        (work / "cudnn-frontend").symlink_to(include.parent)  # where the Makefile looks
        words += ["USE_CUDNN=1", f"CUDNN_FRONTEND_PATH={include}"]
        flags.append("-lnvrtc")  # later versions compile kernels
        if package:
            (libraries / "libcudnn.so").symlink_to(package / "lib" / "libcudnn.so.9")
            flags.append(f"-I{package}/include")
    run(["make"] + words, work, NVCC_APPEND_FLAGS=" ".join(flags), LIBRARY_PATH=f"{CUDA}/lib64/stubs:{libraries}")
    args.program.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(work / "train_gpt2cu", args.program)


def header(file, *words):
    array.array("i", words + (0,) * (HEADER - len(words))).tofile(file)


def write_weights(args, path):
    """Writes weights in the order of its ParameterTensors, with the vocabulary padded to a multiple of 128. Values repeat."""
    v, d, n = -(-args.vocab // 128) * 128, args.hidden, args.layers
    noise = array.array("f", [random.gauss(0, 0.02) for _ in range(100003)])
    noise *= 10

    def fill(file, count):
        for at in range(0, count, len(noise)):
            noise[:count - at].tofile(file)

    with open(path, "wb") as file:
        header(file, 20240326, 3, args.seq, args.vocab, n, args.heads, d, v)
        for count, value in [(v * d, None), (args.seq * d, None), (n * d, 1), (n * d, 0), (n * 3 * d * d, None),
                             (n * 3 * d, 0), (n * d * d, None), (n * d, 0), (n * d, 1), (n * d, 0),
                             (n * 4 * d * d, None), (n * 4 * d, 0), (n * d * 4 * d, None), (n * d, 0), (d, 1), (d, 0)]:
            if value is None:
                fill(file, count)
            else:
                array.array("f", [value] * count).tofile(file)


def write_tokens(args, path):
    count = (args.warmup + args.steps + 1) * args.batch * args.seq + 1
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        header(file, 20240520, 1, count)
        array.array("H", random.choices(range(args.vocab), k=count)).tofile(file)


def on_cpu(args, work):
    build(args, work)
    write_weights(args, work / "gpt2_124M.bin")
    for part in ["train", "val"]:
        write_tokens(args, work / f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin")
    out = run([work / "train_gpt2"], work, OMP_NUM_THREADS=str(args.threads))
    return out, re.findall(r"train loss (\S+) \(took ([0-9.]+) ms\)", out)


def on_cuda(args, work):
    for part in ["train", "val"]:
        write_tokens(args, work / f"{part}.bin")
    # Validation cannot be turned off, so it runs on one micro-batch before the first step and after the last. Recompute
    # is off (-r) and GELU is fused for the largest size (-ge), as in llm.c's scripts/run_gpt2_*.sh.
    depth = DEPTHS[args.layers, args.hidden, args.heads]
    words = ["-i", "train.bin", "-j", "val.bin", "-e", depth, "-b", args.micro, "-t", args.seq, "-d",
             args.batch * args.seq, "-x", args.warmup + args.steps, "-v", 1000000, "-m", 1, "-s", 0, "-h", 0, "-c", 0.1,
             "-r", 0, "-ge", int(depth == "d48")]
    libraries = [os.environ.get("LD_LIBRARY_PATH", ""), f"{CUDA}/lib64"]
    if cudnn_package():
        libraries.append(str(cudnn_package() / "lib"))
    out = run([args.program.resolve()] + [str(word) for word in words], work,
              LD_LIBRARY_PATH=":".join(filter(None, libraries)))
    return out, re.findall(r"^step +\d+/\d+ \| loss (\S+) .*\| ([0-9.]+) ms \|", out, re.MULTILINE)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--source", type=pathlib.Path, help="a checkout of llm.c")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default %(default)s")
    p.add_argument("--cc", default="gcc", help="compiler for --device cpu, default gcc")
    p.add_argument("--program", type=pathlib.Path, help="a built trainer, for --device cuda; default: build one for this run")
    p.add_argument("--build", action="store_true", help="build --program, and exit")
    p.add_argument("--cudnn-frontend", type=pathlib.Path, metavar="DIR", help="a checkout of cudnn-frontend, for --device cuda")
    p.add_argument("--arch", default="90", help="compute capability of the GPU to build for, default %(default)s")
    p.add_argument("--micro", type=int, default=0, help="rows computed at a time, for --device cuda; default: all")
    for name, default in [("layers", 12), ("hidden", 768), ("heads", 12), ("vocab", 50257), ("seq", 256),
                          ("batch", 4), ("steps", 5), ("warmup", 2), ("threads", 2)]:
        p.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    args = p.parse_args()
    args.micro = args.micro or args.batch
    if args.device == "cpu":
        if args.micro != args.batch or args.program or args.build or args.cudnn_frontend:
            p.error("--micro, --program, --build and --cudnn-frontend are of --device cuda")
        if args.warmup + args.steps > 20:
            p.error("--steps and --warmup: at most 20 in all, as the trainer then generates text")
    elif args.build and not args.program:
        p.error("--build: --program says where to")
    elif args.micro < 0 or args.batch % args.micro:
        p.error(f"--batch {args.batch} is not divisible by --micro {args.micro}")
    elif (args.layers, args.hidden, args.heads) not in DEPTHS or args.vocab != 50257 or args.seq > 1024:
        p.error("the trainer knows models of " + ", ".join("%d x %d, %d heads" % shape for shape in DEPTHS)
                + "; vocabulary 50257, --seq at most 1024")
    return args


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        if args.device == "cuda":
            args.program = args.program or work / "trainer"
            if args.build or not args.program.is_file():
                build_cuda(args, work / "build")
            if args.build:
                return
        out, steps = (on_cuda if args.device == "cuda" else on_cpu)(args, work)
    ms = [float(ms) for _loss, ms in steps[args.warmup:]]
    if len(ms) != args.steps:
        sys.exit(f"expected {args.steps} timed steps, found {len(ms)} in\n{out}")
    print(json.dumps({
        "case": "llm.c.gpt2." + ("bf16" if args.device == "cuda" else "fp32"), "unit": "ms", "runs": args.steps,
        "median": statistics.median(ms), "min": min(ms), "max": max(ms), "step_ms": statistics.median(ms),
        "loss": float(steps[-1][0]), "rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
