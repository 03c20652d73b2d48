"""The table of a finished `mutmut run`, by module: what was killed, and what was not, one by one.

    python -m tests.mutation_score

`tests/mutation_score.md` holds the last one. Exits with 1 where less than 90 % are killed.
"""

import json
import sys
from collections import Counter
from pathlib import Path

FEWEST_KILLED = 0.90
OUTCOMES = {  # mutmut's exit codes
    **{1: "killed", 3: "killed", 0: "survived", 5: "no test", 33: "no test"},
    **dict.fromkeys((-24, 24, 36, 152, 255), "too slow"),  # it never ended, which a suite notices: killed as well
}


def outcomes(folder: Path) -> dict[str, dict[str, str]]:
    """module -> mutant -> "killed", "too slow", "survived", "no test", or "?" where a run was cut short."""
    found = {}
    for path in sorted(folder.rglob("*.py.meta")):
        codes = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        if codes:
            module = str(path.relative_to(folder)).removesuffix(".meta")
            found[module] = {name: OUTCOMES.get(code, "?") for name, code in codes.items()}
    return found


def table(found: dict[str, dict[str, str]]) -> str:
    counts = {module: Counter(mutants.values()) for module, mutants in found.items()}
    counts["all"] = sum(counts.values(), Counter())
    lines = [
        "| module | mutants | killed | of these too slow | not killed | killed, % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for module, count in counts.items():
        killed = count["killed"] + count["too slow"]
        share = 100 * killed / count.total()
        figures = f"{count.total()} | {killed} | {count['too slow']} | {count.total() - killed} | {share:.1f}"
        lines.append(f"| `{module}` | {figures} |")
    return "\n".join(lines)


def main() -> int:
    found = outcomes(Path("mutants"))
    if not found:
        print("error: no run in mutants/; make mutation-score makes one", file=sys.stderr)
        return 2
    print(table(found), end="\n\n")
    status = [outcome for mutants in found.values() for outcome in mutants.values()]
    for mutants in found.values():
        for name, outcome in mutants.items():
            if outcome not in {"killed", "too slow"}:
                print(f"{outcome}: {name}")
    if "?" in status:
        print("error: not every mutant was tried; run mutmut again, it goes on where it stopped", file=sys.stderr)
        return 2
    return int(status.count("killed") + status.count("too slow") < FEWEST_KILLED * len(status))


if __name__ == "__main__":
    sys.exit(main())
