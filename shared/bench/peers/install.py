"""Makes a peer's environment, and converts the model where the peer wants its own format. Minutes, gigabytes."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path

from shared.bench.peers.catalogue import RECIPE, Home
from shared.errors import SetupError

Say = Callable[[str], object]
Run = Callable[[Seq[str]], None]  # a command, to its end


def run_command(command: Seq[str]) -> None:
    """Raises SetupError if it fails. Its output goes where ours goes."""
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"{Path(command[0]).name} failed ({error}); its own words are above") from error


def install(home: Home, source: Path, say: Say, run: Run = run_command) -> None:
    """Make what is missing of a peer and of the model in `source`; what is there already stays. Raises SetupError.

    $PIP_FLAGS goes to pip, for another index.
    """
    if not home.is_installed:
        say(f"{home.peer.title}: an environment of its own (several minutes, several GB)")
        _make_environment(home, run)
    if home.why_not(source) is not None:
        say(f"{home.peer.title}: converting {source.name}")
        _convert(home, source, run)
    say(f"{home.peer.title} {home.version} is ready")


def _make_environment(home: Home, run: Run) -> None:
    python, peer = str(home.python), home.peer
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run([sys.executable, "-m", "venv", "--clear", str(home.environment)])
    run([*pip, "install", *shlex.split(os.environ.get("PIP_FLAGS", "")), *peer.requirements])
    if peer.unwanted:
        run([*pip, "uninstall", "--yes", *peer.unwanted])
    (home.environment / RECIPE).write_text(peer.recipe, encoding="utf-8")


def _convert(home: Home, source: Path, run: Run) -> None:
    """In fp32; the peer rounds it itself where it runs in bf16. Written under another name first."""
    target = home.model_folder(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        made = Path(scratch) / source.name
        task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        run([str(home.python.with_name("optimum-cli")), "export", "openvino", "--model", str(source), *task, str(made)])
        shutil.move(made, target)
