"""A model folder from a stranger: nothing in it is ever run or unpickled, and what would be is refused by name.

Plain pickles instead of safetensors, and torn files, are in test_model_source.py.
"""

import ast
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.errors import InvalidRequest, SetupError
from shared.lesson_diff import ROOT
from shared.loading.hf_loading import load_gguf_with_transformers
from shared.loading.model_source import HUB_PATTERNS, PICKLES
from shared.loading.setup_messages import one_line
from shared.model_loader import load_model
from shared.prompt_encoding import encode_chat
from shared.registry import PHASES
from shared.tiny_models import tiny_llama
from tests.helpers import letter_tokenizer
from tests.model_folders import edit_json, saved
from tests.server_helpers import chatting

SOURCES = [
    path for folder in ("shared", *(phase.package for phase in PHASES)) for path in (ROOT / folder).rglob("*.py")
]


UNSAFE = {"pickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}  # modules that run what they read


class Bomb:
    """Whoever unpickles it opens a file for writing."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (open, (str(self.mark), "w"))


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a folder's code would write."""
    path = tmp_path / "owned"
    yield path
    assert not path.exists(), "it was run"


@pytest.fixture
def folder(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound model that comes with code and a pickle, and a transformers that could not read a pickle unnoticed."""
    folder = saved(tmp_path, tiny_llama())
    letter_tokenizer(vocab_size=97).save_pretrained(folder)
    code = f"open({str(mark)!r}, 'w')\nModel = Config = Tokenizer = object\n"
    (folder / "custom_generate").mkdir()
    for name in ("own.py", "custom_generate/generate.py", "setup.py"):
        (folder / name).write_text(code)
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "own.bin"):
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))

    def refuse(*_: Any, **__: Any) -> None:
        mark.touch()

    monkeypatch.setattr(torch, "load", refuse)
    return folder


def own_config(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})


def own_tokenizer(folder: Path) -> None:
    auto_map = {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]}
    edit_json(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map=auto_map)


def weights_in(name: str) -> Callable[[Path], None]:
    """By the index of a model in several files."""

    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(tiny_llama().state_dict(), name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return write


def configured(**entries: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "config.json", **entries)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a family of its own": (own_config, "Python code of its own, own.py, setup.py, which is never run"),
    "a tokenizer of its own": (own_tokenizer, "Python code of its own, own.py, setup.py, which is never run"),
    "an index of pickles": (weights_in("own.bin"), "'own.bin', which is no safetensors file"),
    "an index that leads out": (weights_in("../outside.safetensors"), "'../outside.safetensors', which is no"),
    "an index with an absolute path": (weights_in("/outside.safetensors"), "'/outside.safetensors', which is no"),
    "a config with another pickle": (configured(transformers_weights="adapter_model.bin"), "'adapter_model.bin'"),
    "a config with another index": (configured(transformers_weights="x.safetensors.index.json"), "x.safetensors.index"),
    "a kernel from a repository": (
        configured(_attn_implementation="own/kernel"),
        "'own/kernel' as _attn_implementation",
    ),
    "the same, further in": (configured(text_config={"attn_implementation": "paged|own/kernel@v1"}), "never run"),
    "a config without a bottom": (
        lambda f: (f / "config.json").write_text('{"a":' * 9000 + "1" + "}" * 9000),
        "loaded",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_run_code_is_refused_by_name(folder: Path, case: str) -> None:
    spoil, message = REFUSED[case]
    spoil(folder)
    with pytest.raises(SetupError, match=re.escape(message)) as refusal:
        load_model(str(folder), device="cpu")
    assert "trust_remote_code" not in str(refusal.value), "that is no way out here"


def test_code_and_pickles_beside_a_sound_model_are_left_alone(folder: Path) -> None:
    """A known family is loaded as what it is, whatever its folder would like to run instead."""
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit_json(folder / "config.json", auto_map=auto_map)
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    loaded = load_model(str(folder), device="cpu")
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert type(loaded.model).generate.__module__.startswith("transformers.")
    assert loaded.tokenizer is not None


def test_code_beside_a_gguf_file_is_left_alone(folder: Path) -> None:
    own_config(folder)
    own_tokenizer(folder)
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(SetupError, match="cannot be loaded"):
        load_gguf_with_transformers(folder / "tiny.gguf")


def test_nothing_but_data_is_fetched_from_the_hub() -> None:
    wanted = {pattern.removeprefix("*") for pattern in HUB_PATTERNS}
    assert wanted == {".json", ".safetensors", ".txt", ".jinja", ".model"}
    assert not wanted & {pattern.removeprefix("*") for pattern in (*PICKLES, "*.py")}


@pytest.mark.parametrize("found", ["__class__.__mro__[1].__subclasses__()", "__init__.__globals__", "append(1)"])
def test_a_chat_template_cannot_leave_its_sandbox(found: str) -> None:
    tokenizer = chatting(letter_tokenizer(), "{{ messages." + found + " }}")
    with pytest.raises(InvalidRequest, match="the chat template refused them"):
        encode_chat(tokenizer, [{"role": "user", "content": "a"}])


def test_what_a_model_calls_itself_is_not_obeyed_by_a_terminal() -> None:
    assert one_line(ValueError("\x1b[2Jgone\r\n\u202eback\x9b1m")) == "[2Jgone back1m"


# -- the sources ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> list[tuple[str, ast.AST]]:
    """Every import and every call of the engine, and where it is."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES]
    found = [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    return [(f"{path.relative_to(ROOT)}:{node.lineno}", node) for path, node in found]


def given(call: ast.Call) -> dict[str | None, str]:
    """Keyword -> what is passed."""
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_no_source_unpickles_or_runs_what_it_has_read(nodes: list[tuple[str, ast.AST]]) -> None:
    for place, node in nodes:
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"torch.load", "eval", "exec", "os.system", "os.popen"}, place
            assert given(node).get("shell", "False") == "False", place
            assert given(node).get("allow_pickle", "False") == "False", place
        else:
            assert isinstance(node, ast.Import | ast.ImportFrom)
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not UNSAFE & {name.split(".")[0] for name in names}, place


def test_every_call_that_loads_a_checkpoint_says_that_its_code_is_not_trusted(nodes: list[tuple[str, ast.AST]]) -> None:
    found = [(place, node) for place, node in nodes if isinstance(node, ast.Call)]
    loading = [(place, call) for place, call in found if ast.unparse(call.func).endswith(".from_pretrained")]
    assert len(loading) >= 4
    for place, call in loading:
        assert given(call).get("trust_remote_code") == "False", place
