"""Settings that make PyTorch faster on some machines, by name, with the environment variables that they need."""

import os
import pathlib
import subprocess
import sys
import tempfile

LIB = "/usr/lib/x86_64-linux-gnu/"
SETTINGS = {
    "mkl": "MKL takes its AVX-512 kernels on processors that are not Intel's too, rather than plain SSE ones",
    "thp": "tensors on huge pages (THP_MEM_ALLOC_ENABLE)",
    "malloc": "glibc keeps freed memory, on huge pages",
    "jemalloc": "jemalloc that keeps freed memory, on huge pages; needs libjemalloc2",
    "tcmalloc": "needs libtcmalloc-minimal4",
    "bind": "OpenMP's threads bound to cores (OMP_PROC_BIND)",
    "iomp": "LLVM's OpenMP (Intel's) instead of GNU's, spinning; needs libomp5",
    "flush": "denormal numbers are zero",
    "pad": "the vocabulary rounded up to a multiple of 128",
    "compile": "torch.compile; needs a C++ compiler",
    "autotune": "torch.compile, max-autotune; on cuda without CUDA graphs, which gradients that add up do not bear",
    "cudnn": "attention by cuDNN, by flash kernels where it cannot",
    "flash": "attention by flash kernels, by cuDNN where they cannot",
}
GPU_ONLY = {"cudnn", "flash"}
EITHER = {"pad", "compile", "autotune"}  # all others are of the CPU
ENVIRONMENT = {
    "thp": {"THP_MEM_ALLOC_ENABLE": "1"},
    "malloc": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
               "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)},
    "jemalloc": {"MALLOC_CONF": "thp:always,metadata_thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,"
                                "oversize_threshold:0"},
    "bind": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    "iomp": {"KMP_BLOCKTIME": "200"},
}
PRELOAD = {"jemalloc": LIB + "libjemalloc.so.2", "tcmalloc": LIB + "libtcmalloc_minimal.so.4",
           "iomp": LIB + "libomp.so.5"}
BEST = {"cpu": "mkl,malloc,pad,compile", "cuda": "pad,compile,cudnn"}
# MKL calls this function to ask whether Intel made the processor, before it looks at the instruction sets.
MKL_SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def environment(settings, threads):
    """Restarts the program with the environment that the settings need, because torch reads it when it is loaded."""
    wanted, preload = {"OMP_NUM_THREADS": str(threads), "PEER_SETTINGS": ",".join(settings)}, []
    if all(os.environ.get(key) == value for key, value in wanted.items()):
        return
    for name in settings:
        wanted.update(ENVIRONMENT.get(name, {}))
        if name in PRELOAD:
            if not os.path.exists(PRELOAD[name]):
                sys.exit(f"{PRELOAD[name]} is missing: {SETTINGS[name]}")
            preload.append(PRELOAD[name])
    if "mkl" in settings:
        shim = pathlib.Path(tempfile.gettempdir()) / f"peer-mkl-{os.getuid()}.so"
        made = shim.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=MKL_SHIM, text=True, check=True)
        made.replace(shim)  # another process may have it open
        preload.append(str(shim))
    if preload:
        wanted["LD_PRELOAD"] = ":".join(preload)
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **wanted})
