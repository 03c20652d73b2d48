"""Is this machine ready for the course? To be run the day before, by everybody. `python -m shared.workshop doctor`"""

import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.workshop.trees import ROOT

GIB = 1024**3
NEEDED_DISK = 2 * GIB  # the converted model, a few starters, notebooks' caches
NEEDED_MEMORY = 3 * GIB  # the real model in float32, and a notebook beside it
FOR_COURSE = ("torch", "transformers", "tokenizers", "numpy", "matplotlib", "pytest", "nbclient", "ipykernel", "rich")


@dataclass(frozen=True, slots=True)
class Finding:
    """is_ok None: no fault, but worth knowing. mend: what to do about it."""

    what: str
    is_ok: bool | None
    said: str
    mend: str = ""


def examine(*, with_model: bool = True) -> Iterator[Finding]:
    """One finding after the other, the quick ones first."""
    looks: list[Callable[[], Finding]] = [_python, _packages, _pinned, _memory, _disk, _engine]
    for look in [*looks, _model] if with_model else looks:
        try:
            yield look()
        except Exception as error:
            yield Finding(look.__name__.strip("_"), False, f"{type(error).__name__}: {error}", "make setup, then again")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        "Python", sys.version_info >= (3, 11), f"{version} at {sys.executable}", "install Python 3.11 or newer"
    )


def _packages() -> Finding:
    missing = [name for name in FOR_COURSE if importlib.util.find_spec(name) is None]
    return Finding("packages", not missing, f"missing: {', '.join(missing)}" if missing else "all there", "make setup")


def _pinned() -> Finding:
    """Another version may work; the course was tried with these."""
    pins = re.findall(r"^([\w.-]+)==([\w.+-]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    other = []
    for name, pinned in pins:
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if installed.split("+")[0] != pinned:
            other.append(f"{name} {installed} (pinned {pinned})")
    said = "as in constraints.txt" if not other else "others than pinned: " + ", ".join(other)
    return Finding("versions", None if other else True, said, "make clean setup, for what the course was tried with")


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    return Finding("memory", free >= NEEDED_MEMORY, f"{free / GIB:.1f} GiB free", "close something: 3 GiB are needed")


def _disk() -> Finding:
    from shared.loading.model_cache import cache_dir

    folder = next(folder for folder in (cache_dir(), *cache_dir().parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    return Finding("disk", free >= NEEDED_DISK, f"{free / GIB:.1f} GiB free at {folder}", "2 GiB are needed there")


def _engine() -> Finding:
    """The newest phase on a tiny model: if this says what generate() says, everything is in place."""
    from shared.config import EngineConfig
    from shared.reference import greedy_reference
    from shared.registry import newest_phase
    from shared.request import Request, SamplingParams
    from shared.tiny_models import tiny_llama

    prompt = [5, 17, 33, 8, 21, 40, 11, 3]
    engine = newest_phase().build_engine()(tiny_llama(), EngineConfig(kv_num_blocks=16))
    try:
        got = engine.generate([Request(prompt, SamplingParams(max_tokens=8, ignore_eos=True))])[0].token_ids
    finally:
        engine.close()
    equal = got == greedy_reference(tiny_llama(), prompt, 8)
    said = (
        "a tiny model's tokens equal generate()'s" if equal else f"a tiny model said {got}, generate() something else"
    )
    return Finding("engine", equal, said, "report this, with `pip freeze`")


def _model() -> Finding:
    """Offline is fine from here on."""
    from shared.model_loader import default_model_folder

    folder = Path(default_model_folder())
    return Finding("model", True, f"the default model is in {folder}: no network is needed any more")
