# %% [markdown]
# # 10 · Interlude: what to measure
#
# Tokens per second is what the owner of a machine sees. A user sees the wait for the first token, and the
# gaps between the others. All of them come from three timestamps and one list.
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
from statistics import median

from shared.pictures import bars
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, predicted, seal

LONG = [(7 * i * i + 3 * i + 5) % 97 for i in range(400)]

# %% [markdown]
# ## Four numbers of a request
#
# | | from | to |
# |---|---|---|
# | **TTFT**, time to first token | arrival (not start!) | first token |
# | **ITL**, inter-token latency | one token | the next one: a list |
# | **TPOT**, time per output token | first token | last token, divided by the gaps between: tokens − 1 |
# | **E2E** | arrival | last token |
#
# ## Predict
# A request arrives at 0 s, starts at 3 s, has tokens at 4, 5, 6 and 10 s. TTFT, TPOT and the largest ITL, in seconds?

# %%
my_answer = [None, None, None]
print(predicted(my_answer, "0722ca49"))

# %%
arrival, times = 0, [4, 5, 6, 10]
ttft, tpot = times[0] - arrival, (times[-1] - times[0]) // (len(times) - 1)
largest_itl = max(later - earlier for earlier, later in zip(times, times[1:]))
assert seal([ttft, tpot, largest_itl]) == "0722ca49"
print(f"TTFT {ttft} s (the queue counts), TPOT {tpot} s, largest ITL {largest_itl} s: TPOT hides the pause")

# %% [markdown]
# ## From a real engine
# Seven streams decode; a prompt of 400 tokens joins in the middle. One engine cuts it into chunks, the other does not.


# %%
def gaps_of(chunk):
    """Largest gap of each stream in ms, and how its answer ended."""
    engine = build(4, fresh_model(MODEL), prefill_budget_tokens=chunk + 7, prefill_chunk_size=chunk)
    times = {n: [] for n in range(7)}
    for n in times:
        engine.add_request(ask(PROMPTS[n % 4], 24), lambda out, n=n: times[n].append(out.time))
    [engine.step() for _ in range(8)]
    engine.add_request(ask(LONG, 1))
    [engine.step() for _ in range(100) if engine.has_unfinished()]
    engine.close()
    return [max(b - a for a, b in zip(t, t[1:])) * 1e3 for t in times.values()]


# %%
whole, chunked = gaps_of(400), gaps_of(16)
bars({"whole prompt": round(median(whole), 1), "chunks of 16": round(median(chunked), 1)}, "largest gap in ms, median")

# %% [markdown]
# Seconds differ from machine to machine and from run to run, so nothing here asserts them: `python -m shared.bench`
# measures, in alternating rounds, and writes down where.
#
# ## Percentiles, and what a mean hides
# 99 gaps of 20 ms and one of 2 s: a user notices one of them.

# %%
gaps = sorted([20] * 99 + [2000])
print(f"mean {sum(gaps) / 100:.0f} ms, median {median(gaps):.0f} ms, p99 {gaps[98]} ms, max {gaps[-1]} ms")

# %% [markdown]
# ## Break it on purpose
# A request for one token has no gap: its TPOT is undefined. Undefined is *null*, not 0: a zero would be the best value
# of all, and lift every average.

# %%
engine = build(4, fresh_model(MODEL))
requests = [ask(PROMPTS[0], 1), ask(PROMPTS[1], 5)]
outputs = engine.generate(requests)
engine.close()
assert [output.token_ids for output in outputs] == oracle(fresh_model(MODEL), requests)
assert outputs[0].metrics.tpot_s is None
print("TPOT of one token:", outputs[0].metrics.tpot_s, " of five:", f"{outputs[1].metrics.tpot_s * 1e3:.2f} ms")

# %% [markdown]
# ## Exercise
# `curl http://127.0.0.1:8001/metrics` while `python -m phase12_prefix_and_spec serve` runs: which of the four numbers
# are there, and as what? Next: [who sends the load?](11_honest_load.ipynb)
