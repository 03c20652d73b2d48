"""Taking tokens in: the first thing in token order that ends the output decides."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from shared.completion import accept_tokens
from shared.output import TokenLogprobs
from shared.request import Request, SamplingParams
from shared.sequence import Sequence, Status
from shared.step import SampledToken
from shared.text_stream import TextStream
from tests.fakes import make_sequence
from tests.helpers import letter_tokenizer


def tokens(*ids: int) -> list[SampledToken]:
    return [SampledToken(token_id) for token_id in ids]


def text_sequence(max_tokens: int = 100, eos: frozenset[int] = frozenset(), **params: object) -> Sequence:
    seq = make_sequence(2, max_tokens)
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    seq.request = Request(seq.request.prompt_token_ids, sampling)
    seq.eos_token_ids = eos
    seq.text_stream = TextStream(letter_tokenizer(), sampling.stop)
    return seq


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token 1 is the first byte of a character of three."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "<0xE3>": 1}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_tokens_after_the_end_are_dropped() -> None:
    seq = text_sequence(eos=frozenset({16}))
    output = accept_tokens(seq, tokens(14, 15, 16, 17, 18))
    assert (output.token_ids, output.text, output.finish_reason) == ([14, 15, 16], "ef", "stop")
    assert seq.status is Status.FINISHED
    assert seq.output_token_ids == [14, 15, 16]


def test_a_stop_before_the_length_limit_wins_and_after_it_never_comes() -> None:
    early, late = text_sequence(5, frozenset({17})), text_sequence(5, frozenset({22}))
    for seq, expected in ((early, ([15, 16, 17], "stop")), (late, ([15, 16, 17, 18, 19], "length"))):
        output = accept_tokens(seq, tokens(15, 16, 17, 18, 19, 20, 21, 22))
        assert (output.token_ids, output.finish_reason) == expected


def test_a_stop_on_the_very_last_token_is_a_stop() -> None:
    output = accept_tokens(text_sequence(1, frozenset({8})), tokens(8))
    assert (output.token_ids, output.text, output.finish_reason) == ([8], "", "stop")


def test_a_stop_token_id_is_kept_and_its_text_is_not() -> None:
    output = accept_tokens(text_sequence(stop_token_ids=[12]), tokens(11, 12, 13))
    assert (output.token_ids, output.text, output.finish_reason) == ([11, 12], "b", "stop")


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    seq = text_sequence(stop=["de"])
    first = accept_tokens(seq, tokens(12, 13))
    assert (first.text, first.finish_reason) == ("c", None)
    second = accept_tokens(seq, tokens(14, 15))
    assert (second.text, second.finish_reason, second.token_ids) == ("", "stop", [14])


def test_a_stop_string_that_is_complete_only_with_what_was_held_back_is_a_stop() -> None:
    """A character that stays incomplete is read as U+FFFD, and not before the end."""
    seq = text_sequence(1, stop=["\ufffd"])
    seq.text_stream = TextStream(byte_tokenizer(), ["\ufffd"])
    output = accept_tokens(seq, tokens(1))
    assert (output.text, output.finish_reason) == ("", "stop")


def test_what_was_held_back_comes_out_with_the_last_token() -> None:
    seq = text_sequence(2, stop=["mz"])
    assert accept_tokens(seq, tokens(21)).text == "l"
    last = accept_tokens(seq, tokens(22))
    assert (last.text, last.finish_reason) == ("m", "length")


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    seq = text_sequence(stop=["b"], min_tokens=3)
    output = accept_tokens(seq, tokens(11, 11, 11, 11))
    assert (output.token_ids, output.text, output.finish_reason) == ([11, 11, 11], "bb", "stop")


def test_steps_keep_the_given_logprobs_in_order() -> None:
    seq = make_sequence(2)
    given = [SampledToken(5, TokenLogprobs(5, -0.5, {})), SampledToken(6, TokenLogprobs(6, -0.25, {}))]
    output = accept_tokens(seq, given)
    assert output.logprobs is not None
    assert [entry.logprob for entry in output.logprobs] == [-0.5, -0.25] == [e.logprob for e in seq.logprobs]
    assert replace(output, logprobs=None).token_ids == [5, 6]


def test_an_output_says_whose_it_is_and_the_logprobs_of_all_steps_are_kept() -> None:
    seq = make_sequence(2, name="r", index=1)
    for number in (5, 6):
        output = accept_tokens(seq, [SampledToken(number, TokenLogprobs(number, -number / 8, {}))])
        assert (output.request_id, output.index, output.token_ids) == ("r", 1, [number])
    assert [entry.token_id for entry in seq.logprobs] == [5, 6]


def test_the_prompts_logprobs_come_with_the_first_output_of_who_asked() -> None:
    asked, other = text_sequence(prompt_logprobs=1), text_sequence()
    for seq in (asked, other):
        seq.prompt_logprobs = [None, TokenLogprobs(11, -0.5, {})]
    assert accept_tokens(asked, tokens(12)).prompt_logprobs == asked.prompt_logprobs
    assert accept_tokens(asked, tokens(13)).prompt_logprobs is None
    assert accept_tokens(other, tokens(12)).prompt_logprobs is None


def test_a_token_that_is_none_ends_its_sequence_and_says_why() -> None:
    seq = text_sequence()
    assert accept_tokens(seq, tokens(14)).error is None
    output = accept_tokens(seq, [SampledToken(15), SampledToken(-1, error="all NaN"), SampledToken(16)])
    assert (output.token_ids, output.text, output.finish_reason) == ([15], "f", "error")
    assert (output.error, output.failed_alone) == ("all NaN", True)
    assert seq.output_token_ids == [14, 15]


def test_a_healthy_output_has_failed_in_no_way() -> None:
    output = accept_tokens(text_sequence(), tokens(14))
    assert (output.error, output.failed_alone) == (None, False)


def test_a_token_that_the_tokenizer_cannot_read_is_an_error_of_its_sequence(caplog: pytest.LogCaptureFixture) -> None:
    seq = text_sequence()

    def push(token_id: int, *, check_stop: bool) -> str:  # noqa: ARG001
        raise ValueError("no such token")

    seq.text_stream.push = push  # type: ignore[method-assign]
    output = accept_tokens(seq, tokens(14, 15))
    assert (output.text, output.finish_reason, output.failed_alone) == ("", "error", True)
    assert output.error == "the tokenizer cannot read token 14"
    assert caplog.messages == ["token 14 of s cannot be read"]


def test_a_last_tokens_own_text_comes_before_what_was_held_back() -> None:
    seq = text_sequence(2, stop=["zz"])
    assert accept_tokens(seq, tokens(21)).text == "l"
    assert accept_tokens(seq, tokens(22)).text == "m"
