"""Parts of the server that need no socket."""

import asyncio
import json
import socket
import threading
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from shared.errors import SetupError
from shared.registry import newest_phase
from shared.request import Request, SamplingParams
from shared.server import create_app
from shared.server.background import background_server
from shared.server.generation import Generation
from shared.server.graceful_server import GracefulServer, bind
from shared.server.mailbox import Mailbox
from shared.server.token_offsets import OutputOffsets, prompt_offsets
from shared.server.token_texts import TokenTexts
from shared.server.tokenizer_thread import TokenizerThread
from shared.server.wire import sse_event
from tests.helpers import PA, assert_clean, letter_tokenizer, open_engine, slow_down
from tests.server_helpers import MODEL

NEWEST = newest_phase()


def test_nbk_01_a_server_can_be_started_inside_a_running_event_loop() -> None:
    async def main(app: Any) -> list[int]:
        statuses = []
        for _ in range(2):
            with background_server(app) as url:
                answer = httpx.post(f"{url}/generate", json={"prompt": PA, "max_tokens": 4})
                statuses.append(answer.status_code)
        return statuses

    before = set(threading.enumerate())
    with open_engine(NEWEST, tokenizer=letter_tokenizer(vocab_size=97)) as engine:
        app = create_app(engine, letter_tokenizer(vocab_size=97), MODEL)
        assert asyncio.run(main(app)) == [200, 200]
    assert set(threading.enumerate()) <= before, "no thread is left"


def test_a_first_token_is_not_held_back_by_the_kernel() -> None:
    """asyncio turns Nagle's algorithm off for sockets that name their protocol, and for no others."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "256.1.1.1", ""])
def test_a_host_that_is_no_name_is_told_in_a_line(host: str) -> None:
    with pytest.raises(SetupError, match=r"cannot serve on .*; check --host and --port"):
        bind(host, 0)


def test_of_two_that_bind_a_port_the_second_to_listen_is_told() -> None:
    with open_engine(NEWEST) as engine, bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        app = create_app(engine, None, MODEL)
        server = GracefulServer(app, bind("127.0.0.1", port), 0, on_ready=print)
        first.listen()
        with pytest.raises(SetupError, match=f"port {port}: the port is taken"):
            server.run()


# -- mailbox ------------------------------------------------------------------------------------------


def test_the_mailbox_keeps_the_order_of_posting_from_another_thread() -> None:
    async def main() -> list[int]:
        received: list[Any] = []
        mailbox = Mailbox()
        mailbox.open()
        done = asyncio.Event()

        def post() -> None:
            for number in range(1000):
                mailbox.post(received.append, number)  # type: ignore[arg-type]
            mailbox.post(lambda _: done.set(), None)  # type: ignore[arg-type]

        threading.Thread(target=post).start()
        await asyncio.wait_for(done.wait(), 5)
        return received

    assert asyncio.run(main()) == list(range(1000))


def test_the_mailbox_of_a_loop_that_is_gone_swallows_what_comes() -> None:
    mailbox = Mailbox()

    async def main() -> None:
        mailbox.open()

    asyncio.run(main())
    mailbox.post(print, None)  # type: ignore[arg-type]


# -- the wire -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_an_event_is_one_line_for_every_reader_of_lines(end: str) -> None:
    """Clients that split at whatever Unicode calls a line end would get half a JSON text."""
    text = f"a{end}b \N{SNOWMAN}"
    line, *empty = sse_event({"text": text, f"a{end}": 1}).decode().splitlines()
    assert not any(empty)
    assert json.loads(line.removeprefix("data: ")) == {"text": text, f"a{end}": 1}
    assert "\N{SNOWMAN}" in line


# -- generation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["before", "at the door", "inside"])
def test_a_generation_that_is_closed_while_it_submits_leaves_nothing(closed: str) -> None:
    """The client may hang up while the tokenizer's thread hands over the prompts."""

    async def main(engine: Any) -> None:
        mailbox = Mailbox()
        mailbox.open()
        generation = Generation(engine, mailbox, lambda _: None)
        submit_all = engine.submit_all

        def submit_and_close(requests: list[Request], delivers: Any) -> list[str]:
            if closed == "at the door":
                generation.close()
            names = submit_all(requests, delivers)
            assert engine.stats().num_requests == 3
            generation.close()
            return names  # type: ignore[no-any-return]

        engine.submit_all = submit_and_close
        if closed == "before":
            generation.close()
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        await asyncio.to_thread(generation.submit, [Request(PA, params) for _ in range(3)])

    with open_engine(NEWEST) as engine:
        slow_down(engine)
        asyncio.run(main(engine))
        assert_clean(engine)


# -- tokens -------------------------------------------------------------------------------------------


def sentencepiece_like() -> PreTrainedTokenizerFast:
    vocab = ["<unk>", "</s>", "▁Paris", "é", "<0xF0>", "s"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def byte_level() -> PreTrainedTokenizerFast:
    vocab = ["<s>", "ĠParis", "ðŁĺ", "Ģ", "Ċ"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(vocab)}, unk_token="<s>"))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.mark.parametrize(
    ("tokenizer", "texts"),
    [
        (sentencepiece_like(), ["<unk>", "</s>", " Paris", "é", "bytes:\\xf0", "s"]),
        (byte_level(), ["<s>", " Paris", "bytes:\\xf0\\x9f\\x98", "bytes:\\x80", "\n"]),
        (letter_tokenizer(), ["<0>", "<1>"]),
        (None, ["token_id:0", "token_id:1"]),
    ],
    ids=["sentencepiece", "byte level", "words", "none"],
)
def test_a_token_reads_as_its_own_bytes(tokenizer: Any, texts: list[str]) -> None:
    shown = TokenTexts(tokenizer)
    assert [shown.text_of(token_id) for token_id in range(len(texts))] == texts


def test_a_model_may_have_more_ids_than_its_tokenizer() -> None:
    assert TokenTexts(letter_tokenizer()).text_of(1000) == "token_id:1000"


def output_offsets(tokenizer: Any, token_ids: list[int], prompt: list[int], start: int = 0) -> list[int]:
    """One by one, as a stream asks for them; at once, they are the same."""
    one_by_one, at_once = (OutputOffsets(TokenTexts(tokenizer), prompt, start) for _ in range(2))
    offsets = [offset for token_id in token_ids for offset in one_by_one.of([token_id])]
    assert offsets == at_once.of(token_ids)
    return offsets


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "token_ids", "offsets"),
    [
        (byte_level(), [1], [1, 2, 3, 0, 1, 4], [0, 6, 6, 7, 7, 13]),
        (byte_level(), [1], [3, 1, 2, 1, 1], [0, 1, 7, 8, 14]),  # what is no UTF-8 reads as U+FFFD
        (byte_level(), [1], [1, 2, 0, 3], [0, 6, 6, 6]),  # a special token in the middle of a character
        (byte_level(), [1, 2], [3, 4], [0, 1]),  # the character was begun by the prompt
        (sentencepiece_like(), [2], [2, 3, 1, 5, 2], [0, 6, 7, 7, 8]),
        (sentencepiece_like(), [1], [2, 5, 2], [0, 5, 6]),  # the first space of a text is dropped
        (letter_tokenizer(), [10], [11, 5, 1, 12], [0, 1, 4, 4]),  # <5> is a word like any other
        (letter_tokenizer(), [10], [1000, 11, 12], [0, 0, 1]),
        (None, [5], [8, 9], [0, 0]),
    ],
)
def test_where_the_tokens_of_an_output_begin(
    tokenizer: Any, prompt: list[int], token_ids: list[int], offsets: list[int]
) -> None:
    assert output_offsets(tokenizer, token_ids, prompt) == offsets
    assert output_offsets(tokenizer, token_ids, prompt, start=7) == [7 + offset for offset in offsets]


@pytest.mark.parametrize(
    ("tokenizer", "token_ids", "text", "offsets"),
    [
        (byte_level(), [0, 1, 2, 3, 2, 3, 4], " Paris😀😀\n", [0, 0, 6, 6, 7, 7, 8]),
        (byte_level(), [0, 1, 0, 4], " Paris<s>\n", [0, 0, 6, 9]),  # the second one was written by the client
        (byte_level(), [3, 1, 4], "\ufffd Paris\n", [0, 1, 7]),  # cut to its last tokens, in mid-character
        (sentencepiece_like(), [2, 3, 2, 5], "Parisé Pariss", [0, 5, 6, 12]),
        (sentencepiece_like(), [2, 2], "PARIS PARIS", [0, 6]),
        (letter_tokenizer(), [1, 10, 11], "ab", [0, 0, 1]),
        (letter_tokenizer(), [1, 10, 11], "<1>ab", [0, 3, 4]),
        (None, [5, 6], "", [0, 0]),
    ],
)
def test_where_the_tokens_of_a_prompt_begin(
    tokenizer: Any, token_ids: list[int], text: str, offsets: list[int]
) -> None:
    assert prompt_offsets(TokenTexts(tokenizer), token_ids, text) == offsets


def test_a_special_token_needs_no_name_to_be_left_out() -> None:
    tokenizer = letter_tokenizer()
    tokenizer.backend_tokenizer.add_special_tokens(["<5>"])
    assert output_offsets(tokenizer, [11, 5, 12], [10]) == [0, 1, 1]


def test_the_tokenizers_thread_is_one_and_works_on_a_copy() -> None:
    tokenizer = letter_tokenizer()
    thread = TokenizerThread(tokenizer)
    assert thread.tokenizer is not tokenizer

    async def main() -> set[int]:
        idents = await asyncio.gather(*(thread.run(threading.get_ident) for _ in range(9)))
        thread.close()
        return {*idents, await thread.run(threading.get_ident)}

    assert threading.get_ident() not in asyncio.run(main())
    thread.close()
