"""The user's cache of converted models: a folder is in it whole or not at all. Torch-free.

It does not know what is in a folder; `fill` writes that. Any folder of the cache may be deleted at any time.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.errors import SetupError

MANIFEST = "pageserve-manifest.json"  # written last
PARTIAL_PREFIX = ".partial-"
STALE_AFTER_SECONDS = 24 * 3600  # what a killed process left behind; younger ones may be in use
ELSEWHERE = "set PAGESERVE_CACHE to another folder"

Fill = Callable[[Path, Path], None]  # (folder to fill, scratch folder that is thrown away)


def cache_dir() -> Path:
    """Where converted models are kept: $PAGESERVE_CACHE, else `pageserve` in the user's cache folder."""
    if chosen := os.environ.get("PAGESERVE_CACHE"):
        return Path(chosen).expanduser().absolute()
    system = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return (Path(system) if system else Path.home() / ".cache") / "pageserve"


def cached_folder(name: str, fingerprint: str, fill: Fill) -> Path:
    """The folder `name` of the cache; where it is not whole, `fill` makes it under a temporary name first.

    fingerprint: what the folder is made from, and how; a folder with another one is made again.
    Whatever ends `fill` early, Ctrl-C included, leaves nothing behind. Of two processes that make the
    same folder at once, the first to finish keeps its own, and the other uses that.

    Raises SetupError if the cache cannot be written, and whatever `fill` raises.
    """
    target = cache_dir() / name
    if is_whole(target, fingerprint):
        return target
    with _explained(target.parent), _temporary_folders(target.parent) as (folder, scratch):
        fill(folder, scratch)
        _write_manifest(folder, fingerprint)
        _move_into_place(folder, target, fingerprint, scratch)
    return target


def is_whole(folder: Path, fingerprint: str) -> bool:
    """The manifest has this fingerprint, and every file it lists is there in its size."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
        return manifest["fingerprint"] == fingerprint and manifest["files"] == sizes
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_room(folder: Path, num_bytes: int) -> None:
    """Raises SetupError unless `num_bytes` are free on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        need = f"{num_bytes / 1e9:.1f} GB of disk are needed in {cache_dir()}, and {free / 1e9:.1f} GB are free"
        raise SetupError(f"{need}; free some, or {ELSEWHERE}")


@contextmanager
def _temporary_folders(parent: Path) -> Iterator[tuple[Path, Path]]:
    """The two that `fill` gets, on the disk of the cache, so that renaming one into place is a single step."""
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent)
    with tempfile.TemporaryDirectory(prefix=PARTIAL_PREFIX, dir=parent, ignore_cleanup_errors=True) as temporary:
        folder, scratch = Path(temporary, "folder"), Path(temporary, "scratch")
        folder.mkdir()
        scratch.mkdir()
        yield folder, scratch


def _write_manifest(folder: Path, fingerprint: str) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}  # file name -> bytes
    manifest = {"fingerprint": fingerprint, "files": sizes}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _move_into_place(folder: Path, target: Path, fingerprint: str, scratch: Path) -> None:
    if target.exists() and not is_whole(target, fingerprint):
        target.rename(scratch / "replaced")
    try:
        folder.rename(target)
    except OSError:
        if not is_whole(target, fingerprint):  # else another process was first
            raise


def _sweep(parent: Path) -> None:
    for leftover in parent.glob(f"{PARTIAL_PREFIX}*"):
        with suppress(FileNotFoundError):  # its owner was faster
            if time.time() - leftover.stat().st_mtime > STALE_AFTER_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _explained(parent: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SetupError(f"the disk of {parent} is full; free some of it, or {ELSEWHERE}") from error
        raise SetupError(f"the model cache cannot be written ({error}); {ELSEWHERE}") from error
