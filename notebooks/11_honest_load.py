# %% [markdown]
# # 11 · Interlude: honest load
#
# A load tester that waits for an answer before it sends the next request slows down with the server it
# measures. It then reports that all is well. The difference is measured here in steps, so that it is the same
# everywhere.
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
from shared.pictures import bars
from shared.workshop.lab import PROMPTS, ask, build, fresh_model, oracle, predicted, seal, tokens_of

EVERY, COUNT, PAUSE = 3, 30, 40  # a request is due every 3 steps; once, the server stands still for 40 steps


# %%
class Clock:
    """Steps of the engine, and a pause in the middle in which it makes none (a collection, a neighbour, a lock)."""

    now = 0

    def tick(self, engine):
        if not 20 <= self.now < 20 + PAUSE:
            engine.step()
        self.now += 1


# %% [markdown]
# ## Predict
# A request is due every 3 steps and takes 3. In the middle the server stands still for 40 steps. A **closed loop** (the
# next one is sent when the last one is answered) sends one request into the pause. How many are *due* in it?

# %%
my_answer = None
print(predicted(my_answer, "3fdba35f"))

# %%
due = [n * EVERY for n in range(COUNT)]
in_pause = sum(20 <= when < 20 + PAUSE for when in due)
print(in_pause, "requests are due while the server stands still")
assert seal(in_pause) == "3fdba35f"

# %% [markdown]
# ## Closed loop: one user, who waits


# %%
def closed_loop():
    engine, clock, waits = build(3, fresh_model(MODEL)), Clock(), []
    for n in range(COUNT):
        sent, done = clock.now, []
        engine.add_request(ask(PROMPTS[n % 4], EVERY), done.append)
        while engine.has_unfinished():
            clock.tick(engine)
        waits.append(clock.now - sent)
    engine.close()
    return waits


# %% [markdown]
# ## Open loop: requests come when they are due, whatever the server does
# And the wait is counted from when the request was *due*, not from when the tester came round to sending it.


# %%
def open_loop():
    engine, clock, waits, next_one = build(3, fresh_model(MODEL)), Clock(), {}, 0
    while next_one < COUNT or engine.has_unfinished():
        while next_one < COUNT and due[next_one] <= clock.now:
            when, n = due[next_one], next_one
            end = lambda out, n=n, when=when: out.finish_reason and waits.update({n: clock.now + 1 - when})
            engine.add_request(ask(PROMPTS[n % 4], EVERY), end)
            next_one += 1
        clock.tick(engine)
    engine.close()
    return [waits[n] for n in range(COUNT)]


# %%
closed, opened = closed_loop(), open_loop()
slow = {"closed loop": sum(w > 10 for w in closed), "open loop": sum(w > 10 for w in opened)}
assert slow["closed loop"] == 1 < slow["open loop"]
bars(slow, f"of {COUNT} requests, those that took over 10 steps")

# %% [markdown]
# The same server, the same pause. The closed loop met it once, and its median and its p95 are perfect: it stopped
# asking exactly when it would have hurt. This is *coordinated omission*.

# %%
for name, waits in (("closed", closed), ("open", opened)):
    ordered = sorted(waits)
    print(f"{name:<6}  median {ordered[COUNT // 2]:>2}  p90 {ordered[int(COUNT * 0.9)]:>2}  max {ordered[-1]:>2} steps")

# %% [markdown]
# ## Break it on purpose
# `ignore_eos` makes all answers equally long, which a load test likes. But text that is forced past its end repeats
# itself, and n-gram guesses are suddenly right: a speculation benchmark with it flatters.

# %%
request = ask(PROMPTS[0], 40)
engine = build(12, fresh_model(MODEL), speculative_method="ngram", kv_num_blocks=64)
tokens = tokens_of(engine.generate([request]))
engine.close()
assert tokens == oracle(fresh_model(MODEL), [request])
print("equal to generate(), and of no use as a speed")

# %% [markdown]
# ## Exercise
# Set `PAUSE = 0` and `EVERY = 1`: now the server is too slow for the load. What does the closed loop report, and what
# the open one? Next: [12: prefix cache and speculation](12_prefix_and_spec.ipynb).
