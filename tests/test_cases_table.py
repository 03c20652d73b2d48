"""The acceptance cases' table in README.md is complete, and says what the tests do."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from shared.registry import PHASES
from tests.conftest import EVERYTHING

FOLDER = Path(__file__).parent
LAST = {  # group -> number of its last case
    **{"SCH": 3, "KV": 3, "PFX": 5, "SPC": 5, "SMP": 6, "STR": 4, "HTTP": 9},
    **{"NUM": 3, "SWP": 2, "MET": 3, "LOD": 2, "NBK": 2, "CON": 2},
}
CASES = [f"{group}-{number:02d}" for group, last in LAST.items() for number in range(1, last + 1)]
ROW = re.compile(r"^\| ([A-Z]+-\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
Tests = set[tuple[str, str]]  # (file, function)


def rows() -> dict[str, tuple[Tests, str]]:
    """Case -> its tests, what is said of the phases."""
    found = {}
    for case, cell, phases in ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8")):
        assert case not in found, f"{case} has two rows"
        tests = re.findall(r"`(\w+)::(\w+)`", cell)
        found[case] = {(f"test_{file}.py", f"test_{name}") for file, name in tests}, phases
    return found


@cache
def find_by_case() -> dict[str, Tests]:
    """Case -> every test that has its id in its name."""
    by_case: dict[str, Tests] = {case: set() for case in CASES}
    for path in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for group, number in re.findall(rf"_({'|'.join(LAST).lower()})_(\d\d)(?=_)", node.name):
                    by_case[f"{group.upper()}-{number}"].add((path.name, node.name))
    return by_case


def test_every_case_has_a_row_in_the_order_of_the_list() -> None:
    assert len(CASES) == 49
    assert list(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_tests_that_exist_and_have_its_id(case: str) -> None:
    named, _ = rows()[case]
    assert named
    assert not named - find_by_case()[case], "no such test, or another case's"


def test_the_phases_are_those_that_run(request: pytest.FixtureRequest) -> None:
    """As far as the tests' ids tell; a test may also go through the phases itself."""
    nodes: dict[tuple[str, str], set[int]] = {}
    for item in request.config.stash[EVERYTHING]:
        function = item.path.name, getattr(item, "originalname", "")
        nodes.setdefault(function, set()).update(int(number) for number in re.findall(r"phase(\d\d)", item.name))
    found = rows()
    if missing := set().union(*(named for named, _ in found.values())) - nodes.keys():
        pytest.skip(f"only the whole suite shows them; {len(missing)} of the named tests do not run now")
    for case, (named, phases) in found.items():
        if numbers := set().union(*(nodes[test] for test in named)):
            says = phases.split(":")[0]
            claimed = {phase.number for phase in PHASES} if says == "all" else set(map(int, says.split(", ")))
            assert claimed == numbers, case
