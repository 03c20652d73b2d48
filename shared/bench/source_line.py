"""The line under a table: all that is needed to measure it again, and to judge it."""

from shared.bench.host import Provenance
from shared.bench.results import Result
from shared.bench.summary import other_cpu_share

DISTURBED = 0.1  # share of the CPU that others may use before a table says so


def source_line(name: str, result: Result) -> str:
    """Of a result that is stored under `name`."""
    origin = result.provenance
    num_rounds = len(result.systems[0].repeats)
    parts = [f"`{origin.command}`", f"median of {num_rounds} round{'s' if num_rounds > 1 else ''}"]
    if result.workload is not None:
        parts.append(f"seed {result.workload.seed}")
    if (model := result.model) is not None:
        parts.append(f"{model.name} in {model.dtype}, {model.num_threads} thread{'s' if model.num_threads > 1 else ''}")
    versions = ", ".join(f"{package} {number}" for package, number in origin.versions.items())
    parts += [str(origin.machine), versions, _commit(origin), origin.date[:10], f"`{name}`"]
    return " · ".join(parts + disturbance(result))


def _commit(origin: Provenance) -> str:
    commit = "no commit" if origin.commit is None else f"commit {origin.commit[:7]}"
    return f"{commit} with changes" if origin.is_dirty else commit


def disturbance(result: Result) -> list[str]:
    """A warning where other processes used the CPU while it was measured."""
    share = other_cpu_share(result)
    return [f"disturbed: others used {share:.0%} of the CPU in a round"] if share and share > DISTURBED else []
