"""The repository's own rules, held by tests: who may import whom, what stays small, what may not drift."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from statistics import median

import pytest

from shared.lesson_diff import IMPORTS, ROOT, definitions, file_diffs
from shared.registry import PHASES

PACKAGES = [phase.package for phase in PHASES]
NUMBERS = {phase.package: phase.number for phase in PHASES}

# Where a scheduler (or another whole file) is written again: the methods that are this phase's lesson.
LESSONS = {
    "phase04_chunked_prefill/scheduler.py": {"Scheduler.__init__", "Scheduler.plan", "Scheduler._next_to_prefill"},
    "phase12_prefix_and_spec/scheduler.py": {
        "Scheduler.__init__",
        "Scheduler.add",
        "Scheduler.plan",
        "Scheduler.apply",
        "Scheduler._with_draft",
        "Scheduler._take",
        "Scheduler._preempt",
        "Scheduler._resume_swapped",
        "Scheduler._next_to_prefill",
        "Scheduler._fits",
        "Scheduler._admit",
    },
    "phase09_preemption/scheduler.py": {
        "Scheduler.__init__",
        "Scheduler.add",
        "Scheduler.num_free_slots",
        "Scheduler.plan",
        "Scheduler.abort",
        "Scheduler.stats",
        "Scheduler._make_room",
        "Scheduler._preempt",
        "Scheduler._move",
        "Scheduler._resume_swapped",
        "Scheduler._chunk_that_fits",
        "Scheduler._next_to_prefill",
        "Scheduler._can_admit",
        "Scheduler._worst_case",
        "Scheduler._fits",
        "Scheduler._num_missing",
        "Scheduler._admit",
        "Scheduler._run",
    },
    "phase06_block_allocator/scheduler.py": {
        "Scheduler.__init__",
        "Scheduler.plan",
        "Scheduler.apply",
        "Scheduler.abort",
        "Scheduler.stats",
        "Scheduler._schedule",
        "Scheduler._next_to_prefill",
        "Scheduler._can_admit",
        "Scheduler._worst_case",
    },
}

# Parts that decide, and so must be testable in milliseconds.
TORCH_FREE = [
    "shared.completion",
    "shared.config",
    "shared.engine_thread",
    "shared.errors",
    "shared.events",
    "shared.merged_outputs",
    "shared.output",
    "shared.pace",
    "shared.prompts",
    "shared.registry",
    "shared.request",
    "shared.request_state",
    "shared.request_stream",
    "shared.request_table",
    "shared.sequence",
    "shared.stats",
    "shared.step",
    "shared.text_stream",
    "shared.timeline",
    "shared.trace.chrome",
    "shared.trace.encode",
    "shared.trace.recording",
    "shared.trace.tap",
    "phase02_iteration_scheduling.intake",
    "phase02_iteration_scheduling.scheduler",
    "phase03_request_queue.request_queue",
    "phase04_chunked_prefill.scheduler",
    "phase06_block_allocator.block_allocator",
    "phase06_block_allocator.scheduler",
    "phase09_preemption.cpu_swap_manager",
    "phase09_preemption.scheduler",
    "phase12_prefix_and_spec.acceptance",
    "phase12_prefix_and_spec.draft_length",
    "phase12_prefix_and_spec.prefix_cache",
    "phase12_prefix_and_spec.proposers",
    "phase12_prefix_and_spec.scheduler",
]


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_shared_imports_no_phase() -> None:
    for path in sources("shared"):
        assert not [module for module in imported_modules(path) if module.startswith("phase")], path


@pytest.mark.parametrize("package", PACKAGES)
def test_phases_import_backwards_only_and_never_an_engine(package: str) -> None:
    for path in sources(package):
        for module in imported_modules(path):
            owner = module.split(".")[0]
            if owner in NUMBERS and owner != package:
                assert NUMBERS[owner] < NUMBERS[package], f"{path} imports {module}, a later phase"
                assert not re.fullmatch(rf"{owner}\.engine(\..*)?", module), f"{path} imports another phase's engine"


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_not_the_lesson_has_not_drifted(package: str) -> None:
    phase = next(phase for phase in PHASES if phase.package == package)
    for diff in file_diffs(phase):
        name = str(diff.path.relative_to(ROOT))
        if diff.before is None or diff.path.name == "engine.py":
            continue
        drifted = set(diff.changed()) - LESSONS.get(name, set()) - {IMPORTS}
        assert not drifted, (
            f"{name}: {sorted(drifted)} differ from {diff.before.relative_to(ROOT)}; is that the lesson?"
        )


def test_a_listed_lesson_is_one() -> None:
    for phase in PHASES:
        for diff in file_diffs(phase):
            for method in LESSONS.get(str(diff.path.relative_to(ROOT)), set()):
                assert method in diff.changed(), f"{method} is no different from before; take it off the list"


def test_the_torch_free_parts_import_no_torch() -> None:
    program = (
        f"import sys; [__import__(name) for name in {TORCH_FREE!r}]; "
        "sys.exit(', '.join(m for m in ('torch', 'transformers', 'numpy') if m in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported all the same: {result.stderr}"


@pytest.mark.parametrize("package", PACKAGES)
def test_build_engine_is_a_diagram_of_at_most_25_lines(package: str) -> None:
    build = definitions(ROOT / package / "engine.py")["build_engine"]
    assert len(build.splitlines()) <= 25


def test_files_and_functions_stay_small() -> None:
    for path in sources("shared", *PACKAGES):
        limit = 300 if path.is_relative_to(ROOT / "shared") else 230
        assert len(path.read_text(encoding="utf-8").splitlines()) <= limit, f"{path} has over {limit} lines"
    bodies = [
        (path, name, code)
        for path in sources("shared", *PACKAGES)
        for name, code in definitions(path).items()
        if name != IMPORTS
    ]
    for path, name, code in bodies:
        assert len(code.splitlines()) <= 45, f"{name} in {path} has over 45 lines"
    assert median(len(code.splitlines()) for _, _, code in bodies) <= 8


def test_everything_is_typed() -> None:
    for path in sources("shared", *PACKAGES):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.returns is not None, f"{path}:{node.lineno} {node.name} has no return type"


def test_every_package_is_listed_and_described() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    present = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in sources("shared", *PACKAGES)
        if path.name == "__init__.py"
    }
    assert listed == present
    for package in PACKAGES:
        doc = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
        assert doc, f"{package} says nothing of itself"
        assert (ROOT / package / "README.md").exists(), f"{package} has no README"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_is_short_and_tells_the_right_sizes(package: str) -> None:
    text = (ROOT / package / "README.md").read_text(encoding="utf-8")
    core = re.sub(r"\n## Deep dive.*?(?=\n## )", "", text, flags=re.DOTALL)
    prose = re.sub(r"<!-- bench:.*?<!-- /bench -->", "", core, flags=re.DOTALL)
    assert len(prose.splitlines()) <= 125
    told = re.findall(r"\| `([\w./]+\.py)` \| .*? \| (\d+) \|", text)
    assert told, "no table of files"
    for name, num_lines in told:
        actual = len((ROOT / package / name).read_text(encoding="utf-8").splitlines())
        assert int(num_lines) == actual, f"{package}/README.md: {name} has {actual} lines"


def test_the_ci_script_runs_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "exec make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
