"""A folder is in the cache whole or not at all, whoever makes it, however often."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.loading import model_cache
from shared.loading.model_cache import cached_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGESERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def writes(text: str) -> Callable[[Path, Path], None]:
    def fill(folder: Path, _scratch: Path) -> None:
        (folder / "weights").write_text(text)

    return fill


def test_who_finishes_second_uses_what_the_first_made(cache: Path) -> None:
    def fill(folder: Path, scratch: Path) -> None:
        cached_folder("m", "v1", writes("first"))
        writes("second")(folder, scratch)

    assert (cached_folder("m", "v1", fill) / "weights").read_text() == "first"
    assert left_in(cache) == ["m"]


def test_a_folder_of_an_older_conversion_is_made_again(cache: Path) -> None:
    for version in ("v1", "v2"):
        folder = cached_folder("m", version, writes(version))
    assert (folder / "weights").read_text() == "v2"
    assert left_in(cache) == ["m"]


def test_what_a_killed_process_left_is_swept_a_day_later(cache: Path) -> None:
    old, young = cache / ".partial-old", cache / ".partial-young"
    for leftover in (old, young):
        (leftover / "scratch").mkdir(parents=True)
    yesterday = time.time() - model_cache.STALE_AFTER_SECONDS - 60
    os.utime(old, (yesterday, yesterday))
    cached_folder("m", "v1", writes(""))
    assert left_in(cache) == [".partial-young", "m"]


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGESERVE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert model_cache.cache_dir() == tmp_path / ".cache" / "pageserve"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_cache.cache_dir() == tmp_path / "xdg" / "pageserve"
    monkeypatch.setenv("PAGESERVE_CACHE", "~/mine")
    assert model_cache.cache_dir() == tmp_path / "mine"
