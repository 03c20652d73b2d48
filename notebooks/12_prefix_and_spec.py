# %% [markdown]
# # 12 · Prefix cache and speculation
#
# Two kinds of work are done for nothing: a hundred requests with the same system prompt compute it a hundred
# times, and a decode reads all weights for one token, even where text is copied word for word.
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
from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.prefix_cache import block_key, root_key
from shared.pictures import bars, block_map
from shared.workshop.lab import ask, build, fresh_model, oracle, play, predicted, seal

SYSTEM = [(5 * i * i + i) % 89 for i in range(24)]
requests = [ask([*SYSTEM, 90 + n, 3], 6) for n in range(3)]
BLOCKS = {"kv_block_size": 4, "kv_num_blocks": 40}

# %% [markdown]
# ## The hash chain
# A block's key is a hash of its tokens *and of the key before it*, so a key stands for a whole prefix.

# %%
same = [1, 2, 3, 4]
first = block_key(root_key(None), same)
second = block_key(first, same)
print("1 2 3 4 at the beginning:  ", first.hex()[:16])
print("1 2 3 4 after 1 2 3 4:     ", second.hex()[:16])
assert first != second

# %% [markdown]
# ## Predict
# Blocks of 4. A prompt of 24 tokens was served. It is sent again, the same 24 tokens. How many of them are found?

# %%
my_answer = None
print(predicted(my_answer, "f5ca38f7"))

# %%
engine = build(12, fresh_model(MODEL), **BLOCKS)
engine.generate([ask(SYSTEM, 4)])
again = engine.generate([ask(SYSTEM, 4)])[0]
engine.close()
print(again.num_cached_tokens, "of 24: at least one token is left to compute, for its logits")
assert seal(again.num_cached_tokens) == "f5ca38f7"

# %% [markdown]
# ## Run, and look at a plan
# Three requests with the same beginning: the second and third run only what is theirs.

# %%
played = play(12, requests, MODEL, **BLOCKS)
print(next(record.text for record in played.records if len(record.rows) == 3))
assert played.tokens == oracle(fresh_model(MODEL), requests)

# %% [markdown]
# ## The picture: hatched blocks are in more than one table

# %%
block_map(played.records, num_blocks=14)  # of 40

# %% [markdown]
# ## Measure against phase 9: prompt tokens that were run

# %%
before = play(9, requests, MODEL, **BLOCKS)
assert before.tokens == played.tokens
run = {f"phase {n}": sum(e.num_tokens for e in p.events if e.kind == "chunk") for n, p in ((9, before), (12, played))}
bars(run, "prompt tokens run")

# %% [markdown]
# ## Speculation
# One pass checks several guesses: what the target says after each. Guesses count until the first wrong one.

# %%
print("guesses 5 6 7, the target says 5 6 9 8: accepted", accepted_length([5, 6, 7], [5, 6, 9, 8]))
REPEATING = [11, 12, 13, 14, 15] * 4
guessed = play(12, [ask(REPEATING, 40)], MODEL, speculative_method="ngram", adaptive_speculation=False, **BLOCKS)
plain = play(12, [ask(REPEATING, 40)], MODEL, **BLOCKS)
assert guessed.tokens == plain.tokens == oracle(fresh_model(MODEL), [ask(REPEATING, 40)])
stats = guessed.stats
print(f"{stats.num_accepted_tokens} of {stats.num_drafted_tokens} guesses were right")
print(f"steps: {plain.num_steps} without guesses, {guessed.num_steps} with them")

# %% [markdown]
# Every token that comes out is the target's own choice: guesses change the number of steps and nothing else. A tiny
# model with random weights is hard to guess; on text that repeats, a real one is not.
#
# ## Break it on purpose
# Two tenants with the same words must not share: a hit is measurable, and tells that somebody asked before.

# %%
engine = build(12, fresh_model(MODEL), **BLOCKS)
for salt in ("tenant 1", "tenant 2", "tenant 1"):
    output = engine.generate([type(requests[0])(SYSTEM, requests[0].params, cache_salt=salt)])[0]
    print(f"{salt}: {output.num_cached_tokens} tokens found")
engine.close()

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 12 --out ../my-phase12`: the hash chain (12.1), what may be published (12.2),
# acceptance (12.3). Labs: `mutate 6` to `mutate 9`, `mutate 13`. All phases side by side:
# [compare_phases](compare_phases.ipynb).
