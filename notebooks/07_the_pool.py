# %% [markdown]
# # 7 · Interlude: the pool
#
# The blocks of phase 6 are numbers in a table. Here they get a place: two tensors for all layers, and one
# formula that says where the K/V of a position is.
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

from phase08_paged_attention.paged_kv_cache import PagedKVCache
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, predicted, seal, tokens_of

BLOCK_SIZE, TABLE = 4, [7, 2, 5]  # a sequence's blocks, in order of position

# %% [markdown]
# ## Predict
# Blocks of 4 tokens, a sequence's table is `[7, 2, 5]`. In which slot of the pool is its position 6? (Slot 0 is the
# first place of block 0.)

# %%
my_answer = None
print(predicted(my_answer, "4a44dc15"))

# %%
slots = [TABLE[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(12)]
print("position -> slot:", dict(enumerate(slots)))
assert seal(slots[6]) == "4a44dc15"

# %% [markdown]
# ## Write, and read back
# The pool: `[layers, blocks, kv_heads, block_size, head_dim]`, once for K and once for V.

# %%
cache = PagedKVCache.for_model(fresh_model(), num_blocks=8, block_size=BLOCK_SIZE)
print("K:", list(cache.key.shape), f"{cache.num_bytes:,} bytes for K and V")
key = torch.arange(12.0, dtype=cache.key.dtype)[:, None, None].expand(12, 2, 16)  # [T, H, D], position p holds p
cache.write(0, torch.tensor(slots), key, -key)
keys, values = cache.read(0, torch.tensor([slots]))  # [1, H, T, D] each
print("read through the table:", keys[0, 0, :, 0].int().tolist())
assert torch.equal(keys[0], key.transpose(0, 1))

# %% [markdown]
# ## The picture
# One layer's K, one number per slot; dots were never written. The sequence lies in three pieces.

# %%
first = cache.key[0, :, 0, :, 0].int().tolist()  # layer 0, head 0: [blocks, block_size]
written = {slot // BLOCK_SIZE for slot in slots}
for block, row in enumerate(first):
    print(f"block {block}:", " ".join(f"{n:>2}" if block in written else " ." for n in row))

# %% [markdown]
# ## Break it on purpose
# Zeros, and not what was in memory before: a masked weight of 0 times NaN is NaN. The tests fill the pool with NaN, so
# that a read of a slot that was never written shows at once.

# %%
weights, garbage = torch.tensor([1.0, 0.0]), torch.tensor([3.0, float("nan")])
print("weights that ignore the second slot, times its contents:", (weights * garbage).sum().item())

# %%
requests = [ask(PROMPTS[0], 12), ask(PROMPTS[1], 12)]
engine = build(8, fresh_model(MODEL), kv_num_blocks=16)
engine.runner.cache.key.fill_(float("nan"))
engine.runner.cache.value.fill_(float("nan"))
assert tokens_of(engine.generate(requests)) == oracle(fresh_model(MODEL), requests)
engine.close()
print("a pool full of NaN, and the tokens are generate()'s: nothing is read before it is written")

# %% [markdown]
# ## Exercise
# 8.1 of the workshop is the formula, for a whole step at once: `python -m shared.workshop make-starter 8 --out DIR`.
# Next: [8: paged attention](08_paged_attention.ipynb), where the model reads and writes the pool itself.
