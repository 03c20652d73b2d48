"""From a job to its answer: what all generating routes do, whatever their JSON looks like.

body --route--> Job --tokenizer's thread--> Requests --> engine
                                                           | step outputs, by the mailbox
client <-- EventStream | ApiResponse <-- AnswerFormat <----+
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import Response

from shared.engine import Engine
from shared.errors import EngineError, InvalidRequest
from shared.output import StepOutput
from shared.request import Request, SamplingParams
from shared.server.answer import Answer
from shared.server.answer_format import AnswerFormat
from shared.server.api_error import ApiError, internal_error, unavailable
from shared.server.event_stream import EventStream
from shared.server.generation import Generation
from shared.server.health import Health
from shared.server.live_feed import LiveFeed
from shared.server.mailbox import Mailbox
from shared.server.metrics import ServerMetrics
from shared.server.prompt_input import Encode, EncodedPrompt, with_text
from shared.server.request_log import record_of
from shared.server.settings import ServerSettings
from shared.server.token_texts import TokenTexts
from shared.server.tokenizer_thread import TokenizerThread
from shared.server.until_disconnect import until_disconnect
from shared.server.wire import DONE_EVENT, ApiResponse, sse_event

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a route has made of a body. id_prefix: of the answer's id. is_echoed: the prompt's text is needed.

    num_prompts: how many `encode` will give. has_own_length: params.max_tokens is the client's own; if not,
    it is cut to what the engine has room for.
    """

    id_prefix: str
    encode: Encode
    params: SamplingParams
    format: AnswerFormat
    is_streamed: bool
    has_own_length: bool
    num_prompts: int = 1
    is_echoed: bool = False
    cache_salt: str | None = None


class Service:
    """Owns what requests share: the engine's mailbox, the tokenizer's thread, health, metrics, who is being served."""

    def __init__(self, engine: Engine, tokenizer: Any, model_name: str, settings: ServerSettings) -> None:
        self.model_name = model_name.encode(errors="replace").decode()  # a folder's name need not be UTF-8
        self.settings = settings
        self.tokenizer = TokenizerThread(tokenizer)
        self.texts = TokenTexts(self.tokenizer.tokenizer)
        self.metrics = ServerMetrics(engine, settings)
        self._mailbox = Mailbox()
        self.health = Health(engine, self._mailbox, self.tokenizer.run, settings.stuck_step_s)
        self.engine = engine
        self.live = LiveFeed(engine, title=settings.title, model=self.model_name)
        self._open: set[Generation] = set()

    def open(self) -> None:
        """Begin to serve; the engine's thread, where it has one, stays from now on. After `close`, serve again."""
        self.health.is_draining = False
        self.metrics.open()
        if (thread := getattr(self.engine, "thread", None)) is not None:
            thread.keep_running()

    async def answer(self, http: HttpRequest, job: Job) -> Response:
        """Raises ApiError, InvalidRequest, QueueFull or EngineError for what is not served; ClientGone.

        A stream is begun with the first output, not before: until then an error can have its own status.
        """
        self.health.check()
        self._mailbox.open()
        with ExitStack() as ending:
            generation = Generation(self.engine, self._mailbox, self._observe)
            answer = Answer.with_prefix(job.id_prefix)
            ending.callback(self._end, http, generation, answer)
            self._open.add(generation)
            await until_disconnect(http, self._begin(generation, answer, job))
            if job.is_streamed:
                return EventStream(self._events(http, generation, answer, job), on_end=ending.pop_all().close)
            return ApiResponse(await until_disconnect(http, self._whole(generation, answer, job)))

    async def send(self, job: Job) -> tuple[str, Generation]:
        """Have the engine begin a job; its id, and what comes of it. Raises as `answer` does."""
        self.health.check()
        self._mailbox.open()
        generation = Generation(self.engine, self._mailbox, self._observe)
        answer = Answer.with_prefix(job.id_prefix)
        try:
            await self._hand_over(generation, answer, job)
        except BaseException:
            generation.close()
            raise
        return answer.answer_id, generation

    def drain(self, grace_s: float) -> None:
        """Take no new requests, and give up on those that still run in `grace_s` seconds."""
        self.health.is_draining = True
        self.live.close()  # nor may a pause hold up the end
        asyncio.get_running_loop().call_later(grace_s, self._give_up)

    def close(self) -> None:
        """Let go of the engine, which goes on living."""
        self._give_up()
        self.live.close()
        self.health.close()
        self.metrics.close()
        self.tokenizer.close()

    async def _begin(self, generation: Generation, answer: Answer, job: Job) -> None:
        """Until the engine's first output."""
        await self._hand_over(generation, answer, job)
        await generation.wait_for_first()

    async def _hand_over(self, generation: Generation, answer: Answer, job: Job) -> None:
        """Until the engine has the job. It is counted first: the tokenizer's thread is everybody's."""
        self._check_size(job.num_prompts, job.params.n)
        try:
            prompts = await self.tokenizer.run(self._submit, generation, answer.answer_id, job)
        except EngineError as error:  # it takes nothing any more
            self.health.fail(str(error))
            raise
        answer.expect(prompts, job.params.n)

    def _submit(self, generation: Generation, answer_id: str, job: Job) -> list[EncodedPrompt]:
        """On the tokenizer's thread."""
        prompts = job.encode(self.tokenizer.tokenizer)
        names = [answer_id if len(prompts) == 1 else f"{answer_id}-{number}" for number in range(len(prompts))]
        generation.submit(
            [
                Request(prompt.token_ids, self._params(job, prompt), name, job.cache_salt)
                for prompt, name in zip(prompts, names)
            ]
        )
        return [with_text(self.tokenizer.tokenizer, prompt) for prompt in prompts] if job.is_echoed else prompts

    def _params(self, job: Job, prompt: EncodedPrompt) -> SamplingParams:
        """A length that no client asked for is no reason to refuse one."""
        params, room = job.params, self.engine.longest_sequence - len(prompt.token_ids)
        if job.has_own_length or params.max_tokens <= room:
            return params
        return replace(params, max_tokens=max(1, room, params.min_tokens))

    def _check_size(self, num_prompts: int, n: int) -> None:
        """What could never run is refused, with no "try again later" to it. Raises InvalidRequest."""
        most = self.settings.max_sequences
        if num_prompts * n > most:
            what = f"{num_prompts} prompts with n={n} are {num_prompts * n} completions"
            raise InvalidRequest("prompt" if num_prompts > 1 else "n", f"{what}; one request may ask for {most}")
        waiting = getattr(getattr(self.engine, "intake", None), "capacity", num_prompts)  # phases 1 and 2: no limit
        if num_prompts > waiting:
            what = f"{num_prompts} prompts, but at most {waiting} requests may wait"
            raise InvalidRequest("prompt", f"{what}; send fewer at once, or raise the server's queue_capacity")

    async def _whole(self, generation: Generation, answer: Answer, job: Job) -> dict[str, Any]:
        async for number, output in generation:
            answer.add(number, output)
        return await self._written(job, job.format.whole, answer)

    async def _events(
        self, http: HttpRequest, generation: Generation, answer: Answer, job: Job
    ) -> AsyncIterator[bytes]:
        try:
            async for number, output in generation:
                choice = answer.add(number, output)
                yield sse_event(await self._written(job, job.format.piece, answer, choice, output))
            for piece in job.format.last_pieces(answer):
                yield sse_event(piece)
            yield DONE_EVENT
        except ApiError as error:
            record_of(http).reason = error.code
            yield sse_event(error.body())
        except Exception as error:
            log.exception("stream %s", answer.answer_id)
            record_of(http).reason = type(error).__name__
            yield sse_event(internal_error().body())

    async def _written(self, job: Job, write: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
        return await self.tokenizer.run(write, *args) if job.format.reads_tokens else write(*args)

    def _observe(self, output: StepOutput) -> None:
        self.health.saw(output)
        self.metrics.saw(output)

    def _end(self, http: HttpRequest, generation: Generation, answer: Answer) -> None:
        self._open.discard(generation)
        generation.close()
        record_of(http).note(answer)

    def _give_up(self) -> None:
        for generation in list(self._open):
            generation.fail(unavailable("the server shut down before the answer was complete", 5.0, "shutting_down"))
