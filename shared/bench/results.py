"""Results as they are stored: one JSON file per run, with the figures of every repeat.

Nothing in a file is derived from anything else in it: medians and ratios are computed when it is read
(`shared.bench.summary`). The same layout serves every kind of benchmark; what one has no use for is null.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shared.bench.host import Machine, Provenance
from shared.errors import SetupError

SCHEMA = 1
Figures = dict[str, float | int | None]  # name with its unit -> value; None is undefined


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system's repeats, in order; repeat i of every system ran in round i.

    settings, implementation: as in SystemInfo. code: files relative to the repository; what they import belongs to it.
    workload: what this row ran, in words, where rows of a result differ in it.
    notes: what could not be measured, and why, in sentences.
    """

    name: str
    label: str
    repeats: list[Figures]
    num_requests: int | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    implementation: Mapping[str, str] = field(default_factory=dict)
    code: list[str] = field(default_factory=list)
    workload: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelRecord:
    name: str
    dtype: str
    device: str
    num_threads: int


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """sha256: over the prompts and output lengths of all `num_requests`."""

    key: str
    name: str
    seed: int
    scale: float
    num_requests: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Result:
    """planned_repeats: more than there are where the run was interrupted. base: the system that ratios refer to."""

    kind: str
    provenance: Provenance
    systems: list[SystemResult]
    planned_repeats: int
    base: str | None = None
    model: ModelRecord | None = None
    workload: WorkloadRecord | None = None
    schema: int = SCHEMA

    @property
    def file_name(self) -> str:
        about = [self.kind]
        if self.workload is not None:
            about.append(self.workload.key)
        if self.model is not None:
            about.append(self.model.dtype)
        return "-".join([*about, self.provenance.date[:19].replace(":", "")]) + ".json"


def make_folder(folder: Path) -> None:
    """For results; also before anything is measured, so that nothing is measured in vain. Raises SetupError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "it is not writable")
    except OSError as error:
        raise SetupError(f"{folder}: the results cannot be written ({error.strerror}): give another --out") from error


def write_result(result: Result, folder: Path) -> Path:
    """Write a result under its own name and return where. Raises SetupError if the folder cannot be written."""
    make_folder(folder)
    path = folder / result.file_name
    try:
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(asdict(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise SetupError(f"{folder}: the results cannot be written ({error.strerror}): give another --out") from error
    return path


def read_result(path: Path) -> Result:
    """Raises SetupError, naming the file, for what is no result of this schema."""
    try:
        return _result(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{path.name} is no benchmark result of schema {SCHEMA} ({error!r})") from error


def read_results(folder: Path) -> dict[str, Result]:
    """File name -> result, oldest first."""
    results = {path.name: read_result(path) for path in folder.glob("*.json")}
    return dict(sorted(results.items(), key=lambda item: (item[1].provenance.date, item[0])))


def _result(data: dict[str, Any]) -> Result:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}")
    origin = data["provenance"]
    return Result(
        **data
        | {
            "provenance": Provenance(**origin | {"machine": Machine(**origin["machine"])}),
            "systems": [SystemResult(**system) for system in data["systems"]],
            "model": ModelRecord(**data["model"]) if data["model"] else None,
            "workload": WorkloadRecord(**data["workload"]) if data["workload"] else None,
        }
    )
