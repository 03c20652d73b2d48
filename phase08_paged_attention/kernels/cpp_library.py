"""Compiles the C++ in `cpp/` for this very processor, once, and loads it: a plain C library, called through ctypes.

    python -m phase08_paged_attention.kernels.cpp_library      compile it (again), and say where it is

It is kept in $PAGESERVE_CACHE/kernels under a name made of its sources, the compiler and the processor. It shares
torch's OpenMP threads: torch is loaded first, and its libgomp is the one that the library finds.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch  # its OpenMP has to be there first

from phase08_paged_attention.kernels.unavailable import KernelUnavailable
from shared.loading.model_cache import cache_dir
from shared.loading.setup_messages import say

SOURCES = Path(__file__).parent / "cpp"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"),
)
TIMEOUT_S = 120

POINTER, SIZE, NUMBER, THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
STORED_AS = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16"}  # dtype -> suffix of its functions
SIGNATURES = {
    "attend": (*[POINTER] * 6, *[SIZE] * 7, NUMBER, NUMBER, SIZE, THREADS),
    "linear": (*[POINTER] * 3, *[SIZE] * 3, THREADS),
    "place": (*[POINTER] * 5, NUMBER, *[POINTER] * 3, *[SIZE] * 5, THREADS),
    "rms_norm": (*[POINTER] * 3, SIZE, SIZE, NUMBER, THREADS),
    "silu_multiply": (*[POINTER] * 2, SIZE, SIZE, THREADS),
}


@lru_cache(maxsize=1)
def cpp_library() -> ctypes.CDLL:
    """The library, compiled if need be. Raises KernelUnavailable where there is no compiler, or it fails."""
    library = ctypes.CDLL(str(_compiled()))
    for name, arguments in SIGNATURES.items():
        for suffix in ("", *(f"_{stored}" for stored in STORED_AS.values())):
            if function := getattr(library, name + suffix, None):
                function.argtypes, function.restype = arguments, None
    return library


def _compiled(force: bool = False) -> Path:
    compiler = _compiler()
    folder = cache_dir() / "kernels"
    target = folder / f"{_fingerprint(compiler)}.so"
    if force or not target.exists():
        say(f"compiling the CPU kernels with {compiler}, once ...")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "library.so"
            _run([compiler, *FLAGS, "-o", str(made), str(SOURCES / "library.cpp")])
            os.replace(made, target)
    return target


def _compiler() -> str:
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    for name in candidates:
        if path := shutil.which(name):
            return path
    raise KernelUnavailable(f"no C++ compiler was found ({', '.join(candidates)})")


def _fingerprint(compiler: str) -> str:
    parts = [source.read_text() for source in sorted(SOURCES.iterdir())]
    parts += [*FLAGS, _run([compiler, "--version"]), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """A home folder may be shared by machines that are not alike."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("flags", "model name", "Features"))))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailable(f"{command[0]} did not run: {error}") from None
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise KernelUnavailable(f"{command[0]} failed: {first.strip()}")
    return done.stdout


if __name__ == "__main__":
    print(_compiled(force=True))
