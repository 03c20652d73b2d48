"""The command `python -m shared.workshop`: starters, checks, hints, solutions, progress, mutation labs, set-up."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shared.errors import SetupError
from shared.registry import PHASES
from shared.workshop import doctor, mutants
from shared.workshop.exercises import Exercise, exercise_by_number, exercises, exercises_of
from shared.workshop.grading import grade_tree
from shared.workshop.markers import is_stubbed, solution
from shared.workshop.starter import make_starter
from shared.workshop.trees import Notes, find_tree, is_learners
from shared.workshop.verdict import Verdict, report, state_of

EXAMPLES = """
an exercise, from start to end
  python -m shared.workshop make-starter 4 --out ../my-phase4
  cd ../my-phase4
  python -m shared.workshop status
  python -m shared.workshop check 4.1       edit the file it names, and check again
  python -m shared.workshop hint 4.1        again for more: there are three
  python -m shared.workshop show 4.1        the solution

a mutation lab: find a planted fault with a test of your own
  python -m shared.workshop mutate 3 --out ../lab3
  cd ../lab3                                write tests/test_mine.py
  python -m shared.workshop mutate --check

exit codes: 0 done, solved or caught; 1 not yet; 2 something to mend first
"""


def _make_starter(args: argparse.Namespace) -> int:
    opened = make_starter(args.phase, args.out)
    print(f"A complete tree in {args.out}: other phases are solved, and in this one you write")
    for exercise in opened:
        print(f"  {exercise.number}  {exercise.title:<34} {exercise.file}")
    package = next(phase.package for phase in PHASES if phase.number == args.phase)
    print(f"\nRead {package}/README.md, then:\n  cd {shlex.quote(str(args.out))}")
    print(f"  {_command()} check {opened[0].number}")
    return 0


def _check(args: argparse.Namespace) -> int:
    tree = find_tree(args.tree)
    chosen = [exercise_by_number(number) for number in args.exercises] or _own_exercises(tree)
    if not is_learners(tree):
        print(f"{tree} is no starter but the repository, where everything is solved.", file=sys.stderr)
    started = time.perf_counter()
    graded = grade_tree(tree, chosen)
    for exercise in chosen:
        print("\n".join(report(exercise, graded[exercise.number], _command())))
    print(f"{time.perf_counter() - started:.1f} s, in {tree}")
    if not all(state_of(graded[exercise.number]) == "solved" for exercise in chosen):
        return 1
    if is_learners(tree) and Notes.of(tree).phase is not None:
        print(_what_next(tree))
    return 0


def _what_next(tree: Path) -> str:
    """After what was asked for is solved, in a starter."""
    left = [e for e in _own_exercises(tree) if is_stubbed((tree / e.file).read_text(encoding="utf-8"), e.number)]
    if left:
        return f"Next: {left[0].number} {left[0].title}, in {left[0].file}"
    phase = Notes.of(tree).phase or 0
    later = [one.number for one in PHASES if one.number > phase]
    more = f" The next: make-starter {later[0]} --out DIR, from the repository." if later else ""
    return f"No exercise of phase {phase} is open any more.{more}"


def _own_exercises(tree: Path) -> list[Exercise]:
    phase = Notes.of(tree).phase
    if phase is None:
        raise SetupError("name the exercise to check: 4.1 (this tree is a mutation lab: mutate --check)")
    return exercises_of(phase)


def _hint(args: argparse.Namespace) -> int:
    exercise, tree = exercise_by_number(args.exercise), find_tree(args.tree)
    notes = Notes.of(tree) if is_learners(tree) else Notes()
    level = min(notes.hints.get(exercise.number, 0), len(exercise.hints) - 1)
    print(f"{exercise.number} {exercise.title}, hint {level + 1} of {len(exercise.hints)}:\n  {exercise.hints[level]}")
    if level + 1 < len(exercise.hints):
        print("  (Again for more.)" if is_learners(tree) else "  (In a starter, asking again gives the next one.)")
    else:
        print(f"  That is all. The solution: {_command()} show {exercise.number}")
    if is_learners(tree):
        notes.hints[exercise.number] = level + 1
        notes.save(tree)
    return 0


def _show(args: argparse.Namespace) -> int:
    exercise, tree = exercise_by_number(args.exercise), find_tree(args.tree)
    kept = Notes.of(tree).solutions.get(exercise.number) if is_learners(tree) else None
    print(f"{exercise.number} {exercise.title} · {exercise.file}\n")
    print(kept or solution((tree / exercise.file).read_text(encoding="utf-8"), exercise.number), end="")
    return 0


def _status(args: argparse.Namespace) -> int:
    tree = find_tree(args.tree)
    if not is_learners(tree):
        print("The exercises (make a starter of a phase to solve them):")
        for exercise in exercises():
            print(f"  {exercise.number:<5} {exercise.title:<36} {exercise.file}")
        return 0
    notes, chosen = Notes.of(tree), _own_exercises(tree)
    open_now = [e for e in chosen if is_stubbed((tree / e.file).read_text(encoding="utf-8"), e.number)]
    graded = grade_tree(tree, [exercise for exercise in chosen if exercise not in open_now])
    states = {exercise.number: _state(exercise, graded) for exercise in chosen}
    for exercise in chosen:
        hints = notes.hints.get(exercise.number, 0)
        told = f"{hints} of {len(exercise.hints)} hints" if hints else ""
        print(f"  {exercise.number:<5} {states[exercise.number]:<8} {exercise.title:<36} {told}".rstrip())
    num_solved = list(states.values()).count("solved")
    print(f"phase {notes.phase}: {num_solved} of {len(chosen)} solved")
    return 0 if num_solved == len(chosen) else 1


def _state(exercise: Exercise, graded: dict[str, list[Verdict]]) -> str:
    return state_of(graded[exercise.number]) if exercise.number in graded else "open"


def _mutate(args: argparse.Namespace) -> int:
    if args.check:
        return _mutate_check(find_tree(args.tree))
    if args.number is None:
        print("Planted faults, by what somebody complained about:")
        for mutant in mutants.mutants():
            print(f"  {mutant.number:>2}  {mutant.symptom}")
        return 0
    if args.out is None:
        raise SetupError(f"say where the faulty tree goes: mutate {args.number} --out DIR")
    mutant = mutants.make_mutant(args.number, args.out)
    print(f"A tree with one fault in {args.out}. What somebody complained about:\n  {mutant.symptom}\n")
    print(f"Write a test that fails because of it, in {mutants.LEARNERS_TEST}, then:")
    print(f"  cd {shlex.quote(str(args.out))}\n  {_command()} mutate --check")
    return 0


def _mutate_check(tree: Path) -> int:
    catch = mutants.check_catch(tree)
    if catch.is_caught:
        fault = Notes.of(tree).solutions
        print(f"Caught: your test fails here and passes on the healthy code.\nThe fault: {fault['fault']}")
        print(f"It was planted in {fault['files']}.")
        return 0
    if not catch.passes_healthy:
        print("Not yet: your test fails on the healthy code, too, so it asks for something that is not true.")
        print(catch.output.strip()[-1500:])
    else:
        print("Not yet: your test passes here as well, so the fault does not show in it.")
        print(f"The symptom once more: {Notes.of(tree).solutions['symptom']}")
    return 1


def _doctor(args: argparse.Namespace) -> int:
    marks = {True: "ok  ", False: "NO  ", None: "note"}
    failed = False
    for finding in doctor.examine(with_model=not args.without_model):
        print(f"  {marks[finding.is_ok]}  {finding.what:<9} {finding.said}", flush=True)
        if finding.is_ok is not True and finding.mend:
            print(f"        {finding.mend}")
        failed |= finding.is_ok is False
    print("ready for the course" if not failed else "not ready: see the lines with NO")
    return 1 if failed else 0


def _command() -> str:
    """As this very command was called: a starter has no environment of its own."""
    python = "python" if sys.prefix == sys.base_prefix else shlex.quote(str(Path(sys.prefix) / "bin" / "python"))
    return f"{python} -m shared.workshop"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m shared.workshop",
        description="The course's exercises and labs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(run=run)
        added.add_argument("--tree", metavar="DIR", help="whose tree (default: the one you stand in)")
        return added

    numbers = ", ".join(str(phase.number) for phase in PHASES)
    starter = command("make-starter", _make_starter, "write a tree whose exercises of one phase are open")
    starter.add_argument("phase", type=int, help=f"whose exercises: {numbers}")
    starter.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder for the tree")
    check = command("check", _check, "grade exercises of the tree you stand in, in a few seconds")
    check.add_argument("exercises", nargs="*", metavar="X.Y", help="which (default: all that are open in this starter)")
    for name, run, text in (
        ("hint", _hint, "print a hint; again for the next of three"),
        ("show", _show, "print the solution"),
    ):
        command(name, run, text).add_argument("exercise", metavar="X.Y")
    command("status", _status, "say what is solved in this starter, or list all exercises")
    mutate = command("mutate", _mutate, "plant a fault to be caught by a test of yours, or list the faults")
    mutate.add_argument("number", nargs="?", type=int, help="which one (default: list them)")
    mutate.add_argument("--out", type=Path, metavar="DIR", help="a new folder for the faulty tree")
    mutate.add_argument("--check", action="store_true", help="does your test catch it?")
    look = command("doctor", _doctor, "look whether this machine is ready for the course")
    look.add_argument("--without-model", action="store_true", help="do not fetch or look for the default model")
    return top
