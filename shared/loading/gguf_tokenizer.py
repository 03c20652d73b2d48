"""The byte-level BPE tokenizer in a GGUF file, written as a Hugging Face tokenizer. Torch-free.

A GGUF file holds tokens and merges; how text is cut up before merging it only names
(`tokenizer.ggml.pre`). Getting that wrong changes ids in silence, so a name that is not
in PRE_TOKENIZERS is not guessed at.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from shared.loading.gguf_file import GgufFile

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
}


def unreadable_tokenizer(gguf: GgufFile) -> str | None:
    """What this module does not know about the file's tokenizer, or None."""
    if (kind := gguf.get("tokenizer.ggml.model")) != "gpt2":
        return f"tokenizer {kind!r}"
    if (pre := gguf.get("tokenizer.ggml.pre")) not in PRE_TOKENIZERS:
        return f"pre-tokenizer {pre!r}"
    return None


def special_token_id(gguf: GgufFile, role: str) -> int | None:
    """role: bos, eos, eot, padding or unknown."""
    return gguf.get(f"tokenizer.ggml.{role}_token_id")


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (with the chat template). Raises SetupError."""
    tokens: list[str] = gguf.need("tokenizer.ggml.tokens")
    _build_tokenizer(gguf, tokens).save(str(folder / "tokenizer.json"))
    config = json.dumps(_tokenizer_config(gguf, tokens), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def _build_tokenizer(gguf: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = gguf.need("tokenizer.ggml.pre")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise gguf.broken("its vocabulary repeats a token")
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.need("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.need("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(_added_tokens(tokens, kinds, CONTROL))
    tokenizer.add_tokens(_added_tokens(tokens, kinds, USER_DEFINED))
    bos_id = special_token_id(gguf, "bos")
    if gguf.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe") and bos_id is not None:
        tokenizer.post_processor = _bos_first(tokens[bos_id], bos_id)
    return tokenizer


def _added_tokens(tokens: list[str], kinds: list[int], wanted: int) -> list[AddedToken]:
    """The tokens of one kind, matched as they are and before the text is cut up."""
    return [
        AddedToken(token, normalized=False, special=wanted == CONTROL)
        for token, kind in zip(tokens, kinds)
        if kind == wanted
    ]


def _bos_first(token: str, token_id: int) -> processors.PostProcessor:
    single, pair = f"{token}:0 $A:0", f"{token}:0 $A:0 {token}:1 $B:1"
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(token, token_id)])


def _tokenizer_config(gguf: GgufFile, tokens: list[str]) -> dict[str, Any]:
    """The class is the one that takes tokenizer.json as it is, and asks for no token_type_ids."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    for name, role in SPECIAL_TOKENS.items():
        if (token_id := special_token_id(gguf, role)) is not None:
            config[name] = tokens[token_id]
    if template := gguf.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config
