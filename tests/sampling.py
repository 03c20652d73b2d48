"""What the tests of sampling share: sequences out of nothing, logits out of a seed, values for every field."""

from typing import Any

import torch

from shared.request import Request, SamplingParams
from shared.sequence import Sequence
from tests.helpers import PA, T0_OUTPUTS

VOCAB = 97  # of T0
GREEDY_PA = T0_OUTPUTS["PA"]

FIELDS: dict[str, list[Any]] = {  # field -> values to try
    "temperature": [0.01, 0.3, 0.8, 1.0, 1.7, 50.0],
    "top_k": [-1, 0, 1, 2, 7, 50, 96, 97, 98, 10**7],
    "top_p": [0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0],
    "min_p": [0.0, 1e-3, 0.05, 0.5, 1.0],
    "repetition_penalty": [0.5, 1.0, 1.3, 10.0],
    "presence_penalty": [-2.0, 0.0, 0.7],
    "frequency_penalty": [-0.4, 0.0, 1.1],
    "logit_bias": [None, {}, {3: 5.0, 90: -100.0}, {0: 100.0}],
    "min_tokens": [0, 1, 5, 6],
    "stop_token_ids": [(), (7, 8)],
}
OUTPUT = [8, 62, 8, 18, 8]


def make_seq(prompt=PA, output=(), *, seed=1, index=0, eos=(2,), **params: Any) -> Sequence:
    request = Request(prompt, SamplingParams(**{"max_tokens": 64} | params))
    return Sequence(
        request_id="r",
        index=index,
        request=request,
        token_ids=[*prompt, *output],
        seed=seed,
        eos_token_ids=frozenset(eos),
        max_num_tokens=512,
    )


def random_logits(num_rows=1, vocab=VOCAB, seed=0, scale=3.0, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(num_rows, vocab, generator=generator, dtype=torch.float64) * scale).to(dtype)
