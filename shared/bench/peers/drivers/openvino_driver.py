"""OpenVINO GenAI's continuous batching pipeline, driven step by step."""

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai

from shared.bench.peers.drivers.loop import Options, Transcript, main

PRECISION = {"float32": "f32", "bfloat16": "bf16"}  # left to itself it computes in bf16 where it can, with u8 for K/V
CACHE_GB = 2


class OpenVINO:
    packages = ("openvino-genai", "openvino", "optimum-intel")

    def __init__(self, options: Options) -> None:
        precision = PRECISION[options.dtype]
        self._scheduler: Any = openvino_genai.SchedulerConfig()
        self._scheduler.cache_size = CACHE_GB
        self._properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": options.num_threads,
        }
        self._model = options.model
        self._num_requests = 0
        self.settings = {
            "max_batch_size": self._scheduler.max_num_seqs,
            "prefill_budget_tokens": self._scheduler.max_num_batched_tokens,
        }
        self.implementation = {name.lower(): str(value) for name, value in self._properties.items()}
        self._pipeline = self._make_pipeline()

    def _make_pipeline(self) -> Any:
        return openvino_genai.ContinuousBatchingPipeline(self._model, self._scheduler, "CPU", self._properties)

    def forget(self) -> None:
        pass

    def serve(self, transcript: Transcript) -> None:
        handles = []
        for job in transcript.jobs:
            self._num_requests += 1
            config = openvino_genai.GenerationConfig(max_new_tokens=job.max_tokens, ignore_eos=True, do_sample=False)
            prompt = ov.Tensor(np.array([job.prompt_token_ids], dtype=np.int64))  # [1, T]
            handles.append(self._pipeline.add_request(self._num_requests, prompt, config))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        transcript.note(index, list(output.generated_ids))


if __name__ == "__main__":
    main(OpenVINO)
