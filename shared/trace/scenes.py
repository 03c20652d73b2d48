"""The recordings that the page comes with, taken from real runs of the default model: `python -m shared.trace scenes`.

A scene is one or two runs of the same requests, engine against engine or setting against setting.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.cli_generate import encoder
from shared.config import EngineConfig
from shared.prompts import prompts_from_texts
from shared.registry import phase_by_number
from shared.request import Request, SamplingParams
from shared.trace.recording import recorded

FOLDER = Path(__file__).parents[1] / "server" / "page" / "recordings"
INDEX = "index.json"
QUESTIONS = (
    "Why is the sky blue?",
    "Give me three tips for a job interview.",
    "Write two sentences about the sea.",
    "Explain what a queue is to a child.",
)
HANDBOOK = (
    "You are the assistant of a mountain hut. Breakfast is from six to nine, dinner at half past six. Beds are given "
    "out in the order of arrival; the dormitory closes at ten. Boots stay in the hall. Water is from the spring and "
    "may be drunk. Dogs sleep in the shed. Whoever goes to the northern peak signs the book and leaves before seven, "
    "since the snow is soft in the afternoon. The path to the lake takes two hours, the path to the pass takes four. "
    "In a storm nobody leaves the house, and the bell is rung every quarter of an hour for those who are outside. "
    "Answer in one sentence. "
)
GUESTS = (
    "When is dinner?",
    "Where does my dog sleep?",
    "How long is the way to the lake?",
    "May I drink the water?",
    "When does the dormitory close?",
    "Where do I leave my boots?",
)
COPY = (
    "Repeat this text exactly: The red boat left the harbour at six. The blue boat left the harbour at seven. "
    "The green boat stayed in the harbour. At noon the red boat came back to the harbour, and at one o'clock the blue "
    "boat came back to the harbour."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One engine with its settings."""

    name: str
    phase: int
    title: str
    settings: dict[str, Any]

    @property
    def file(self) -> str:
        return f"{self.name}.jsonl"


@dataclass(frozen=True, slots=True)
class Scene:
    """The same prompts, which arrive together, on each of the runs."""

    name: str
    title: str
    text: str
    prompts: tuple[str, ...]
    max_tokens: int
    runs: tuple[Run, ...]
    is_known: bool = False  # the first prompt has been served before

    def entry(self) -> dict[str, Any]:
        """What the page's list says of it."""
        tracks = [{"file": run.file, "title": run.title} for run in self.runs]
        return {"name": self.name, "title": self.title, "text": self.text, "tracks": tracks}


SCENES = (
    Scene(
        "waits",
        "Four requests, two very different waits",
        "Four prompts arrive together, 50 tokens each. Phase 1 serves one after the other; phase 12 begins with all "
        "of them in its first steps. Watch when the fourth has its first token.",
        QUESTIONS,
        50,
        (
            Run("waits-phase01", 1, "Phase 1: one at a time", {}),
            Run("waits-phase12", 12, "Phase 12: the final engine", {"kv_num_blocks": 96}),
        ),
    ),
    Scene(
        "caching",
        "Prefix cache off and on",
        "One request has been served before; six more come with the same beginning. With the cache their common "
        "blocks are held by all of them, and only what differs is computed.",
        tuple(HANDBOOK + question for question in GUESTS),
        24,
        (
            Run("caching-off", 12, "Prefix cache off", {"enable_prefix_caching": False, "kv_num_blocks": 128}),
            Run("caching-on", 12, "Prefix cache on", {"kv_num_blocks": 128}),
        ),
        is_known=True,
    ),
    Scene(
        "speculation",
        "Speculation off and on",
        "An answer that repeats its prompt. With n-gram guesses a step verifies several tokens at once; a notch "
        "stands for each guess that was right. For answers that repeat nothing there is nothing to gain.",
        (COPY,),
        80,
        (
            Run("speculation-off", 12, "Speculation off", {"kv_num_blocks": 64}),
            Run("speculation-on", 12, "n-gram speculation", {"speculative_method": "ngram", "kv_num_blocks": 64}),
        ),
    ),
    Scene(
        "preemption",
        "Too little memory: swap and recompute",
        "Four requests in a pool that cannot hold all of them to their end. The newest gives way: its blocks are "
        "copied to host memory and back, or dropped and computed again.",
        QUESTIONS,
        64,
        (
            Run("preemption-swap", 9, "Phase 9, swap", {"kv_num_blocks": 16, "swap_num_blocks": 12}),
            Run("preemption-recompute", 9, "Phase 9, recompute", {"kv_num_blocks": 16, "preemption_mode": "recompute"}),
        ),
    ),
)


def record_scenes(names: list[str], folder: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Run scenes (all if none is named) and yield the files written; the list of scenes is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        if names and scene.name not in names:
            continue
        for run in scene.runs:
            say(f"{scene.title}: {run.title} ...")
            yield _record(scene, run, folder)
    there = [scene.entry() for scene in SCENES if all((folder / run.file).exists() for run in scene.runs)]
    (folder / INDEX).write_text(json.dumps(there, indent=1) + "\n", encoding="utf-8")
    yield folder / INDEX


def _record(scene: Scene, run: Run, folder: Path) -> Path:
    """Warm up with the first prompt, backwards where no cache may know it afterwards; then all of them at once."""
    from shared.model_loader import load_model  # imports torch

    loaded = load_model()
    phase = phase_by_number(run.phase)
    config = replace(EngineConfig(), **run.settings)
    engine = phase.build_engine()(loaded.model, config, loaded.tokenizer)
    prompts = prompts_from_texts(
        list(scene.prompts), encoder(loaded.tokenizer, chat=False, raw=False), {"max_tokens": scene.max_tokens}
    )
    requests = [replace(one.request, request_id=f"req-{number}") for number, one in enumerate(prompts, 1)]
    warm_up = requests[0].prompt_token_ids[:: 1 if scene.is_known else -1]
    try:
        engine.generate([Request(warm_up, SamplingParams(max_tokens=2), "warm-up")])
        with recorded(engine, folder / run.file, phase=run.phase, title=run.title, model=loaded.name):
            engine.generate(requests)
    finally:
        engine.close()
    return folder / run.file
