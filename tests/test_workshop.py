"""The workshop's tool: solutions pass, starters fail exactly what is open, wrong attempts are told something useful."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shared.errors import SetupError
from shared.registry import PHASES, Phase
from shared.workshop.doctor import examine
from shared.workshop.exercises import exercise_by_number, exercises, exercises_of
from shared.workshop.grading import grade_tree, run_in_tree
from shared.workshop.markers import is_stubbed, regions, solution, with_stub
from shared.workshop.mutants import mutants
from shared.workshop.starter import make_starter
from shared.workshop.trees import NOTES, ROOT, Notes, copy_tree
from shared.workshop.verdict import Verdict, report, state_of
from tests.exercises.attempts import ATTEMPTS

NUMBERS = [exercise.number for exercise in exercises()]
WITH_TORCH = {"1.1", "8.1", "8.2"}  # their checks import torch, which takes seconds
QUICK_FIRST = [pytest.param(number, marks=pytest.mark.slow if number in WITH_TORCH else ()) for number in NUMBERS]
QUICK = [exercise for exercise in exercises() if exercise.number not in WITH_TORCH]


def workshop(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a learner runs it."""
    return run_in_tree(tree, ["-m", "shared.workshop", *arguments])


@pytest.fixture(scope="module")
def starters(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """phase -> its starter."""
    folder = tmp_path_factory.mktemp("starters")
    made = {phase.number: folder / f"phase {phase.number}" for phase in PHASES}
    for number, out in made.items():
        make_starter(number, out)
    return made


def told(exercise_number: str, verdicts: list[Verdict]) -> str:
    return "\n".join(report(exercise_by_number(exercise_number), verdicts))


def test_every_phase_has_one_to_three_exercises_whose_lines_are_marked() -> None:
    marked = {}
    for path in [*ROOT.glob("phase*/**/*.py"), *ROOT.glob("shared/*.py")]:
        for region in regions(path.read_text(encoding="utf-8")):
            marked[region.number] = str(path.relative_to(ROOT))
    assert marked == {exercise.number: exercise.file for exercise in exercises()}
    for phase in PHASES:
        assert 1 <= len(exercises_of(phase.number)) <= 3, phase.label


def test_every_section_to_read_again_is_there() -> None:
    for exercise in exercises():
        file = exercise.read.split(",")[0].removesuffix(" and the docstring of shared/sequence.py")
        text = (ROOT / file).read_text(encoding="utf-8")
        quoted = exercise.read.split('"')[1::2]
        assert quoted, exercise.number
        for heading in quoted:
            assert f"\n## {heading}\n" in text, f"{exercise.number}: {file} has no section {heading!r}"


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.package)
def test_readmes_and_notebooks_name_the_exercises_and_labs_that_there_are(phase: Phase) -> None:
    own = [exercise.number for exercise in exercises_of(phase.number)]
    notebook = next((ROOT / "notebooks").glob(f"{phase.number:02d}_*.py"))
    for path in (ROOT / phase.package / "README.md", notebook):
        section = path.read_text(encoding="utf-8").split("## Exercise", 1)[1].split("\n## ", 1)[0]
        assert re.findall(rf"\b{phase.number}\.\d\b", section) == own, path
        assert f"make-starter {phase.number} --out" in section
        numbers = {int(number) for number in re.findall(r"mutate (\d+)", section)}
        assert numbers <= {mutant.number for mutant in mutants()}


@pytest.mark.parametrize("source", ["# BEGIN SOLUTION 1.1\n# BEGIN SOLUTION 1.2\n# END SOLUTION\n", "# END SOLUTION\n"])
def test_markers_that_nest_or_do_not_match_are_refused(source: str) -> None:
    with pytest.raises(SetupError):
        regions(source)
    with pytest.raises(SetupError, match="does not end"):
        regions("# BEGIN SOLUTION 1.1\n")


def test_a_stub_keeps_everything_around_the_solution() -> None:
    source = "def f():\n    a = 1\n    # BEGIN SOLUTION 9.9\n    return a\n    # END SOLUTION\nb = 2\n"
    assert solution(source, "9.9") == "return a\n"
    stubbed = with_stub(source, "9.9", "Return a.")
    assert stubbed.startswith("def f():\n    a = 1\n    # EXERCISE 9.9: Return a.\n    raise NotImplementedError")
    assert stubbed.endswith("\nb = 2\n")
    assert is_stubbed(stubbed, "9.9")
    assert "return a" not in stubbed


def test_the_solution_passes_every_check() -> None:
    for number, verdicts in grade_tree(ROOT, exercises()).items():
        assert len(verdicts) >= 2, number
        assert state_of(verdicts) == "solved", told(number, verdicts)


@pytest.mark.parametrize("phase", [phase.number for phase in PHASES])
def test_a_starter_fails_exactly_its_own_checks(starters: dict[int, Path], phase: int) -> None:
    """So a learner can start at any phase: everything else in the tree is solved."""
    own = exercises_of(phase)
    graded = grade_tree(starters[phase], [*QUICK, *(exercise for exercise in own if exercise not in QUICK)])
    states = {number: state_of(verdicts) for number, verdicts in graded.items()}
    assert {number for number, state in states.items() if state == "open"} == {exercise.number for exercise in own}
    assert {state for number, state in states.items() if exercise_by_number(number) not in own} <= {"solved"}


@pytest.mark.parametrize("number", QUICK_FIRST)
def test_filling_one_hole_leaves_the_others_open(starters: dict[int, Path], number: str) -> None:
    exercise = exercise_by_number(number)
    path = starters[exercise.phase] / exercise.file
    stubbed = path.read_text(encoding="utf-8")
    kept = Notes.of(starters[exercise.phase]).solutions[number]
    path.write_text(filled(stubbed, number, kept), encoding="utf-8")
    try:
        own = exercises_of(exercise.phase)
        states = {n: state_of(v) for n, v in grade_tree(starters[exercise.phase], own).items()}
    finally:
        path.write_text(stubbed, encoding="utf-8")
    assert states == {other.number: "solved" if other == exercise else "open" for other in own}


def filled(stubbed: str, number: str, lines: str) -> str:
    """The stubbed file with these lines in the hole."""
    hole = next(line for line in stubbed.splitlines() if f'NotImplementedError("exercise {number}")' in line)
    indent = hole[: len(hole) - len(hole.lstrip())]
    return stubbed.replace(hole, "\n".join(indent + line if line else line for line in lines.splitlines()))


def test_every_exercise_has_wrong_attempts_to_learn_from() -> None:
    assert set(ATTEMPTS) == set(NUMBERS)
    assert all(len(attempts) >= 2 for attempts in ATTEMPTS.values())


@pytest.mark.parametrize("number", QUICK_FIRST)
def test_a_wrong_attempt_gets_a_message_that_helps(starters: dict[int, Path], number: str) -> None:
    """Each is a mistake that people make; the message has to name what is wrong with it."""
    exercise = exercise_by_number(number)
    path = starters[exercise.phase] / exercise.file
    stubbed = path.read_text(encoding="utf-8")
    try:
        for lines, hint in ATTEMPTS[number]:
            path.write_text(filled(stubbed, number, lines), encoding="utf-8")
            message = told(number, grade_tree(starters[exercise.phase], [exercise])[number])
            assert hint in message, f"{lines}\n\n{message}"
            assert "Read again: " in message
            assert f"hint {number}" in message
    finally:
        path.write_text(stubbed, encoding="utf-8")


def test_what_is_graded_is_the_learners_file_and_never_the_solution(starters: dict[int, Path], tmp_path: Path) -> None:
    """A tree that lacks the file must not be graded by the installed one."""
    from shared.workshop.grade import grade

    tree = tmp_path / "tree"
    copy_tree(tree)
    (tree / "phase04_chunked_prefill" / "scheduler.py").unlink()
    verdicts = grade_tree(tree, [exercise_by_number("4.1")])["4.1"]
    assert state_of(verdicts) == "not yet"
    here = list(grade(exercise_by_number("4.1"), starters[4]))  # in this process the repository's modules are loaded
    assert [verdict.status for verdict in here] == ["error"]
    assert "would grade another tree" in here[0].told["raised"]


def test_a_check_outside_any_tree_says_so_instead_of_passing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shared.workshop", "check", "4.1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is no tree of this repository" in done.stderr


def test_a_learners_day_from_starter_to_solution(starters: dict[int, Path]) -> None:
    tree = starters[4]
    status = workshop(tree, "status")
    assert (status.returncode, "0 of 2 solved" in status.stdout) == (1, True)
    checked = workshop(tree, "check", "4.1")
    assert (checked.returncode, "open: replace the line" in checked.stdout) == (1, True)
    hints = [workshop(tree, "hint", "4.1").stdout for _ in range(4)]
    assert ["hint 1 of 3" in hints[0], "hint 2 of 3" in hints[1], "hint 3 of 3" in hints[2]] == [True] * 3
    assert hints[3] == hints[2]
    shown = workshop(tree, "show", "4.1").stdout
    assert "budget = self.prefill_budget_tokens - len(decoding)" in shown
    path = tree / exercise_by_number("4.1").file
    stubbed = path.read_text(encoding="utf-8")
    path.write_text(filled(stubbed, "4.1", shown.split("\n\n", 1)[1]), encoding="utf-8")
    solved = workshop(tree, "check", "4.1")
    assert (solved.returncode, solved.stdout.splitlines()[-3]) == (0, "  solved")
    assert solved.stdout.splitlines()[-1] == "Next: 4.2 Whose prompt is next, in phase04_chunked_prefill/scheduler.py"
    assert "1 of 2 solved" in workshop(tree, "status").stdout
    shown = workshop(tree, "show", "4.2").stdout
    path.write_text(filled(path.read_text(encoding="utf-8"), "4.2", shown.split("\n\n", 1)[1]), encoding="utf-8")
    assert "is open any more. The next: make-starter 6 " in workshop(tree, "check", "4.2").stdout
    path.write_text(stubbed, encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make-starter", "5", "--out", "x"], "there is no engine for phase 5"),
        (["check", "4.9"], "there is no exercise 4.9; exercises: 1.1, "),
        (["mutate", "99", "--out", "x"], "there is no mutant 99"),
        (["mutate", "3"], "mutate 3 --out DIR"),
        (["mutate", "--check"], "is no learner's tree"),
        (["make-starter", "4", "--out", "tests"], "is there already and not empty"),
        (["make-starter", "4", "--out", "tests/new"], "name a folder beside it"),
        (["check"], "is no learner's tree"),
        (["hint", "4.1", "--tree", "/"], "is no tree of this repository"),
    ],
)
def test_a_wrong_command_is_told_what_to_change(arguments: list[str], message: str) -> None:
    done = workshop(ROOT, *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_starter_has_no_caches_and_no_git_and_cannot_make_starters(starters: dict[int, Path]) -> None:
    tree = starters[6]
    names = {path.name for path in tree.rglob("*")}
    assert not names & {".git", ".venv", "__pycache__", ".pytest_cache"}
    assert (tree / NOTES / "notes.json").exists()
    done = workshop(tree, "make-starter", "6", "--out", str(tree.parent / "again"))
    assert (done.returncode, "is a starter itself" in done.stderr) == (2, True)


def test_an_endless_loop_is_named_and_not_waited_for(starters: dict[int, Path]) -> None:
    exercise = exercise_by_number("12.3")
    path = starters[12] / exercise.file
    stubbed = path.read_text(encoding="utf-8")
    path.write_text(filled(stubbed, "12.3", "while True:\n    pass"), encoding="utf-8")
    try:
        verdicts = _grade_impatiently(starters[12])
    finally:
        path.write_text(stubbed, encoding="utf-8")
    message = told("12.3", verdicts)
    assert [verdict.status for verdict in verdicts] == ["error", "skipped", "skipped"], "it is waited for once"
    assert "a loop that never ends?" in message
    assert "acceptance.py, line" in message


def _grade_impatiently(tree: Path) -> list[Verdict]:
    path = tree / "shared" / "workshop" / "grade.py"
    patient = path.read_text(encoding="utf-8")
    path.write_text(patient.replace("SECONDS = 5 ", "SECONDS = 1 "), encoding="utf-8")
    try:
        return grade_tree(tree, [exercise_by_number("12.3")])["12.3"]
    finally:
        path.write_text(patient, encoding="utf-8")


def test_the_doctor_finds_this_machine_fit() -> None:
    findings = {finding.what: finding for finding in examine(with_model=False)}
    assert findings["engine"].said == "a tiny model's tokens equal generate()'s"
    assert all(findings[what].is_ok for what in ("Python", "packages", "engine"))
    assert all(finding.mend for finding in findings.values())
