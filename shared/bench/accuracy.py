"""`python -m shared.bench accuracy`: how close each dtype and forward pass comes to Hugging Face in fp32.

Teacher-forced: everyone reads the same text, window by window, and says at each position what comes next. The
engine's own forward pass is asked through a request for its prompt's logprobs: the logits are taken where it turns them
into logprobs.

Letters: T positions of a window, V vocabulary.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shared import prompt_logprobs as scoring
from shared.bench.build import load
from shared.bench.host import Provenance
from shared.bench.latency import percentile
from shared.bench.results import Figures, ModelRecord, Result, SystemResult, WorkloadRecord
from shared.bench.systems import ModelChoice
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.registry import newest_phase
from shared.request import Request, SamplingParams

TRANSFORMERS = "transformers"  # the model as it is, without an engine
WINDOW = 256  # tokens
NEAR_TIE = 0.1  # of two logits; rounding may flip what is closer together
TEXTS = ("README.md", "phase*/README.md", "shared/**/README.md")

Logits = Callable[[Seq[int]], torch.Tensor]  # a window's token ids -> [T, V] in fp32


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared. forward: TRANSFORMERS, or a value of EngineConfig.forward."""

    dtype: str
    forward: str

    @property
    def name(self) -> str:
        return f"{self.dtype}-{self.forward}"

    @property
    def label(self) -> str:
        if self.forward == TRANSFORMERS:
            return f"{self.dtype}, Hugging Face alone"
        return f"{self.dtype}, phase {newest_phase().number} with forward {self.forward}"


def run_accuracy(
    pairs: Seq[Pair], choice: ModelChoice, windows: Seq[list[int]], origin: Provenance, announce: Callable[[str], None]
) -> Result:
    """Measure every pair against the model in fp32."""
    if choice.num_threads is not None:
        torch.set_num_threads(choice.num_threads)
    announce("the reference: Hugging Face in float32")
    model, _, name = load(replace(choice, dtype="float32"))
    ask = of_transformers(model)
    reference = [ask(window) for window in windows]
    systems = []
    for pair in pairs:
        announce(pair.label)
        with logits_of(pair, choice) as ask:
            figures = compare(windows, reference, [ask(window) for window in windows])
        code = "shared/bench/accuracy.py" if pair.forward == TRANSFORMERS else f"{newest_phase().package}/engine.py"
        systems.append(SystemResult(pair.name, pair.label, [figures], code=[code]))
    num_positions = sum(len(window) for window in windows)
    sha256 = hashlib.sha256(str(list(windows)).encode()).hexdigest()
    return Result(
        "accuracy",
        origin,
        systems,
        planned_repeats=1,
        model=ModelRecord(name, "float32", str(model.device), torch.get_num_threads()),
        workload=WorkloadRecord("text", "prose of the repository", 0, 1.0, num_positions, sha256),
    )


def text_windows(choice: ModelChoice, repository: Path, num_positions: int) -> list[list[int]]:
    """At least so many positions of the repository's own prose. Raises SetupError where there is not so much."""
    paths = sorted(path for pattern in TEXTS for path in repository.glob(pattern))
    text = "\n\n".join(prose(path.read_text(encoding="utf-8")) for path in paths)
    token_ids = _token_ids(choice, text)
    num_windows = -(-num_positions // WINDOW)
    if len(token_ids) < num_windows * WINDOW:
        raise SetupError(f"--positions {num_positions}: the text has {len(token_ids) // WINDOW * WINDOW}")
    return [token_ids[WINDOW * number : WINDOW * (number + 1)] for number in range(num_windows)]


def prose(markdown: str) -> str:
    """A README's sentences: no code, tables, measured figures or links' addresses."""
    text = re.sub(r"<!-- bench:.*?<!-- /bench -->|```.*?```", "", markdown, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||<|!|    )", line)]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))


@contextmanager
def logits_of(pair: Pair, choice: ModelChoice) -> Iterator[Logits]:
    """A model of its own for the pair, as a function."""
    model, _, _ = load(replace(choice, dtype=pair.dtype))
    if pair.forward == TRANSFORMERS:
        yield of_transformers(model)
        return
    config = EngineConfig(forward=pair.forward, enable_prefix_caching=False, max_batch_size=1)
    engine = newest_phase().build_engine()(model, config)
    try:
        yield of_engine(engine)
    finally:
        engine.close()


def of_transformers(model: Any) -> Logits:
    @torch.inference_mode()
    def ask(token_ids: Seq[int]) -> torch.Tensor:
        row = torch.tensor([list(token_ids)], device=model.device)
        return model(row, use_cache=False).logits[0].float().cpu()

    return ask


def of_engine(engine: Any) -> Logits:
    """Through a request that wants its prompt's logprobs."""

    def ask(token_ids: Seq[int]) -> torch.Tensor:
        with tapped() as taken:
            params = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=0)
            engine.generate([Request(list(token_ids), params)])
        logits = torch.cat(taken)
        if len(logits) != len(token_ids):
            raise RuntimeError(f"the engine scored {len(logits)} of {len(token_ids)} positions")
        return logits

    return ask


@contextmanager
def tapped() -> Iterator[list[torch.Tensor]]:
    """The logits [T, V] of each chunk of a prompt, as engines hand them over to be made logprobs of."""
    original, taken = scoring.prompt_logprobs, list[torch.Tensor]()

    def tap(logits: torch.Tensor, token_ids: Seq[int], num_top: int) -> Any:
        taken.append(logits.float().cpu().clone())
        return original(logits, token_ids, num_top)

    vars(scoring)["prompt_logprobs"] = tap
    try:
        yield taken
    finally:
        vars(scoring)["prompt_logprobs"] = original


def compare(windows: Seq[list[int]], expected: Seq[torch.Tensor], got: Seq[torch.Tensor]) -> Figures:
    """Over all positions. KL is from the reference's distribution to the other's, in nats."""
    kl, agree, clear, losses = [], 0, 0, []
    for window, theirs, ours in zip(windows, expected, got):
        one, other = theirs.log_softmax(-1), ours.log_softmax(-1)  # [T, V]
        kl += (one.exp() * (one - other)).sum(-1).clamp_min(0).tolist()
        is_same = one.argmax(-1) == other.argmax(-1)  # [T]
        best = theirs.topk(2, dim=-1).values  # [T, 2]
        agree += int(is_same.sum())
        clear += int((~is_same & (best[:, 0] - best[:, 1] > NEAR_TIE)).sum())
        losses += (-other[:-1].gather(-1, torch.tensor(window[1:])[:, None])[:, 0]).tolist()
    return {
        "num_positions": len(kl),
        "num_top1": agree,
        "num_clear_differences": clear,
        "kl_mean": sum(kl) / len(kl),
        "kl_p99": percentile(kl, 99),
        "kl_max": max(kl),
        "loss_mean": sum(losses) / len(losses),
    }


def _token_ids(choice: ModelChoice, text: str) -> list[int]:
    if choice.is_tiny:
        return [3 + ord(letter) % 90 for letter in text]
    _, tokenizer, _ = load(choice, load_tokenizer=True)
    if tokenizer is None:
        raise SetupError("this model has no tokenizer, and the text has to be read")
    return list(tokenizer(text, verbose=False).input_ids)
