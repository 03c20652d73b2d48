"""Parts of the server that need no socket."""

import asyncio
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
from shared.server.token_texts import TokenTexts
from shared.server.tokenizer_thread import TokenizerThread
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


# -- generation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed_before", [0, 1, 2])
def test_a_generation_that_is_closed_while_it_submits_leaves_nothing(closed_before: int) -> None:
    """The client may hang up while the tokenizer's thread hands over the prompts."""

    async def main(engine: Any) -> None:
        mailbox = Mailbox()
        mailbox.open()
        generation = Generation(engine, mailbox, lambda _: None)
        submit, num_submitted = engine.submit, 0

        def submit_and_close(request: Request, deliver: Any) -> str:
            nonlocal num_submitted
            if num_submitted == closed_before:
                generation.close()
            num_submitted += 1
            return submit(request, deliver)

        engine.submit = submit_and_close
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        await asyncio.to_thread(generation.submit, [Request(PA, params) for _ in range(3)])
        assert num_submitted == closed_before + 1

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
