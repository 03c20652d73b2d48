# %% [markdown]
# # 3 · A queue with limits
#
# Phase 2 takes everybody in: the last of two hundred waits for a hundred and ninety-nine, long after its
# client has given up. A line needs a length, and a wait needs an end.
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
import time

from shared.errors import QueueFull
from shared.pictures import bars
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, play, predicted, seal

burst = [ask(PROMPTS[n % 4], 8) for n in range(24)]

# %% [markdown]
# ## The problem, in phase 2
# Forward passes until the first token, for a burst of 24 requests of which 4 run at a time:

# %%
patient = play(2, burst, MODEL, max_batch_size=4)
waits = patient.passes_to_first_token()
bars({f"request {n}": waits[f"req-{n}"] for n in (1, 4, 5, 12, 24)}, "forward passes until the first token")

# %% [markdown]
# ## Predict
# The queue holds 2, one request may run, and nothing is stepped meanwhile. Five requests arrive. How many are refused?

# %%
my_answer = None
print(predicted(my_answer, "4e074085"))

# %%
engine = build(3, fresh_model(MODEL), queue_capacity=2, max_batch_size=1, queue_timeout_s=2.0)
told, refused = [], 0
for request in burst[:5]:
    try:
        engine.add_request(request, told.append)
    except QueueFull:
        refused += 1
print("refused:", refused)
assert seal(refused) == "4e074085"

# %% [markdown]
# The slot is free, and still two are all that fit: who arrives waits in the queue until a step takes it in. Refusing
# early is kinder than accepting and failing late: the client can go elsewhere while there is time (503).
#
# ## Run one step
# One starts; the other waits on.

# %%
engine.step()
stats = engine.stats()
print(f"running {stats.num_running}, waiting {stats.num_waiting}")

# %% [markdown]
# ## Break it on purpose
# The timeout is 2 s. We sleep past it, as a machine that is too slow would. What becomes of who waits?

# %%
time.sleep(2.1)
while engine.has_unfinished():
    engine.step()
ends = {output.request_id: output.finish_reason for output in told if output.finish_reason}
print(ends)
assert sorted(ends.values()) == ["length", "timeout"]
engine.close()

# %% [markdown]
# Whoever ran was not cut off: the deadline is for the *wait*. Whoever waited was told (504), and never runs afterwards.
#
# ## Measure against phase 2
# Speed is not what changes; the tokens are the same, and so is the number of passes.

# %%
limited = play(3, burst, MODEL, max_batch_size=4)
assert limited.tokens == patient.tokens == oracle(fresh_model(MODEL), burst)
assert limited.num_passes == patient.num_passes
print(f"{limited.num_passes} forward passes in both, equal to generate()")

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 3 --out ../my-phase3`: the length of the line (3.1), the deadline (3.2).
# Lab: `mutate 12`. What breaks next: one long prompt is one long step ([phase 4](04_chunked_prefill.ipynb)).
