# %% [markdown]
# # 8 · Paged attention, one pass a step
#
# Batching in phases 2 to 6 is a promise: a step with eight sequences runs the model eight times. Everything
# in a transformer but attention treats tokens one by one, so all of them can stand in one row; only attention
# has to know who is who.
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
import torch

from phase08_paged_attention.packed_batch import pack
from shared.pictures import bars
from shared.step_record import watch
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, play, predicted, seal

requests = [ask(PROMPTS[0], 16), ask(PROMPTS[1], 16), ask(PROMPTS[2], 16), ask(PROMPTS[3], 16)]

# %% [markdown]
# ## Predict
# Four requests of 16 tokens each, all running together from the first step on. How many forward passes does phase 6
# make, and how many phase 8? (Two numbers.)

# %%
my_answer = [None, None]
print(predicted(my_answer, "4095de5b"))

# %%
ledger, paged = play(6, requests, MODEL), play(8, requests, MODEL)
assert seal([ledger.num_passes, paged.num_passes]) == "4095de5b"
assert ledger.tokens == paged.tokens == oracle(fresh_model(MODEL), requests)
bars({"phase 6": ledger.num_passes, "phase 8": paged.num_passes}, "forward passes for the same 64 tokens")

# %% [markdown]
# ## Run one step, and look at what is packed
# A decode, and a prompt that joins: two plans become one row of tokens.

# %%
engine = build(8, fresh_model(MODEL), kv_block_size=4, kv_num_blocks=32)
records = watch(engine)
engine.add_request(requests[0])
engine.step()
engine.add_request(requests[1])
engine.step()
print(records[-1].text)
print("tables:", records[-1].block_tables)

# %% [markdown]
# ## The picture
# The packed row `[1, T]`: position and slot of every token. Logits are computed only where a token is sampled.

# %%
engine.add_request(requests[2])
engine._take_in()
plan, tables = engine.scheduler.plan(), engine.scheduler.allocator.block_tables
batch = pack(plan, tables, 4, torch.device("cpu"))
for name in ("token_ids", "positions", "slots"):
    print(f"{name:<10}", " ".join(f"{number:>3}" for number in getattr(batch, name).tolist()))
print("logits at ", batch.logit_index.tolist(), "of", len(batch.positions), "tokens")
sampled = engine.runner.execute(plan)
outputs = engine.scheduler.apply(plan, sampled)

# %% [markdown]
# ## Measure against phase 6
# Weights are read once per pass; that is what a step costs on most machines. Per token that comes out:

# %%
per_token = {f"phase {n}": run.num_passes / 64 for n, run in ((6, ledger), (8, paged))}
engine.close()
bars(per_token, "times the weights are read, per token")

# %% [markdown]
# ## Break it on purpose
# Block size 1, 3, 7, 16: which outputs change? None may. (`max_batch_size` and chunks neither.)

# %%
for size in (1, 3, 7, 16):
    run = play(8, requests, MODEL, kv_block_size=size, kv_num_blocks=128, prefill_chunk_size=5)
    assert run.tokens == paged.tokens, size
print("the same tokens with blocks of 1, 3, 7 and 16")

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 8 --out ../my-phase8`: the slot of a position (8.1), who sees what (8.2).
# Lab: `python -m shared.workshop mutate 4 --out ../lab4`. What breaks next: promised blocks stand idle
# ([phase 9](09_preemption.ipynb)).
