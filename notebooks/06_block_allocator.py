# %% [markdown]
# # 6 · Memory in blocks
#
# Phase 4 admits as many sequences as `max_batch_size` says, and hopes. Here memory is cut into blocks of a
# few tokens; a sequence holds a table of blocks, and gets one more when it needs one.
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
from phase06_block_allocator.block_allocator import BlockAllocator
from shared.pictures import bars, block_map
from shared.step_record import watch
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, play, predicted, seal

# %% [markdown]
# ## A table grows by the block
# Position p of a sequence is in block `table[p // block_size]`. The blocks need not be neighbours.

# %%
pool = BlockAllocator(num_blocks=8, block_size=4)
for name, num_tokens in (("a", 6), ("b", 3), ("a", 9)):
    new = pool.ensure_capacity(name, num_tokens)
    print(f"{name} has {num_tokens} tokens: new blocks {new}, table {pool.block_tables[name]}")
pool.check_integrity()

# %% [markdown]
# ## Predict
# Blocks of 4 tokens; 16 blocks, so 64 slots. A prompt of 40 tokens. How many tokens can come out before memory ends?

# %%
my_answer = None
print(predicted(my_answer, "b7a56873"))

# %%
prompt = [(7 * i * i + 3 * i + 5) % 97 for i in range(40)]
engine = build(6, fresh_model(MODEL), kv_block_size=4, kv_num_blocks=16)
output = engine.generate([ask(prompt, 25)])[0]
engine.close()
print(len(output.token_ids), "tokens from 64 slots:", "the last one is sampled and never run, so it needs no slot")
assert seal(len(output.token_ids)) == "b7a56873"

# %% [markdown]
# ## Run one step, and look at its plan

# %%
requests = [ask(PROMPTS[0], 9), ask(PROMPTS[1], 13), ask(PROMPTS[2], 6), ask(PROMPTS[3], 10)]
engine = build(6, fresh_model(MODEL), kv_block_size=4, kv_num_blocks=12)
records = watch(engine)
for request in requests:
    engine.add_request(request)
engine.step()
print(records[0].text)
print("tables:", records[0].block_tables)

# %% [markdown]
# Three run, the fourth waits, though blocks are free: they are *promised*. Nobody can be asked to give one back, so who
# is admitted must be able to finish: `prompt + max_tokens - 1` slots.
#
# ## The picture: who holds which block, step by step

# %%
while engine.has_unfinished():
    engine.step()
engine.close()
block_map(records, num_blocks=12)

# %% [markdown]
# ## Measure against slabs
# How much memory would a slab of the longest possible sequence take, and how much did blocks take at the most?

# %%
most = max(sum(map(len, record.block_tables.values())) for record in records) * 4
running = max(len(record.block_tables) for record in records)
bars({"slabs of 64 tokens": running * 64, "blocks of 4": most}, "slots allocated at the most")

# %%
played = play(6, requests, MODEL, kv_block_size=4, kv_num_blocks=12)
assert played.tokens == oracle(fresh_model(MODEL), requests)
assert played.stats.kv_blocks_used == 0
print("equal to generate(), and every block is back")

# %% [markdown]
# ## Break it on purpose
# A block that is free and held at once. `check_integrity` is called after every step in the tests, and finds it.

# %%
pool.free_blocks.append(pool.block_tables["a"][0])
try:
    pool.check_integrity()
except AssertionError as error:
    print("found:", error)

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 6 --out ../my-phase6`: `ensure_capacity` (6.1), who may join (6.2), the worst
# case (6.3). Lab: `python -m shared.workshop mutate 2 --out ../lab2`. What breaks next: the blocks are a ledger without
# a vault ([7: the pool](07_the_pool.ipynb)).
