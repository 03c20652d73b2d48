"""The third baseline: transformers' own continuous batching, where the installed version has it.

It sizes its cache for a GPU it can ask; here it is given what the requests need, and 512 tokens a step as the phases
have on a CPU. A new manager for each run, so no prefix is left over from the last one.
"""

import importlib
import time
from collections.abc import Sequence as Seq
from typing import Any

import torch

from shared.bench.latency import Answer, Served
from shared.errors import SetupError
from shared.input_processor import eos_token_ids
from shared.reference import greedy_config
from shared.request import Request

PAGE_SIZE = 256  # tokens, its default
STEP_TOKENS = 512
PATIENCE_S = 600.0  # for the next finished request


class HFContinuous:
    """Raises SetupError where transformers has no such thing."""

    def __init__(self, model: Any, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.eos_token_ids = eos_token_ids(model)
        self._config_class = _config_class()
        if self._config_class is None or not hasattr(model, "init_continuous_batching"):
            raise SetupError("this version of transformers has no continuous batching: leave hf-continuous out")

    def serve(self, requests: Seq[Request]) -> Served:
        started = time.perf_counter()
        manager = self.model.init_continuous_batching(
            generation_config=greedy_config(max(request.params.max_tokens for request in requests)),
            continuous_batching_config=self._config(requests),
        )
        with torch.inference_mode():
            manager.start()
            try:
                names = [self._add(manager, request) for request in requests]
                outputs = self._collect(manager, len(requests))
                seconds = time.perf_counter() - started
            finally:
                manager.stop(block=True)
        return Served(seconds, [_answer(outputs[name], started) for name in names])

    def _config(self, requests: Seq[Request]) -> Any:
        pages = sum(-(-(len(r.prompt_token_ids) + r.params.max_tokens) // PAGE_SIZE) + 1 for r in requests)
        assert self._config_class is not None
        return self._config_class(
            page_size=PAGE_SIZE,
            num_blocks=pages,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=self.batch_size,
            use_cuda_graph=None if torch.cuda.is_available() else False,
        )

    def _add(self, manager: Any, request: Request) -> str:
        ends = [-1] if request.params.ignore_eos else sorted(self.eos_token_ids)
        return manager.add_request(
            list(request.prompt_token_ids),
            max_new_tokens=request.params.max_tokens,
            record_timestamps=True,
            eos_token_id=ends,
        )

    def _collect(self, manager: Any, num: int) -> dict[str, Any]:
        """Request id -> what came of it. Raises RuntimeError for one that failed, or when nothing comes."""
        outputs: dict[str, Any] = {}
        last = time.monotonic()
        while len(outputs) < num:
            output = manager.get_result(timeout=1.0)
            if output is None:
                if not manager.is_running() or time.monotonic() - last > PATIENCE_S:
                    raise RuntimeError("transformers' continuous batching stopped before all requests were done")
                continue
            if output.error is not None:
                raise RuntimeError(f"transformers' continuous batching: {output.error}")
            if output.is_finished():
                outputs[output.request_id] = output
                last = time.monotonic()
        return outputs


def _config_class() -> Any:
    module = importlib.import_module("transformers.generation.configuration_utils")
    return getattr(module, "ContinuousBatchingConfig", None)


def _answer(output: Any, started: float) -> Answer:
    return Answer(list(output.generated_tokens), [moment - started for moment in output.timestamps])
