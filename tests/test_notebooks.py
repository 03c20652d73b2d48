"""The notebooks: they run from top to bottom, keep to the course's limits, and are what their sources say."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from shared.workshop.notebooks import execute, read, sources

SOURCES = sources()
MAX_CELLS, MAX_LINES = 40, 12
PREDICTION = "my_answer = "


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    """One for all: importing torch takes longer than any notebook does. Names are cleared in between."""
    from nbclient import NotebookClient
    from nbclient.util import run_sync

    manager = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3").create_kernel_manager()
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


def name_of(path: Path) -> str:
    return path.stem


def code_cells(notebook: Any) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_it_runs_from_top_to_bottom(source: Path, kernel: Any) -> None:
    """What it shows is asserted inside; outputs are not compared, for they hold times."""
    notebook = read(source)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    execute(notebook, kernel)


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_the_committed_notebook_has_the_cells_of_its_source_and_the_outputs_of_one_clean_run(source: Path) -> None:
    kept = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(kept)
    cells = [(cell.cell_type, cell.source) for cell in read(source).cells]
    assert [(cell.cell_type, cell.source) for cell in kept.cells] == cells, "python -m shared.workshop.notebooks"
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert "error" not in kinds
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|work|tmp|Users)/", text), "a path of somebody's machine"


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_it_is_thin(source: Path) -> None:
    """At most 40 cells of 12 lines, and no part of an engine in them."""
    notebook = read(source)
    assert len(notebook.cells) <= MAX_CELLS
    for cell in code_cells(notebook):
        assert len(cell.splitlines()) <= MAX_LINES, cell
        defined = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert not [node.name for node in defined if node.name in ("plan", "apply", "execute", "Scheduler", "Runner")]


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_it_keeps_the_rhythm(source: Path) -> None:
    """A prediction that is open, sealed and checked later; equality with generate(); a break; an exercise."""
    notebook = read(source)
    code = "\n".join(code_cells(notebook))
    headings = [line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("## ")]
    assert PREDICTION in code
    sealed = re.search(r'predicted\(my_answer, "(\w{8})"\)', code)
    assert sealed
    assert f'== "{sealed[1]}"' in code, "the right answer is asserted where it is computed"
    for needed in ("## Predict", "## Break it on purpose", "## Exercise"):
        assert needed in headings
    if not source.stem.startswith("05"):  # which has no tokens
        assert "oracle(fresh_model(MODEL)" in code


def test_there_is_one_for_every_phase_and_interlude() -> None:
    numbers = [path.stem[:2] for path in SOURCES]
    assert numbers == ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "co"]


def test_a_prediction_is_judged_without_telling_the_answer() -> None:
    from shared.workshop.lab import predicted, seal

    assert predicted(None, seal(25)).startswith("No prediction yet")
    assert predicted([1, None], seal([1, 2])).startswith("No prediction yet")
    assert predicted(25, seal(25)) == "Right."
    wrong = predicted(24, seal(25))
    assert wrong.startswith("Not 24")
    assert "25" not in wrong
