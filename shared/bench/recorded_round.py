"""`--record DIR`: after the timed rounds, each phase serves the workload once more, untimed, and is recorded."""

from collections.abc import Sequence as Seq
from pathlib import Path

from shared.bench.competitor import Row
from shared.bench.contest import Contest
from shared.bench.systems import SystemSpec
from shared.bench.worker import Worker
from shared.bench.workloads import Workload
from shared.errors import SetupError


def check_recordable(folder: Path | None, specs: Seq[Row]) -> None:
    """Make the folder. Raises SetupError where it cannot be, or where none of the systems has anything to record."""
    if folder is None:
        return
    if not num_recorded(folder, specs):
        raise SetupError("--record: only phases are recorded, and none runs here: name --phases")
    make_folder(folder)


def make_folder(folder: Path | None) -> None:
    """Raises SetupError where it cannot be made."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"--record {folder}: {error.strerror}; give a folder that can be made") from None


def num_recorded(folder: Path | None, specs: Seq[Row]) -> int:
    return 0 if folder is None else sum(_is_phase(spec) for spec in specs)


def record_all(contest: Contest, folder: Path) -> None:
    """One file for each phase, such as `A-phase12.jsonl`. Raises SystemFailed."""
    for worker in contest.workers:
        if isinstance(worker, Worker) and _is_phase(worker.spec):
            contest.announce(f"{contest.workload.label}: recording {worker.spec.name}, untimed")
            requests = contest.workload.requests[: contest.num_requests[worker.spec.name]]
            title = f"{worker.spec.label} · {contest.workload.label}"
            worker.record(requests, folder / file_name(contest.workload, worker.spec), title)


def file_name(workload: Workload, spec: Row) -> str:
    return f"{workload.shape.key}-{spec.name}.jsonl".replace("/", "-")


def _is_phase(spec: Row) -> bool:
    return isinstance(spec, SystemSpec) and spec.phase is not None
