# %% [markdown]
# # 1 · One request at a time
#
# A model in a notebook serves one caller. A server has many. The simplest server that is right puts a lock
# around the model: `phase01_sequential`. What does everyone but the first pay for that?
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
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, play, predicted, seal

requests = [ask(PROMPTS[0], 24), ask(PROMPTS[1], 24), ask(PROMPTS[2], 2)]

# %% [markdown]
# ## Predict
# Three requests arrive together; two want 24 tokens, the third wants 2. How many forward passes has the model run when
# the **third** request's first token is out, that pass included? (A prefill is one pass, a decode is one pass.)

# %%
my_answer = None
print(predicted(my_answer, "0e17daca"))

# %% [markdown]
# ## Run

# %%
played = play(1, requests, MODEL)
passes = [event for event in played.events if event.kind in ("chunk", "decode")]
for event in passes[:3] + passes[-3:]:
    print(f"pass {event.step:>2}  {event.request_id}  {event.kind:<7} {event.num_tokens} tokens")
assert seal(played.passes_to_first_token()["req-3"]) == "0e17daca"

# %% [markdown]
# Prefill and decode are the same thing: *run the uncomputed tokens*. At first that is the whole prompt, from then on
# the one token that was sampled last.
#
# ## The picture, from the engine's own events

# %%
timeline_picture(played.events)

# %% [markdown]
# The short request waits for both long ones: **head-of-line blocking**. Time to first token counts that wait, as a
# user does:

# %%
bars({o.request_id: round(o.metrics.ttft_s * 1e3, 1) for o in played.outputs}, "ms until the first token")

# %% [markdown]
# ## Is it right?
# The oracle is Hugging Face's `generate()`, pinned to greedy decoding, on a model of its own.

# %%
assert played.tokens == oracle(fresh_model(MODEL), requests)
print("equal to generate(), token for token")

# %% [markdown]
# ## Break it on purpose
# A caller hangs up in the middle. If only success gave the lock back, everybody behind would wait for ever. Closing a
# stream aborts the request; the next one must be served.

# %%
engine = build(1, fresh_model(MODEL))
stream = engine.stream(ask(PROMPTS[0], 24))
print("first token:", next(stream).token_ids)
stream.close()
print("the next caller:", engine.generate([ask(PROMPTS[1], 3)])[0].token_ids)
engine.close()

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 1 --out ../my-phase1`: write the loop (1.1), and the line in front of the lock
# (1.2). Then [phase 2](02_iteration_scheduling.ipynb), which lets the short request overtake.
