# %% [markdown]
# # 2 · Scheduling per step
#
# In phase 1 a request for 2 tokens waits for a request for 24. From here on the batch is made anew for every
# step: plan, execute, apply. Between two steps anybody can join or leave.
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
from shared.config import EngineConfig
from shared.explain.planted_faults import FAULTS
from shared.pictures import bars, budget_picture
from shared.registry import phase_by_number
from shared.step_record import watch
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, play, predicted, seal, tokens_of

requests = [ask(PROMPTS[0], 1), ask(PROMPTS[1], 3), ask(PROMPTS[2], 2)]

# %% [markdown]
# ## Predict
# `max_batch_size` is 2; requests 1, 2 and 3 want 1, 3 and 2 tokens. Who runs in steps 1, 2 and 3? Write the numbers of
# the requests, like `[[1, 2], [1], [3]]`.

# %%
my_answer = None
print(predicted(my_answer, "b345c237"))

# %% [markdown]
# ## Run one step, and look at its plan

# %%
engine = build(2, fresh_model(MODEL), max_batch_size=2)
records = watch(engine)
for request in requests:
    engine.add_request(request)
engine.step()
print(records[0].text)

# %% [markdown]
# Both run their whole prompt, and both sample. Request 1 is done with that; 3 takes its place in the next step.

# %%
while engine.has_unfinished():
    engine.step()
print(records[1].text, records[2].text, sep="\n\n")
who = [[int(row.name[-1]) for row in record.rows] for record in records]
assert seal(who) == "b345c237"

# %% [markdown]
# ## The picture: tokens per step, by request
# Pale is prefill. Not one row is special: each runs what is uncomputed.

# %%
budget_picture(records)

# %% [markdown]
# ## Measure against phase 1
# Not in seconds, which differ from machine to machine, but in forward passes until a request's first token.

# %%
burst = [ask(PROMPTS[0], 24), ask(PROMPTS[1], 24), ask(PROMPTS[2], 2)]
one, two = play(1, burst, MODEL), play(2, burst, MODEL)
assert one.tokens == two.tokens == oracle(fresh_model(MODEL), burst)
third = {f"phase {n}": run.passes_to_first_token()["req-3"] for n, run in ((1, one), (2, two))}
print("forward passes in all:", one.num_passes, "and", two.num_passes)
bars(third, "forward passes until the third request's first token")

# %% [markdown]
# Better: the wait. Not better: the work, since the runner still makes a pass *per sequence*. Scheduling alone buys
# fairness, not throughput; phase 8 turns the batch into one pass.
#
# ## Break it on purpose
# A decode whose position is off by one: fluent, and wrong. This is why equality with `generate()` is asserted.

# %%
build_broken = FAULTS["position-off-by-one"].plant(phase_by_number(2).build_engine())
broken = build_broken(fresh_model(MODEL), EngineConfig())
got = tokens_of(broken.generate(burst[:1]))
broken.close()
same = sum(a == b for a, b in zip(got[0], one.tokens[0]))
print(f"{same} of 24 tokens are right; python -m shared.explain finds out why")
assert got[0] != one.tokens[0]

# %% [markdown]
# ## Exercise
# `python -m shared.workshop make-starter 2 --out ../my-phase2`: the step (2.1), joining (2.2), leaving (2.3).
# What breaks next: everybody is taken in, however many there are ([phase 3](03_request_queue.ipynb)).
