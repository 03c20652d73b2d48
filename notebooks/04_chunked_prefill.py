# %% [markdown]
# # 4 · Chunked prefill
#
# Nobody gets a token before the step is over. When a long prompt joins, its prefill is one step, and every stream
# that was decoding gets its next token only after it. A budget of tokens per step ends that.
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
from shared.pictures import bars, budget_picture
from shared.step_record import watch
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, predicted, seal, tokens_of

LONG = [(7 * i * i + 3 * i + 5) % 97 for i in range(96)]
SETTINGS = {"prefill_budget_tokens": 16, "prefill_chunk_size": 12}


def interrupted(phase, **settings):
    """Two streams decode; after two steps a prompt of 96 tokens joins."""
    engine = build(phase, fresh_model(MODEL), **settings)
    return engine, watch(engine), [ask(PROMPTS[0], 14), ask(PROMPTS[1], 14), ask(LONG, 3)]


# %% [markdown]
# ## The problem, in phase 3
# Tokens per step. How long the two streams wait for their third token is how high the bar is.

# %%
engine, before, requests = interrupted(3)
for request in requests[:2]:
    engine.add_request(request)
for _ in range(2):
    engine.step()
engine.add_request(requests[2])
while engine.has_unfinished():
    engine.step()
engine.close()
budget_picture(before)

# %% [markdown]
# ## Predict
# Budget 16, chunks of at most 12. Two streams decode, a prompt of 96 tokens has just joined. How many tokens does the
# next step run for stream 1, stream 2 and the long prompt? (Three numbers.)

# %%
my_answer = [None, None, None]
print(predicted(my_answer, "22e0b110"))

# %% [markdown]
# ## Run one step, and look at its plan

# %%
engine, records, requests = interrupted(4, **SETTINGS)
ids = [engine.add_request(request) for request in requests[:2]]
for _ in range(2):
    engine.step()
engine.add_request(requests[2])
engine.step()
print(records[-1].text)
assert seal([row.num_tokens for row in records[-1].rows]) == "22e0b110"

# %% [markdown]
# The chunk does not reach the last known token, so it samples nothing: no logits are computed for it.
#
# ## The picture: the budget bars
# The dashed line is the budget. Decodes (full colours) take theirs first.

# %%
while engine.has_unfinished():
    engine.step()
engine.close()
budget_picture(records, SETTINGS["prefill_budget_tokens"])

# %% [markdown]
# ## Measure against phase 3
# The largest step that a stream has to sit through, and the step in which the long prompt gets its first token.

# %%
largest = {f"phase {n}": max(r.num_tokens for r in run) for n, run in ((3, before), (4, records))}
first = {
    n: next(r.number for r in run if r.rows[-1].name == "req-3" and "yes" in r.text.splitlines()[-2])
    for n, run in ((3, before), (4, records))
}
print("the long prompt's first token comes in step", first)
bars(largest, "tokens in the largest step")

# %% [markdown]
# What got worse: the long prompt's own first token comes later. Smaller chunks make the gaps shorter and this wait
# longer; that is the knob. And the tokens?

# %%
engine = build(4, fresh_model(MODEL), **SETTINGS)
assert tokens_of(engine.generate(requests)) == oracle(fresh_model(MODEL), requests)
engine.close()
print("equal to generate(), whatever the chunks")

# %% [markdown]
# ## Break it on purpose
# A budget so large that it is none: phase 3 is back.

# %%
engine, records, requests = interrupted(4, prefill_budget_tokens=10_000, prefill_chunk_size=10_000)
engine.generate(requests)
engine.close()
assert max(record.num_tokens for record in records) > 96
print("largest step:", max(record.num_tokens for record in records), "tokens")

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 4 --out ../my-phase4`: spend the budget (4.1), whose prompt is next (4.2).
# Lab: `mutate 1`. What breaks next: nobody knows how much memory is left ([5: how large is K/V?](05_kv_sizing.ipynb)).
