"""The baselines: Hugging Face `generate()`, one request at a time or in static batches.

They load their weights as the engines do, are pinned to greedy decoding with forced lengths, and tell
when each token came out. Letters: B requests of a batch, T tokens of its longest prompt.
"""

import time
from collections.abc import Sequence as Seq
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from shared.bench.latency import Answer, Served
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

    def serve(self, requests: Seq[Request]) -> Served:
        started = time.perf_counter()
        answers: list[Answer] = []
        for first in range(0, len(requests), self.batch_size):
            answers += self._run(requests[first : first + self.batch_size], started)
        return Served(time.perf_counter() - started, answers)

    def _run(self, batch: Seq[Request], started: float) -> list[Answer]:
        input_ids, attention_mask = left_padded([request.prompt_token_ids for request in batch])
        device, clock = self.model.device, TokenClock(started)
        self.model.generation_config = greedy_config(max(request.params.max_tokens for request in batch))
        with torch.inference_mode():
            output = self.model.generate(
                input_ids.to(device), attention_mask=attention_mask.to(device), streamer=clock
            )  # [B, T + new]
        rows = output[:, input_ids.shape[1] :].tolist()
        wanted = [request.params.max_tokens for request in batch]
        return [Answer(row[:num], clock.times[:num]) for row, num in zip(rows, wanted)]


class HFReference:
    """The tokens that every system should give: each request alone. Nothing is timed."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def serve(self, requests: Seq[Request]) -> Served:
        outputs = [greedy_reference(self.model, r.prompt_token_ids, r.params.max_tokens) for r in requests]
        return Served(0.0, [Answer(token_ids, []) for token_ids in outputs])


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
