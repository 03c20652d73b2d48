"""Making the notebooks from their `py:percent` sources, with the outputs of one clean run.

    python -m shared.workshop.notebooks                 all of them
    python -m shared.workshop.notebooks 04 compare      those whose names begin so

The `.py` file is the source; the `.ipynb` beside it has the same cells, and outputs. Needs the extras `notebooks`
and `dev` (jupytext).
"""

import re
import sys
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from shared.errors import SetupError
from shared.workshop.trees import ROOT

FOLDER = ROOT / "notebooks"
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
DEADLINE_S = 300  # for one cell, on a slow machine
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def sources(names: Seq[str] = ()) -> list[Path]:
    """The .py files, in order; those that begin with one of `names`, if there are any."""
    found = [path for path in sorted(FOLDER.glob("*.py")) if not names or path.name.startswith(tuple(names))]
    if not found:
        raise SetupError(f"no notebook's name begins with {' or '.join(names)}")
    return found


def read(source: Path) -> Any:
    """The notebook of a source, without outputs."""
    import jupytext

    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata.clear()
    notebook.metadata.update(KERNEL)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata.clear()
    return notebook


def execute(notebook: Any, kernel_manager: Any = None) -> Any:
    """Run all cells, in a kernel of its own, or in one that is there already; raises what a cell raises."""
    from nbclient import NotebookClient

    resources = {"metadata": {"path": str(FOLDER)}}
    client = NotebookClient(
        notebook, km=kernel_manager, timeout=DEADLINE_S, resources=resources, record_timing=False, kernel_name="python3"
    )
    client.execute()
    return notebook


def write(notebook: Any, source: Path) -> None:
    import nbformat

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.pop("metadata", None)
            if "metadata" not in output and output["output_type"] != "stream":
                output["metadata"] = {}
    text = ADDRESS.sub("", nbformat.writes(notebook))
    source.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")


def main(names: Seq[str]) -> int:
    """1 if one of them failed; the others are made all the same."""
    from nbclient.exceptions import CellExecutionError

    has_failed = False
    for source in sources(names):
        started = time.perf_counter()
        print(f"{source.stem} ...", end=" ", flush=True)
        try:
            write(execute(read(source)), source)
        except CellExecutionError as error:
            has_failed = True
            print(f"failed, and is left as it was:\n{error}")
        else:
            print(f"{time.perf_counter() - started:.0f} s", flush=True)
    return int(has_failed)


if __name__ == "__main__":
    from shared.cli import exit_code

    sys.exit(exit_code(lambda: main(sys.argv[1:])))
