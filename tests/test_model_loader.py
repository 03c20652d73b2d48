"""Loading: what HF's own `generate` gives for the loaded model, in the element type and on the device chosen."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from shared.errors import InvalidRequest, SetupError
from shared.loading import torch_choice
from shared.loading.hf_loading import dtype_keyword
from shared.model_loader import load_model
from shared.prompt_encoding import encode_text
from shared.registry import newest_phase
from shared.tiny_models import tiny_llama
from tests.helpers import PA, T0_OUTPUTS, Q, greedy, letter_tokenizer, open_engine, reference, rope_fields
from tests.model_folders import edit_json, edit_weights, saved

REPOSITORY = Path(__file__).parent.parent
PARIS = [7042, 30, 198, 198, 504, 2988, 314, 42]


@pytest.fixture
def t0(tmp_path: Path) -> Path:
    """T0 as its maker saved it: fp64, no tokenizer."""
    return saved(tmp_path, tiny_llama())


def generated(folder: Path | str, prompt: list[int], num_tokens: int, **options: Any) -> list[int]:
    """HF's greedy tokens for the loaded model, in fp64."""
    model: Any = load_model(str(folder), dtype="float64", device="cpu").model
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


def test_every_eos_id_of_the_generation_config_counts(t0: Path) -> None:
    """LOD-01."""
    edit_json(t0 / "generation_config.json", eos_token_id=[2, 28])
    assert generated(t0, PA, 24) == [8, 62, 18, 72, 11, 28]


def test_without_a_generation_config_the_eos_of_the_config_counts(t0: Path) -> None:
    """LOD-01; token 28 no longer ends it, token 2 would."""
    (t0 / "generation_config.json").unlink()
    loaded = load_model(str(t0))
    assert loaded.model.generation_config.eos_token_id == 2
    assert generated(t0, PA, 24) == T0_OUTPUTS["PA"]


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """LOD-02."""
    folder = saved(tmp_path, tiny_llama(tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert generated(folder, PA, 8) == [65, 75, 32, 50, 72, 20, 75, 39]


def test_a_tied_head_that_is_in_the_file_as_well_is_fine(tmp_path: Path) -> None:
    """LOD-02."""
    folder = saved(tmp_path, tiny_llama(tie_word_embeddings=True))
    edit_weights(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert generated(folder, PA, 8) == [65, 75, 32, 50, 72, 20, 75, 39]


def test_a_tied_head_stays_tied_after_the_weights_are_copied(tmp_path: Path) -> None:
    model = load_model(str(saved(tmp_path, tiny_llama(tie_word_embeddings=True)))).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_missing_tensor_is_named(t0: Path) -> None:
    """LOD-02."""
    edit_weights(t0, lambda w: w.pop("lm_head.weight"))
    with pytest.raises(SetupError, match=r"lm_head\.weight is missing"):
        load_model(str(t0))


def test_rope_theta_counts_in_both_spellings(tmp_path: Path) -> None:
    """NUM-02."""
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    folder = saved(tmp_path, tiny_llama(**rope_fields(rope)))
    edit_json(folder / "config.json", rope_parameters=rope, rope_theta=None, rope_scaling=None)
    assert generated(folder, Q, 8) == [52, 44, 50, 56, 52, 23, 4, 72]
    edit_json(folder / "config.json", rope_parameters=None, rope_theta=500000.0)
    assert generated(folder, Q, 8) == [52, 44, 50, 56, 52, 23, 4, 72]


def test_sampling_defaults_stay_in_the_generation_config_for_the_caller_to_drop(t0: Path) -> None:
    """SMP-05: `generate` applies them unless told otherwise, so a reference has to tell it."""
    edit_json(t0 / "generation_config.json", repetition_penalty=1.5)
    assert load_model(str(t0)).model.generation_config.repetition_penalty == 1.5
    assert generated(t0, PA, 12) == [46, 37, 56, 86, 39, 71, 73, 15, 88, 95, 25, 14]
    assert generated(t0, PA, 12, repetition_penalty=1.0) == T0_OUTPUTS["PA"][:12]


@pytest.mark.real_model
def test_the_real_model_answers_paris(real_model_folder: str) -> None:
    """STR-03, LOD-02."""
    loaded: Any = load_model(real_model_folder, device="cpu")
    prompt = loaded.tokenizer("The capital of France is", return_tensors="pt")
    out = loaded.model.generate(**prompt, max_new_tokens=8, do_sample=False)[0]
    answer = out[prompt.input_ids.shape[1] :].tolist()
    assert answer == PARIS
    assert loaded.tokenizer.decode(answer) == " Paris.\n\nThe answer is:"
    assert loaded.tokenizer.decode(out) == "The capital of France is Paris.\n\nThe answer is:"


def test_a_loaded_model_is_ready_to_serve(t0: Path) -> None:
    loaded = load_model(str(t0), device="cpu")
    assert (loaded.name, loaded.path, loaded.tokenizer) == ("T0", t0, None)
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert not loaded.model.training
    weights = list(loaded.model.parameters())
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert not any(weight.requires_grad for weight in weights)


def test_every_choice_comes_with_its_reason(t0: Path) -> None:
    reasons = load_model(str(t0), dtype="float64", device="cpu").reasons
    assert reasons["model"] == "a local folder"
    assert reasons["dtype"] == "asked for"
    assert "token ids" in reasons["tokenizer"]
    assert reasons["weights"] == "all used"


def test_the_weights_do_not_depend_on_the_file_any_more(t0: Path) -> None:
    model = load_model(str(t0), dtype="float64", device="cpu").model
    before = model.get_input_embeddings().weight.clone()
    size = (t0 / "model.safetensors").stat().st_size
    with (t0 / "model.safetensors").open("r+b") as file:
        file.write(bytes(size))  # in place, so that a mapping of it would change
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert all(bool(weight.abs().sum() > 0) for weight in model.parameters())


def test_extra_tensors_are_reported(t0: Path) -> None:
    edit_weights(t0, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}))
    assert "q_proj.bias" in load_model(str(t0)).reasons["weights"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_dtype_that_is_asked_for_is_used(t0: Path, dtype: str) -> None:
    loaded = load_model(str(t0), dtype=dtype, device="cpu")
    assert loaded.model.dtype == loaded.dtype == getattr(torch, dtype)


def test_auto_chooses_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_choice.choose_dtype("auto", torch.device("cpu"))[0] == torch.float32
    assert torch_choice.choose_dtype("auto", torch.device("mps"))[0] == torch.float16
    for has_bf16, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has_bf16, **_options: has)
        assert torch_choice.choose_dtype("auto", torch.device("cuda"))[0] == dtype


def test_auto_prefers_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=cuda: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda has=mps: has)
        assert torch_choice.choose_device("auto")[0].type == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_model_is_loaded_in_half_precision(t0: Path) -> None:
    loaded = load_model(str(t0))
    assert loaded.device.type == loaded.model.device.type == "cuda"
    assert loaded.model.dtype in (torch.bfloat16, torch.float16)


def test_a_model_that_does_not_fit_is_one_line(monkeypatch: pytest.MonkeyPatch, t0: Path) -> None:
    def out_of_memory(_model: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(torch_choice, "_copy_out_of_the_file", out_of_memory)
    with pytest.raises(SetupError, match=r"GB do not fit into the memory of cpu; use a smaller model"):
        load_model(str(t0), device="cpu")


def test_a_tokenizer_comes_with_the_model_unless_it_is_not_wanted(tmp_path: Path) -> None:
    folder = saved(tmp_path, tiny_llama())
    letter_tokenizer().save_pretrained(folder)
    tokenizer = load_model(str(folder)).tokenizer
    assert tokenizer is not None
    assert tokenizer("abc").input_ids == [10, 11, 12]
    assert load_model(str(folder), load_tokenizer=False).tokenizer is None


def test_a_pad_token_that_the_model_never_learned_is_no_obstacle(tmp_path: Path) -> None:
    folder = saved(tmp_path, tiny_llama())
    tokenizer = letter_tokenizer(vocab_size=97)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    loaded: Any = load_model(str(folder), dtype="float64", device="cpu")
    prompt = encode_text(loaded.tokenizer, "abc")
    with open_engine(newest_phase(), loaded.model, loaded.tokenizer) as engine:
        (answer,) = engine.generate([greedy(prompt, 4)])
        assert answer.token_ids == list(reference("llama", tuple(prompt), 4))
        with pytest.raises(InvalidRequest, match="97"):
            engine.generate([greedy(encode_text(loaded.tokenizer, "ab[PAD]"), 4)])


@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"])
def test_byte_level_tokens_are_read_as_such_whatever_class_is_named(tmp_path: Path, tokenizer_class: str) -> None:
    """Classes that know another kind of tokenizer make one of the vocabulary, and spaces are lost."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "</s>", *alphabet, "\u0120t"]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [("\u0120", "t")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    folder = saved(tmp_path, tiny_llama(vocab_size=len(tokens)))
    tokenizer.save_pretrained(folder)
    edit_json(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class)
    loaded: Any = load_model(str(folder)).tokenizer
    text = " the cat\n  sat, 日本"
    ids = loaded(text, add_special_tokens=False).input_ids
    assert ids == backend.encode(text, add_special_tokens=False).ids
    assert loaded.backend_tokenizer.decode(ids) == text
    assert (loaded.eos_token_id, loaded.chat_template) == (1, tokenizer.chat_template)


def test_torch_and_transformers_are_not_imported_before_they_are_needed() -> None:
    code = "import sys, shared.model_loader as m; m._parser(); print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "set()\n"


def test_older_transformers_get_the_older_keyword() -> None:
    assert dtype_keyword("4.51.3") == dtype_keyword("4.55.4") == "torch_dtype"
    assert dtype_keyword("4.56.0") == dtype_keyword("5.24.0") == "dtype"


def test_fp64_on_an_apple_gpu_is_refused() -> None:
    with pytest.raises(SetupError, match="float64: Apple GPUs do not have it"):
        torch_choice.choose_dtype("float64", torch.device("mps"))
