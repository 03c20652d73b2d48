"""Mutation labs: a tree with one planted, realistic fault, and whether a learner's test catches it. Torch-free.

A mutant is `tests/mutations/NN_name.patch`: a few header lines, then a unified diff.

    symptom: what somebody complained about      (told to the learner)
    fault: what is wrong                         (told afterwards)
    caught by: test ids of the project's own suite that fail, separated by spaces
"""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SetupError
from shared.workshop.grading import run_in_tree
from shared.workshop.patches import apply, hunks
from shared.workshop.trees import NOTES, ROOT, Notes, copy_tree, is_learners

LEARNERS_TEST = "tests/test_mine.py"
SKELETON = '''"""A test that fails because of the planted fault, and passes where there is none.

Symptom: {symptom}

    python -m pytest {test}                  (fails: that is the point)
    python -m shared.workshop mutate --check (does it fail here, and pass on the healthy code?)

Start from tests/fakes.py: sequences, states and a model that always says the same, without weights.
"""

from tests.fakes import make_sequence, rows, run_to_end, sample  # noqa: F401


def test_what_should_be_true() -> None:
    raise NotImplementedError("write me")
'''


@dataclass(frozen=True, slots=True)
class Mutant:
    """symptom: what is told to a learner; fault: what is wrong; caught_by: test ids that fail because of it."""

    number: int
    name: str
    symptom: str
    fault: str
    caught_by: tuple[str, ...]
    patch: str

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(hunk.file for hunk in hunks(self.patch)))


def mutants(root: Path = ROOT) -> list[Mutant]:
    """All of them, by number."""
    return [_read(path) for path in sorted((root / "tests" / "mutations").glob("*.patch"))]


def mutant_by_number(number: int, root: Path = ROOT) -> Mutant:
    known = mutants(root)
    for mutant in known:
        if mutant.number == number:
            return mutant
    raise SetupError(f"there is no mutant {number}; mutants: {', '.join(str(mutant.number) for mutant in known)}")


def _read(path: Path) -> Mutant:
    number, name = re.fullmatch(r"(\d+)_(\w+)", path.stem).groups()  # type: ignore[union-attr]
    text = path.read_text(encoding="utf-8")
    header, _, diff = text.partition("\n--- ")
    fields = dict(line.split(": ", 1) for line in header.splitlines() if ": " in line)
    tests = tuple(fields["caught by"].split())
    return Mutant(int(number), name.replace("_", " "), fields["symptom"], fields["fault"], tests, "--- " + diff)


def make_mutant(number: int, out: Path, source: Path = ROOT) -> Mutant:
    """Write a tree with the fault to `out`. The project's own tests stay away: they would tell."""
    if is_learners(source):
        raise SetupError(f"{source} is a learner's tree itself; make the lab from the repository")
    mutant = mutant_by_number(number, source)
    own_tests = {str(path.relative_to(source)) for path in (source / "tests").glob("test_*.py")}
    copy_tree(out, source, leave_out=frozenset({*own_tests, "tests/mutations", "tests/exercises"}))
    healthy = out / NOTES / "healthy"
    for file in mutant.files:
        (healthy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(out / file, healthy / file)
    apply(mutant.patch, out)
    (out / LEARNERS_TEST).write_text(SKELETON.format(symptom=mutant.symptom, test=LEARNERS_TEST), encoding="utf-8")
    Notes(
        mutant=number, solutions={"symptom": mutant.symptom, "fault": mutant.fault, "files": " ".join(mutant.files)}
    ).save(out)
    return mutant


@dataclass(frozen=True, slots=True)
class Catch:
    """What a learner's test did: on the faulty tree, and on the same tree without the fault."""

    fails_here: bool
    passes_healthy: bool
    output: str  # pytest's, of the run that was not as it should be

    @property
    def is_caught(self) -> bool:
        return self.fails_here and self.passes_healthy


def check_catch(tree: Path) -> Catch:
    """Run the learner's test on both. Raises SetupError where the tree is no lab, or the test cannot run at all."""
    if Notes.of(tree).mutant is None:
        raise SetupError(f"{tree} is no mutation lab; make one: python -m shared.workshop mutate 3 --out DIR")
    if not (tree / LEARNERS_TEST).exists():
        raise SetupError(f"{tree / LEARNERS_TEST} is missing; that is where your test goes")
    here_rc, here = _run_test(tree)
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder) / "tree"
        copy_tree(healthy, tree)
        shutil.copytree(tree / NOTES / "healthy", healthy, dirs_exist_ok=True)
        healthy_rc, there = _run_test(healthy)
    return Catch(here_rc == 1, healthy_rc == 0, there if healthy_rc else here)


def _run_test(tree: Path) -> tuple[int, str]:
    done = run_in_tree(tree, ["-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", LEARNERS_TEST])
    if done.returncode > 1:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise SetupError(f"{LEARNERS_TEST} cannot be run: " + "\n".join(lines[-12:]))
    return done.returncode, done.stdout
