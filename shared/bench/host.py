"""Where and with what a result was measured. No host name, no user, no paths."""

import platform
import re
import shlex
import subprocess
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

PACKAGES = ("torch", "transformers", "numpy")
NOT_CODE = (":(exclude)*.md", ":(exclude)shared/bench/published")


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    num_cores: int  # logical
    ram_gb: float
    os: str

    def __str__(self) -> str:
        return f"{self.cpu}, {self.num_cores} cores, {self.ram_gb:.0f} GB, {self.os}"


@dataclass(frozen=True, slots=True)
class Provenance:
    """What has to stand beside a number. date: UTC, ISO 8601. commit: None outside of git."""

    command: str
    argv: list[str]
    date: str
    commit: str | None
    is_dirty: bool  # code differed from the commit
    machine: Machine
    versions: dict[str, str]


def provenance(argv: Seq[str], repository: Path) -> Provenance:
    argv = [without_path(argument) for argument in argv]
    commit = git(repository, "rev-parse", "HEAD")
    return Provenance(
        command=shlex.join(["python", "-m", "shared.bench", *argv]),
        argv=argv,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        is_dirty=bool(git(repository, "status", "--porcelain", "--", ".", *NOT_CODE)),
        machine=machine(),
        versions={"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    )


def machine() -> Machine:
    release = re.match(r"[\d.]*\d", platform.release())  # what follows can name a provider or a host
    return Machine(
        cpu=_cpu_model(),
        num_cores=psutil.cpu_count() or 1,
        ram_gb=round(psutil.virtual_memory().total / 2**30, 1),
        os=f"{platform.system()} {release[0] if release else ''}".strip(),
    )


def without_path(argument: str) -> str:
    """An argument as it is recorded: a path on this machine is cut to its last part."""
    option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    is_path = value.startswith(("/", "~", ".")) or "\\" in value or ("/" in value and Path(value).exists())
    return option + equals + (Path(value).name if is_path else value)


def git(repository: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails or is not there."""
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(repository), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None


def _cpu_model() -> str:
    with suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()
