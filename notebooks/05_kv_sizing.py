# %% [markdown]
# # 5 · Interlude: how large is K/V?
#
# Every token that was run leaves a key and a value in every layer. How many bytes is that, and how many
# tokens fit? `shared/kv_sizing.py` computes it from a model's config alone.
#
# *Run the cells in order.*

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

# %%
from transformers import LlamaConfig

from shared.kv_sizing import head_dim, kv_bytes_per_token
from shared.pictures import bars
from shared.workshop.lab import build, fresh_model, predicted, seal

SMOLLM2 = LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3)

# %% [markdown]
# ## Predict
# The default model: 30 layers, 9 query heads, 3 K/V heads, head_dim 64, 4 bytes per number (float32). How many bytes of
# K and V does one token need?

# %%
my_answer = None
print(predicted(my_answer, "285e6179"))

# %%
per_token = kv_bytes_per_token(SMOLLM2, itemsize=4)
assert seal(per_token) == "285e6179"
print(f"{per_token:,} bytes = 2 (K and V) x 30 layers x 3 KV heads x {head_dim(SMOLLM2)} x 4 bytes")

# %% [markdown]
# ## The picture: weights against K/V
# The weights are there once; K/V grows with every sequence and every token. In GiB, for 32 sequences:

# %%
GIB = 2**30
weights = 134.5e6 * 4 / GIB
sizes = {f"{n:,} tokens each": round(32 * n * per_token / GIB, 2) for n in (512, 2048, 8192)}
bars({"weights": round(weights, 2)} | sizes, "GiB")

# %% [markdown]
# ## What makes it smaller
# Fewer K/V heads than query heads (grouped-query attention), and smaller numbers. Here with all 9 heads, as it is, and
# with one; then in half precision.


# %%
def with_heads(n):
    return LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=n)


sizes = {f"{n} KV heads": kv_bytes_per_token(with_heads(n), 4) / 1024 for n in (9, 3, 1)}
bars(sizes | {"3 KV heads, float16": kv_bytes_per_token(SMOLLM2, 2) / 1024}, "KiB per token")

# %% [markdown]
# ## Break it on purpose
# `head_dim` is *not* always hidden_size / heads. Qwen3 and Gemma say it in their config, and whoever divides is wrong:

# %%
config = fresh_model("tiny").config
print("divided:", config.hidden_size // config.num_attention_heads, " in the config:", head_dim(config))
assert head_dim(config) != config.hidden_size // config.num_attention_heads

# %% [markdown]
# ## From bytes to blocks
# `kv_num_blocks="auto"` takes a quarter of the free memory, or what can ever be used, whichever is less. The engine
# says which:

# %%
engine = build(6, fresh_model("tiny"), max_batch_size=4, max_model_len=128, kv_block_size=16)
print("blocks:", engine.stats().kv_blocks_total, "= 4 sequences x 128 tokens / 16 per block")
assert engine.stats().kv_blocks_total == 4 * 128 // 16
engine.close()

# %% [markdown]
# ## Exercise
# How many sequences of 2,048 tokens fit into 8 GiB beside the default model's weights, in float16? Try it with the
# numbers above; then `python -m phase06_block_allocator generate --show-config` for your machine.
# Next: [6: memory in blocks](06_block_allocator.ipynb).
