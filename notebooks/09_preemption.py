# %% [markdown]
# # 9 · Preemption
#
# Phases 6 and 8 admit a request only if it could grow to its very end beside everybody else. Most answers
# stop long before, so promised blocks stand idle. Here admission asks for what is needed now; when a sequence
# cannot grow, the newest gives its blocks back.
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
from shared.pictures import bars, block_map
from shared.workshop.lab import PROMPTS, ask, fresh_model, oracle, play, predicted, seal

requests = [ask(PROMPTS[0], 20), ask(PROMPTS[0][::-1], 20), ask(PROMPTS[2], 20)]
POOL = {"kv_block_size": 4, "kv_num_blocks": 12}

# %% [markdown]
# ## Predict
# 12 blocks of 4 tokens. Three requests of 8, 8 and 6 prompt tokens want 20 tokens each. How many of them run in the
# first step of phase 8, and how many in the first step of phase 9? (Two numbers; count blocks, and leave one free.)

# %%
my_answer = [None, None]
print(predicted(my_answer, "4e397001"))

# %%
promised, on_demand = play(8, requests, MODEL, **POOL), play(9, requests, MODEL, **POOL)
print(promised.records[0].text, on_demand.records[0].text, sep="\n\n")
first_steps = [len(run.records[0].rows) for run in (promised, on_demand)]
assert seal(first_steps) == "4e397001"

# %% [markdown]
# ## The picture: who holds which block
# Watch the newest give way, and come back when there is room.

# %%
block_map(on_demand.records, num_blocks=12)

# %%
for event in on_demand.events:
    if event.kind in ("preempted", "swapped_in"):
        print(f"step {event.step:>2}: {event.request_id} {event.kind} {event.detail}")

# %% [markdown]
# ## Nothing is lost, nothing is doubled

# %%
expected = oracle(fresh_model(MODEL), requests)
assert promised.tokens == on_demand.tokens == expected
assert on_demand.stats.num_preemptions > 0
print("equal to generate() under", on_demand.stats.num_preemptions, "preemptions")

# %% [markdown]
# ## Measure against phase 8
# Steps until all three are done: more run at once, so the weights are read less often.

# %%
bars({"phase 8": promised.num_steps, "phase 9": on_demand.num_steps}, "steps for the same tokens")

# %% [markdown]
# ## Swap or recompute
# A victim's K/V is copied to host memory, or dropped and computed again: prompt *and* what was generated. The answer is
# the same; the price is another.

# %%
again = play(9, requests, MODEL, preemption_mode="recompute", **POOL)
assert again.tokens == expected
bars(
    {"swap": on_demand.stats.num_recomputed_tokens, "recompute": again.stats.num_recomputed_tokens}, "tokens run twice"
)

# %% [markdown]
# ## Break it on purpose
# The least memory with which they can run at all: one sequence at a time, and each of the three still finishes.

# %%
tight = play(9, requests, MODEL, kv_block_size=4, kv_num_blocks=7)
assert tight.tokens == expected
print(f"7 blocks: {tight.num_steps} steps, {tight.stats.num_preemptions} preemptions, the same tokens")

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 9 --out ../my-phase9`: who gives way (9.1), what becomes of its K/V (9.2).
# Labs: `mutate 5`, `mutate 11`, `mutate 14`. What breaks next: every prompt is computed from its first token
# ([phase 12](12_prefix_and_spec.ipynb)); first two interludes, on [metrics](10_metrics.ipynb) and
# [load](11_honest_load.ipynb).
