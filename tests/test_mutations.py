"""Planted faults: each still applies, each is caught by this project's own suite, and the labs made of them work."""

import shutil
from pathlib import Path

import pytest

from shared.errors import SetupError
from shared.workshop.grading import run_in_tree
from shared.workshop.mutants import LEARNERS_TEST, Mutant, check_catch, make_mutant, mutants
from shared.workshop.patches import apply
from shared.workshop.trees import ROOT, copy_tree

MUTANTS = mutants()
CATCHES_THE_LEAK = """
from phase06_block_allocator.block_allocator import BlockAllocator
from phase06_block_allocator.scheduler import Scheduler
from shared.config import EngineConfig
from shared.events import EventLog
from tests.fakes import make_sequence


def test_abort_gives_the_blocks_back() -> None:
    config = EngineConfig(max_batch_size=8, prefill_budget_tokens=64, prefill_chunk_size=32)
    scheduler = Scheduler(config, BlockAllocator(16, 4), EventLog())
    seq = make_sequence(9, max_tokens=9, name="a")
    scheduler.add(seq)
    scheduler.plan()
    scheduler.abort(seq)
    assert scheduler.allocator.num_free_blocks == 16
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mutants") / "tree"
    copy_tree(out)
    return out


def test_there_are_at_least_ten_and_their_numbers_count_up() -> None:
    assert [mutant.number for mutant in MUTANTS] == list(range(1, len(MUTANTS) + 1))
    assert len(MUTANTS) >= 10
    assert len({mutant.symptom for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_suite_catches_it(tree: Path, mutant: Mutant) -> None:
    """The patch applies, and every test that is said to catch it fails; the healthy code passes them in the suite."""
    apply(mutant.patch, tree)
    try:
        arguments = ["-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=no", *mutant.caught_by]
        done = run_in_tree(tree, arguments)
    finally:
        for file in mutant.files:
            shutil.copy2(ROOT / file, tree / file)
    assert done.returncode == 1, done.stdout + done.stderr
    for test in mutant.caught_by:
        assert f"FAILED {test}" in done.stdout, done.stdout


def test_a_patch_that_no_longer_fits_says_so_and_changes_nothing(tree: Path) -> None:
    mutant = MUTANTS[0]
    with pytest.raises(SetupError, match=r"does not fit phase04_chunked_prefill/scheduler\.py"):
        apply(mutant.patch.replace("prefilling = [", "prefilling = (["), tree)
    file = mutant.files[0]
    assert (tree / file).read_text(encoding="utf-8") == (ROOT / file).read_text(encoding="utf-8")


def test_a_lab_tells_a_test_that_catches_from_one_that_does_not(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    leak = make_mutant(3, lab)
    assert not list((lab / "tests").glob("test_s*.py")), "the project's own tests would tell"
    assert not (lab / "tests" / "mutations").exists()
    verdicts = []
    for text in (
        "def test_nothing() -> None:\n    assert True\n",
        "def test_wrong() -> None:\n    assert False\n",
        CATCHES_THE_LEAK,
    ):
        (lab / LEARNERS_TEST).write_text(text, encoding="utf-8")
        catch = check_catch(lab)
        verdicts.append((catch.fails_here, catch.passes_healthy, catch.is_caught))
    assert verdicts == [(False, True, False), (True, False, False), (True, True, True)]
    told = run_in_tree(lab, ["-m", "shared.workshop", "mutate", "--check"])
    assert (told.returncode, leak.fault in told.stdout) == (0, True), told.stdout + told.stderr


def test_a_lab_whose_test_cannot_run_is_told_why(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    make_mutant(12, lab)
    (lab / LEARNERS_TEST).write_text("import nothing_of_this_name\n", encoding="utf-8")
    told = run_in_tree(lab, ["-m", "shared.workshop", "mutate", "--check"])
    assert (told.returncode, "No module named 'nothing_of_this_name'" in told.stderr) == (2, True)
