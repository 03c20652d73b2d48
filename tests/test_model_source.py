"""What a model's name stands for, and one line with exit code 2 for everything that can be wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

from shared.model_loader import load_model, main
from shared.tiny_models import tiny_llama
from tests.helpers import letter_tokenizer
from tests.model_folders import edit_json, saved
from tests.tiny_gguf import llama, write_gguf


@pytest.fixture(autouse=True)
def no_hub_and_own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("MODEL_NAME", raising=False)
    monkeypatch.setenv("PAGESERVE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def t0(tmp_path: Path) -> Path:
    """T0 as its maker saved it: fp64, no tokenizer."""
    return saved(tmp_path, tiny_llama())


def test_model_name_in_the_environment_is_the_default(t0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_NAME", str(t0))
    loaded = load_model()
    assert loaded.path == load_model("").path == t0
    assert loaded.reasons["model"] == f"MODEL_NAME={t0}: a local folder"


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama())
    told: list[str] = []
    first = load_model(str(file), device="cpu", report=told.append)
    again = load_model(str(file), device="cpu", report=told.append)
    assert (first.name, first.path, len(told)) == ("tiny", again.path, 1)
    assert torch.equal(first.model.get_input_embeddings().weight, llama().get_input_embeddings().weight)
    assert first.tokenizer is not None

    write_gguf(file, llama(tie=False))
    changed = load_model(str(file), device="cpu", report=told.append)
    assert (changed.path, len(told)) == (first.path, 2)
    assert not changed.model.config.tie_word_embeddings


def test_two_gguf_files_of_one_name_do_not_share_a_folder(tmp_path: Path) -> None:
    folders = set()
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        folders.add(load_model(str(write_gguf(tmp_path / parent / "tiny.gguf", llama()))).path)
    assert len(folders) == 2


def test_a_hub_id_is_fetched_without_pickles(t0: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(t0)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_model("someone/T0").name == "someone/T0"
    assert asked["repo_id"] == "someone/T0"
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith(("bin", "pt", "*")) for pattern in asked["allow_patterns"])


def with_tokenizer_of_100_letters(folder: Path) -> None:
    letter_tokenizer(vocab_size=100).save_pretrained(folder)


def half_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def own_code(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="own", auto_map={"AutoModelForCausalLM": "own.Model"})
    (folder / "own.py").write_text("raise SystemExit('this must never run')")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "a torn config": (lambda f: (f / "config.json").write_text('{"model_type": '), "not a valid JSON"),
    "a torn generation config": (
        lambda f: (f / "generation_config.json").write_text("{broken"),
        "generation_config.json is no valid JSON object",
    ),
    "an unknown family": (lambda f: edit_json(f / "config.json", model_type="nonesuch"), "nonesuch"),
    "code of its own": (own_code, "model cannot be loaded"),
    "no causal model": (lambda f: edit_json(f / "config.json", model_type="vit"), "model cannot be loaded"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    "pickled weights": (only_a_pickle, "safe_serialization=True"),
    "weights that are no safetensors": (lambda f: (f / "model.safetensors").write_text("x" * 99), "cannot be loaded"),
    "torn weights": (lambda f: tear(f / "model.safetensors"), "cannot be loaded"),
    "weights of another shape": (lambda f: edit_json(f / "config.json", vocab_size=98), "another shape"),
    "a torn tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer cannot be loaded"),
    "half a tokenizer": (half_a_tokenizer, "no vocabulary; fetch its tokenizer.json"),
    "a tokenizer too large": (with_tokenizer_of_100_letters, "has 100 tokens and the model embeds 97"),
}


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that ends with exit code 2."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_one_line_and_exit_code_2(t0: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    breaks, message = BROKEN[case]
    breaks(t0)
    line = refused([str(t0), "--load"], capsys)
    assert message in line
    assert str(t0) in line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "there is no such folder"),
        ("nowhere.gguf", "there is no such file"),
        ("no one/no model", "there is no such folder"),
        ("someone/nothing", "is no folder here and not to be had from the hub"),
        (__file__, "a file of an unknown kind"),
    ],
)
def test_an_unknown_model_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    line = refused([name], capsys)
    assert message in line
    assert "leave it out for the default model" in line


def test_a_folder_with_a_gguf_file_points_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").touch()
    assert "give the .gguf file in it" in refused([str(tmp_path)], capsys)


def test_a_gguf_file_that_is_none_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.gguf").write_text("<html>not found</html>")
    assert main([str(tmp_path / "page.gguf")]) == 2
    assert "is not a GGUF file" in capsys.readouterr().err.splitlines()[-1]
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dtype", "int8", "choose one of auto, float32"),
        ("--device", "tpu", "choose one of auto, cpu, cuda, mps"),
        ("--device", "cuda", "finds no NVIDIA GPU; use cpu"),
        ("--device", "mps", "finds no Apple GPU; use cpu"),
    ],
)
def test_a_dtype_or_device_that_is_not_there_is_one_line_and_exit_code_2(
    t0: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert message in refused([str(t0), "--load", option, value], capsys)


def test_the_command_prints_what_was_chosen_and_the_folder_last(t0: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(t0), "--load", "--dtype", "float64", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(t0)
    assert "dtype: torch.float64 (asked for)" in lines
