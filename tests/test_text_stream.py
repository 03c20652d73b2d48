"""Streamed text against `tokenizer.decode`, and stop strings against their definition."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from shared import token_decoder
from shared.decode_stream import OlderDecodeStream, new_stream
from shared.errors import InvalidRequest, SetupError
from shared.request import SamplingParams
from shared.text_stream import NullTextStream, TextStream
from tests.helpers import letter_tokenizer

CORPUS = ["the cat sat on the mat, the cat ran", "naïve façade 😀😀 日本語 日本", "  indented\n\n\tcode = [1, 2]"] * 3


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2's kind: every token is bytes, so a character may be cut anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Llama 2's kind: "▁" is a space, dropped at the beginning of a text; unknown characters become byte tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁cat", "▁Paris", *"abcehnprst.,"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


BYTE_LEVEL = byte_level_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()


@pytest.fixture(scope="module", params=[new_stream, OlderDecodeStream], autouse=True)
def kind_of_stream(request: pytest.FixtureRequest) -> Iterator[None]:
    """The library's and the one for its older versions; these run the latter twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_decoder, "new_stream", request.param)
        yield


def decode(tokenizer: Any, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def stream_all(tokenizer: Any, token_ids: list[int], prompt=(), stop=()) -> list[str]:
    """Every delta, the last from `finish`."""
    stream = TextStream(tokenizer, stop, prompt)
    deltas = [stream.push(token_id) for token_id in token_ids]
    deltas.append(stream.finish())
    assert stream.text == "".join(deltas)
    return deltas


def sp(*pieces: str | int) -> list[int]:
    """Ids of SentencePiece tokens; a number is a byte."""
    names = [piece if isinstance(piece, str) else f"<0x{piece:02X}>" for piece in pieces]
    return SENTENCEPIECE.convert_tokens_to_ids(names)


# ---- decoding

BYTE_LEVEL_IDS = st.lists(st.integers(0, len(BYTE_LEVEL) - 1), max_size=40)


@given(token_ids=BYTE_LEVEL_IDS, prompt=BYTE_LEVEL_IDS)
@settings(max_examples=300, deadline=None)
def test_deltas_of_any_byte_level_ids_join_to_their_decoding(token_ids, prompt):
    assert "".join(stream_all(BYTE_LEVEL, token_ids, prompt)) == decode(BYTE_LEVEL, token_ids)


@given(text=st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])))
@example("Repeat exactly: 😀😀😀😀")
@settings(max_examples=200, deadline=None)
def test_str_01_no_delta_of_a_text_holds_part_of_a_character(text):
    deltas = stream_all(BYTE_LEVEL, BYTE_LEVEL.encode(text))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_goes_out_with_its_last_byte():
    token_ids = BYTE_LEVEL.backend_tokenizer.encode("aツb").ids
    assert stream_all(BYTE_LEVEL, token_ids) == ["a", "", "", "ツ", "b", ""]


def test_an_incomplete_character_is_flushed_at_the_end_as_decode_shows_it():
    token_ids = BYTE_LEVEL.encode("aツ")[:-1]
    assert stream_all(BYTE_LEVEL, token_ids) == ["a", "", "", "\ufffd"]
    assert decode(BYTE_LEVEL, token_ids) == "a\ufffd"


def test_special_tokens_have_no_text():
    bos, eos = BYTE_LEVEL.bos_token_id, BYTE_LEVEL.eos_token_id
    cat = BYTE_LEVEL.encode("cat")
    assert "".join(stream_all(BYTE_LEVEL, [bos, *cat, eos, *cat, eos])) == "catcat"


SP_IDS = st.lists(st.integers(1, len(SENTENCEPIECE) - 1), max_size=30)


@given(token_ids=SP_IDS, prompt=SP_IDS)
@example(token_ids=sp(0x20), prompt=sp(0x20))
@example(token_ids=[3, 35, 131, 259], prompt=[])
@settings(max_examples=300, deadline=None)
def test_sentencepiece_text_goes_on_from_the_prompt_and_loses_nothing(token_ids, prompt):
    """Bytes that are no UTF-8 turn characters already out into U+FFFD; nothing else may be lost or changed."""
    prompt_text = decode(SENTENCEPIECE, prompt)
    assume(not prompt_text.endswith("\ufffd"))
    whole = decode(SENTENCEPIECE, prompt + token_ids)[len(prompt_text) :]
    text = "".join(stream_all(SENTENCEPIECE, token_ids, prompt))
    if "\ufffd" not in whole:
        assert text == whole
    streamed = iter(text)
    assert all(character in streamed for character in whole if character != "\ufffd"), "in this order"


def test_text_goes_on_after_bytes_that_are_no_utf8():
    assert stream_all(SENTENCEPIECE, sp("▁cat", 0x0A, 0xE2, "s", "▁the")) == ["cat", "\n", "", "\ufffds", " the", ""]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "Paris."),
        (["<s>"], "Paris."),
        (["▁the", "▁cat"], " Paris."),
        (["▁the", *["</s>"] * 20], " Paris."),
        ([*(byte for _ in range(9) for byte in "日".encode()), 0x41], " Paris."),
        ([*(byte for _ in range(9) for byte in "日".encode())], " Paris."),
        (["▁"], " Paris."),
        (["▁the", 0xE2], "Paris."),
    ],
    ids=["none", "special", "words", "many specials", "bytes", "bytes only", "space", "ends inside a character"],
)
def test_str_03_the_leading_space_depends_on_the_prompt(prompt, text):
    assert "".join(stream_all(SENTENCEPIECE, sp("▁Paris", "."), sp(*prompt))) == text


def test_a_tokenizer_that_cannot_stream_is_named():
    class OnlyPython:
        pass

    with pytest.raises(SetupError, match="OnlyPython has no backend_tokenizer"):
        TextStream(OnlyPython())


def test_without_a_tokenizer_there_is_no_text():
    stream = NullTextStream()
    assert (stream.push(5), stream.push(6, check_stop=False), stream.finish()) == ("", "", "")
    assert (stream.text, stream.stopped) == ("", False)


def test_importing_it_needs_neither_torch_nor_transformers():
    code = "import sys, shared.text_stream; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- stop strings

PIECES = ["".join(letters) for size in range(4) for letters in product("ab", repeat=size)]


def piece_tokenizer() -> Any:
    """Every string of up to three letters a and b is a token."""
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return SimpleNamespace(backend_tokenizer=tokenizer)


PIECE_TOKENIZER = piece_tokenizer()
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def expected_text(pieces: list[str], num_unchecked: int, stop: list[str]) -> tuple[str, bool]:
    """(text that may be out after these pieces, whether it was stopped), letter by letter from the definition."""
    text = ""
    for number, piece in enumerate(pieces):
        for letter in piece:
            text += letter
            complete = [string for string in stop if text.endswith(string)]
            if complete and number >= num_unchecked:
                return text[: -max(map(len, complete))], True
    begun = [size for string in stop for size in range(1, len(string)) if text.endswith(string[:size])]
    return text[: len(text) - max(begun, default=0)], False


@given(tokens=TOKENS, stop=STOPS, num_unchecked=st.integers(0, 4))
@example(tokens=[PIECES.index("aba")], stop=["aba", "b"], num_unchecked=0)  # both in one token
@settings(max_examples=500, deadline=None)
def test_text_is_out_as_early_as_it_may_and_ends_before_the_first_stop_string(tokens, stop, num_unchecked):
    stream = TextStream(PIECE_TOKENIZER, stop)
    released = ""
    for number, token_id in enumerate(tokens):
        released += stream.push(token_id, check_stop=number >= num_unchecked)
        pieces = [PIECES[token_id] for token_id in tokens[: number + 1]]
        assert (stream.text, stream.stopped) == expected_text(pieces, num_unchecked, stop)
        assert released == stream.text
    released += stream.finish()
    whole = "".join(PIECES[token_id] for token_id in tokens)
    assert released == stream.text == (stream.text if stream.stopped else whole)


@given(tokens=TOKENS, stop=STOPS)
@settings(max_examples=200, deadline=None)
def test_the_text_does_not_depend_on_how_it_was_cut_into_tokens(tokens, stop):
    letters = [PIECES.index(letter) for token_id in tokens for letter in PIECES[token_id]]
    by_token, by_letter = (stream_all(PIECE_TOKENIZER, ids, stop=stop) for ids in (tokens, letters))
    assert "".join(by_token) == "".join(by_letter)


@pytest.mark.parametrize(
    ("stop", "text", "stopped"),
    [
        (["c"], "ab", True),
        (["bcde", "c"], "ab", True),  # the first to be complete
        (["cd", "bcd"], "a", True),  # complete at once: none may be left in the text
        (["cd", "cde"], "ab", True),
        (["cdx", "dex", "ef"], "abcd", True),
        (["gx", "fgy"], "abcdefg", False),
    ],
)
def test_which_of_several_stop_strings_counts(stop, text, stopped):
    tokenizer = letter_tokenizer()
    stream = TextStream(tokenizer, stop)
    for token_id in tokenizer.encode("abcdefg"):
        stream.push(token_id)
    stream.finish()
    assert (stream.text, stream.stopped) == (text, stopped)


@pytest.mark.parametrize(
    ("stop", "max_tokens", "text", "stopped"),
    [(["ijk"], 20, "defgh", True), (["ijz"], 10, "defghijklm", False), (["mz"], 10, "defghijklm", False)],
)
def test_str_02_the_beginning_of_a_stop_string_is_held_until_it_is_none(stop, max_tokens, text, stopped):
    tokenizer = letter_tokenizer()
    token_ids = tokenizer.encode("defghijklmnopqrst")[:max_tokens]
    deltas = stream_all(tokenizer, token_ids, tokenizer.encode("abc"), stop)
    assert "".join(deltas) == text
    if stopped:
        assert not set("ij") & set("".join(deltas))
        assert deltas[5:] == [""] * len(deltas[5:])


def test_str_02_empty_stop_strings_are_refused():
    for stop in ([""], ""):
        with pytest.raises(InvalidRequest, match="stop"):
            SamplingParams(stop=stop)


def test_a_stop_string_before_min_tokens_is_text_but_one_that_ends_after_it_counts():
    tokenizer = letter_tokenizer()
    stream = TextStream(tokenizer, ["ab", "cd"])
    deltas = [stream.push(token_id, check_stop=i >= 3) for i, token_id in enumerate(tokenizer.encode("abcde"))]
    assert deltas == ["", "ab", "", "", ""]
    assert stream.stopped


def test_a_stop_string_may_hold_characters_of_several_tokens():
    deltas = stream_all(BYTE_LEVEL, BYTE_LEVEL.encode("a cat 🦉🦉 sat"), stop=["🦉 s"])
    assert "".join(deltas) == "a cat 🦉"


# ---- the default model's tokenizer


@pytest.fixture(scope="module")
def smollm(request: pytest.FixtureRequest) -> Any:
    return AutoTokenizer.from_pretrained(request.getfixturevalue("real_model_folder"))


@pytest.mark.real_model
def test_str_01_an_emoji_of_three_tokens_comes_out_whole(smollm):
    token_ids = [48010, 3869, 42, 15107, 242, 218, 10813, 242, 218, 10813, 242, 218, 10813, 242, 218]
    deltas = stream_all(smollm, token_ids, smollm.encode("<|im_start|>assistant\n"))
    assert "".join(deltas) == "Repeat exactly: 😀😀😀😀"
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.real_model
def test_str_03_prompt_and_text_are_the_decoding_of_all_ids(smollm):
    prompt, token_ids = smollm.encode("The capital of France is"), [7042, 30, 198, 198, 504, 2988, 314, 42]
    text = "".join(stream_all(smollm, token_ids, prompt))
    assert text == " Paris.\n\nThe answer is:"
    assert "The capital of France is" + text == decode(smollm, prompt + token_ids)


@pytest.mark.real_model
def test_deltas_of_any_ids_of_the_default_model_join_to_their_decoding(smollm):
    @given(token_ids=st.lists(st.one_of(st.integers(0, len(smollm) - 1), st.integers(0, 300)), max_size=40))
    @settings(max_examples=200, deadline=None)
    def check(token_ids: list[int]) -> None:
        assert "".join(stream_all(smollm, token_ids)) == decode(smollm, token_ids)

    check()
