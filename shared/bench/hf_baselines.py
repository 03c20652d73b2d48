"""The baselines: Hugging Face `generate()`, one request at a time or in static batches.

They load their weights as the engines do, are pinned to greedy decoding with forced lengths, and tell
when each token came out. Letters: B requests of a batch, T tokens of its longest prompt.
"""

import time
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from shared.bench.latency import Answer, Served
from shared.input_processor import eos_token_ids
from shared.prompt_encoding import encode_chat, encode_text
from shared.reference import greedy_config, greedy_reference
from shared.request import Request

PAD = 0  # what stands there does not matter: it is masked


class HFBatches:
    """Batches of `batch_size` requests, in order; each one runs until its longest output is done.

    Tokens beyond what a request asked for are computed, as static batching has to, and not counted.
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.eos_token_ids = eos_token_ids(model)  # `generate` is given a configuration of our own, which has none

    def serve(self, requests: Seq[Request]) -> Served:
        started = time.perf_counter()
        answers: list[Answer] = []
        for first in range(0, len(requests), self.batch_size):
            answers += self._run(requests[first : first + self.batch_size], started)
        return Served(time.perf_counter() - started, answers)

    def _run(self, batch: Seq[Request], started: float) -> list[Answer]:
        input_ids, attention_mask = left_padded([request.prompt_token_ids for request in batch])
        device, clock = self.model.device, TokenClock(started)
        ends = self.eos_token_ids if _may_end(batch) else frozenset()
        self.model.generation_config = greedy_config(max(request.params.max_tokens for request in batch), ends)
        with torch.inference_mode():
            output = self.model.generate(
                input_ids.to(device), attention_mask=attention_mask.to(device), streamer=clock
            )  # [B, T + new]
        rows = output[:, input_ids.shape[1] :].tolist()
        kept = [until_end(row[: request.params.max_tokens], ends) for row, request in zip(rows, batch)]
        return [Answer(token_ids, clock.times[: len(token_ids)]) for token_ids in kept]


class HFReference:
    """The tokens that every system should give: each request alone. Nothing is timed."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids(model)

    def serve(self, requests: Seq[Request]) -> Served:
        outputs = [
            greedy_reference(
                self.model, r.prompt_token_ids, r.params.max_tokens, () if r.params.ignore_eos else self.eos_token_ids
            )
            for r in requests
        ]
        return Served(0.0, [Answer(token_ids, []) for token_ids in outputs])

    def encode(self, texts: Seq[str]) -> list[list[int]]:
        """Texts as a user's turn, or plain for a model without a chat template.

        A tiny model has no tokenizer: each character then becomes a token id of its own, so that the command can be
        tried.
        """
        if self.tokenizer is None:
            num_ids = self.model.get_input_embeddings().num_embeddings
            return [[3 + ord(character) % (num_ids - 3) for character in text] for text in texts]
        if getattr(self.tokenizer, "chat_template", None):
            return [encode_chat(self.tokenizer, [{"role": "user", "content": text}]) for text in texts]
        return [encode_text(self.tokenizer, text) for text in texts]


def _may_end(requests: Seq[Request]) -> bool:
    """Before their `max_tokens`; all of a batch, or none."""
    kinds = {request.params.ignore_eos for request in requests}
    if len(kinds) > 1:
        raise ValueError("a batch mixes forced outputs with ones that end at EOS")
    return kinds == {False}


def until_end(token_ids: list[int], ends: Collection[int]) -> list[int]:
    """Up to the first of the ids that end an output, itself included."""
    for position, token_id in enumerate(token_ids):
        if token_id in ends:
            return token_ids[: position + 1]
    return token_ids


class TokenClock(BaseStreamer):
    """Notes when the tokens of each step came out, in seconds since `started`."""

    def __init__(self, started: float) -> None:
        self.times: list[float] = []
        self._started = started
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002
        """`generate()` puts the prompts first, then the tokens of one step after the other."""
        if self._has_prompt:
            self.times.append(time.perf_counter() - self._started)
        self._has_prompt = True

    def end(self) -> None:
        pass


def left_padded(prompts: Seq[Seq[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both [B, T]: every prompt ends in the last column."""
    width = max(map(len, prompts))
    input_ids = torch.tensor([[PAD] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    attention_mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return input_ids, attention_mask
