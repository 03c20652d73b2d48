"""Why an engine's tokens are not those of Hugging Face's greedy `generate()`: which step, which layer, which fault.

    python -m shared.explain --phase 2 "The capital of France is"
    python -m shared.explain --phase 2 --tiny llama --plant position-off-by-one

Equal tokens cost nothing more. Else it runs the reference over the tokens that agree and the engine over
the same request, compares what every layer computed, and says what the first difference points to.

    search.py   which runs to make, in which order    choice.py   near tie or not
    replay.py   one such run of the engine            hints.py    what a finding points to
    trace.py    hooks: layer -> position -> values    files.py    where to look
    drift.py    the first layer that differs          report.py   the page to read
"""

from shared.explain.compare import assert_same_tokens, explain
from shared.explain.report import Divergence

__all__ = ["Divergence", "assert_same_tokens", "explain"]
