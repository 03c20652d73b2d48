# %% [markdown]
# # All phases, side by side
#
# The same burst through all eight engines: the same tokens, and another amount of work and of waiting.
# Counted in forward passes, so that the numbers are the same on every machine.
#
# *Run the cells in order. The model is a tiny one with random weights: structure is the point here, not text.*

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("phase12_prefix_and_spec") is None:  # on a hosted service: install from the repository
    where = os.environ.get("PAGESERVE_REPOSITORY", "..")  # its git address, or the clone that this notebook is in
    assert "://" in where or os.path.isdir(f"{where}/shared"), "set os.environ['PAGESERVE_REPOSITORY'] = 'https://…'"
    package = f"git+{where}" if "://" in where else where
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)

MODEL = "tiny"  # or "default" for a real one, or what --model takes

# %%
from shared.pictures import bars, timeline_picture
from shared.registry import PHASES
from shared.workshop.lab import ask, fresh_model, oracle, play, predicted, seal

SYSTEM = [(5 * i * i + i) % 89 for i in range(32)]
burst = [ask([*SYSTEM, 60 + n, 2 * n, n], 4 + 4 * (n % 4)) for n in range(8)]
MEMORY = {"kv_block_size": 4, "kv_num_blocks": 80}
SETTINGS = MEMORY | {"max_batch_size": 8, "prefill_budget_tokens": 48, "prefill_chunk_size": 16}

# %% [markdown]
# ## Predict
# Eight requests of 35 prompt tokens, 80 output tokens in all. In which phase does the number of forward passes fall for
# the first time?

# %%
my_answer = None
print(predicted(my_answer, "2c624232"))

# %%
runs = {phase.number: play(phase.number, burst, MODEL, **SETTINGS) for phase in PHASES}
expected = oracle(fresh_model(MODEL), burst)
for number, run in runs.items():
    assert run.tokens == expected, f"phase {number}"
print("all eight phases say what generate() says, token for token")

# %% [markdown]
# ## Work: forward passes, each of which reads all weights

# %%
passes = {number: run.num_passes for number, run in runs.items()}
assert seal(next(n for n, count in passes.items() if count < passes[1])) == "2c624232"
bars({f"phase {number}": count for number, count in passes.items()}, "forward passes")

# %% [markdown]
# ## Waiting: forward passes until the last request's first token

# %%
bars(
    {f"phase {n}": max(run.passes_to_first_token().values()) for n, run in runs.items()},
    "passes to the last first token",
)

# %% [markdown]
# ## Prompt tokens that were run, for 8 x 35 that were sent

# %%
bars({f"phase {n}": sum(e.num_tokens for e in run.events if e.kind == "chunk") for n, run in runs.items()}, "tokens")

# %% [markdown]
# ## First phase, last phase
# Times of one run on one machine, so an impression; the order of things is the point.

# %%
timeline_picture(runs[1].events)

# %%
timeline_picture(runs[12].events)

# %% [markdown]
# ## Break it on purpose
# Less memory: only the phases from 6 on know of it, and only those from 9 on run more than fits to the end.

# %%
for number in (6, 8, 9, 12):
    run = play(number, burst, MODEL, **SETTINGS | {"kv_num_blocks": 26})
    assert run.tokens == expected
    print(f"phase {number:>2}: {run.num_steps} steps, {run.stats.num_preemptions or 0} preemptions")

# %% [markdown]
# ## Exercise
# Change one thing of the burst (lengths, a shared beginning, their number) and say beforehand which bars move. Numbers
# with seconds, machine and commit: `shared/bench/README.md`.
