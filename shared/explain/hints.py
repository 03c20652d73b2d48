"""From what was measured to what it may mean: which kind of fault leaves such a trace, and where to look.

Hypotheses, not proofs: each says what it points to, and what would confirm it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shared.explain.drift import Drift
from shared.explain.files import pick


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """points_to: what the evidence fits, a phrase. check: what to look at, or to try, next. files: where."""

    points_to: str
    check: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Hint:
    points_to: str
    check: str
    roles: tuple[str, ...] = ("runner", "forward")


CACHE = ("runner", "forward", "attention")
WEIGHTS = ("engine", "loader", "runner")

ATTENTION_BY_SIGNATURE = {
    "nan": _Hint(
        "K/V that was never written, or a mask that leaves a row no key at all",
        "Masked garbage times zero is still NaN: which slots does this pass read, and who wrote them?",
        CACHE,
    ),
    "first key only": _Hint(
        "a causal mask aligned to the top left: the first new row saw the first key and nothing else",
        "With S keys and T new tokens, row t may see the keys 0 to S - T + t. Aligned to the top left "
        "(SDPA's is_causal) it sees 0 to t: right only without cached tokens.",
        CACHE,
    ),
    "itself only": _Hint(
        "K/V of earlier tokens that is not there: the token saw itself and nothing else",
        "Is what earlier passes computed kept, and handed to this pass?",
        CACHE,
    ),
}
ATTENTION_BY_PATTERN = {
    "window": _Hint(
        "the sliding window, which begins to count at this position",
        "With a window of W, token p sees p - W + 1 to p, in the layers of the sliding kind only.",
        CACHE,
    ),
    "all but last": _Hint(
        "a mask that shows tokens what comes after them: only the last has nothing after it, and only it is right",
        "Is the mask of the prompt's pass causal?",
        CACHE,
    ),
    "all but first": _Hint(
        "the scores: q/k norms, how RoPE is applied, the scale 1/sqrt(head_dim), a softcap, or the mask",
        "Position 0 sees one key, where no score matters, and is right: so the values and the heads are.",
        CACHE,
    ),
    "everywhere": _Hint(
        "the values, which KV head serves which query heads, or a mask that shows what comes after",
        "Even position 0 differs, and it sees one key: its output should be its own value, repeated per query head.",
        CACHE,
    ),
    "decodes": _Hint(
        "what only a decode does: reading K/V of earlier passes, and its mask; the prompt's pass is right",
        "Are the cached K/V whole, in order and this sequence's own? How many keys may the new token see?",
        CACHE,
    ),
    "later passes": _Hint(
        "what only a pass over cached tokens does: reading their K/V, and its mask; the first pass is right",
        "Are the cached K/V whole, in order and this sequence's own? Is the mask aligned to the bottom right?",
        CACHE,
    ),
    "from": _Hint(
        "K/V that was right and is not any more: a slot overwritten, a block lost, a length off",
        "What happened just before that position: a new block, an eviction, a neighbour that came or went?",
        CACHE,
    ),
    "some": _Hint(
        "the K/V these tokens read, or their mask",
        "What do these positions have in common, in their pass and in where their K/V lies?",
        CACHE,
    ),
}
POSITIONS_BY_PATTERN = {
    "decodes": _Hint(
        "the position of decoded tokens: off by {shift:+d}",
        "A token's position is the number of tokens before it; of a decode, what its sequence has in the cache.",
    ),
    "later passes": _Hint(
        "positions that are not counted from the start of the sequence in later chunks",
        "A chunk's first position is the number of tokens computed before it (num_computed_tokens).",
    ),
    "everywhere": _Hint(
        "positions that are not counted from 0: off by {shift:+d}",
        "RoPE knows distances only: the same shift everywhere would change no token, so it may not be all.",
    ),
}
BY_SIGNATURE = {
    "nan": _Hint(
        "an overflow or a division by zero in here: what went in is finite, and agrees",
        "In float16, what is over 65504 is infinite.",
    ),
    "bias": _Hint(
        "a bias that is not added: at every position, the difference is this module's bias",
        "Was it dropped when the weights were copied, fused or packed?",
        WEIGHTS,
    ),
    "offset": _Hint(
        "something added or left out that does not depend on the token: a bias",
        "The difference is the same vector at every position.",
        WEIGHTS,
    ),
    "another": _Hint(
        "two tensors that have changed places: this output is the reference's {equals}",
        "In which order is a fused tensor cut, and by which name is each weight taken?",
        WEIGHTS,
    ),
    "factor": _Hint(
        "a scale that is missing or applied twice",
        "The output is the reference's times a number that is the same at every position.",
        WEIGHTS,
    ),
}
BY_KIND = {
    "token_ids": _Hint(
        "another token being fed than the sequence holds there",
        "The tokens of a pass are token_ids[num_computed_tokens : num_computed_tokens + num_tokens]; "
        "who moves that number on, and when?",
        ("runner", "scheduler"),
    ),
    "position_ids": _Hint("wrong positions", "A token's position is the number of tokens before it in its sequence."),
    "rotary_emb": _Hint(
        "RoPE's tables: base, scaling or how many dimensions turn; the positions themselves agree",
        "Compare with config.rope_parameters; Gemma 3 has one base per kind of layer.",
        ("forward", "runner"),
    ),
    "embed_tokens": _Hint("the embedding: its weights, or a scale after it", "Is it the checkpoint's tensor?", WEIGHTS),
    "norm": _Hint(
        "this norm: its weight, its eps, or Gemma's 1 + weight",
        "What goes in agrees: compute x / sqrt(mean(x^2) + eps) * weight for one row.",
        WEIGHTS,
    ),
    "norm of a sum": _Hint(
        "this norm (weight, eps, Gemma's 1 + weight), or the residual that is added just before it",
        "Both parts of the sum agree: add them and norm the sum for one row.",
        WEIGHTS,
    ),
    "q_proj": _Hint("the weights of this projection", "Transposed, permuted, of another layer, rounded?", WEIGHTS),
    "o_proj": _Hint(
        "the weights of o_proj, or the order of the heads that it gets", "Compare the two tensors.", WEIGHTS
    ),
    "mlp": _Hint(
        "the MLP: its weights, its activation, or gate and up exchanged", "down(act(gate(x)) * up(x))", WEIGHTS
    ),
    "layer": _Hint(
        "the residual: both its parts agree, their sum does not",
        "A layer adds twice: attention to its input, then the MLP to that sum.",
        ("forward", "runner"),
    ),
    "lm_head": _Hint("the head's weights", "Are they tied to the embedding (tie_word_embeddings)?", WEIGHTS),
    "logits": _Hint(
        "what lies between the head and the sampler: a softcap, a scale, or another row than the last",
        "Sampled are the logits after the last known token: one row per sequence.",
        ("runner", "forward"),
    ),
}
NOT_EVERYWHERE = _Hint(
    "rows that are not this token's own: a module that treats every position alike is wrong at some only",
    "Padding, packing, a buffer that is used again, an in-place change?",
)


def forward_hypothesis(drift: Drift, files: Mapping[str, str], landmark: str = "") -> Hypothesis:
    """What a request that drifts, without neighbours, points to. landmark: what else is at its first position."""
    hint = _hint_for(drift)
    shift = 0 if drift.values is None else drift.values[0] - drift.values[1]
    points_to = hint.points_to.format(shift=shift, equals=drift.equals)
    return Hypothesis(points_to, hint.check + landmark, pick(files, hint.roles))


def _hint_for(drift: Drift) -> _Hint:
    if drift.kind == "attention":
        return ATTENTION_BY_SIGNATURE.get(drift.signature) or ATTENTION_BY_PATTERN[drift.pattern]
    if drift.kind == "position_ids" and drift.pattern in POSITIONS_BY_PATTERN:
        return POSITIONS_BY_PATTERN[drift.pattern]
    if drift.kind in BY_KIND and drift.kind.endswith(("_ids", "_emb", "logits")):
        return BY_KIND[drift.kind]
    if drift.signature in BY_SIGNATURE:
        return BY_SIGNATURE[drift.signature]
    if drift.pattern != "everywhere":
        return NOT_EVERYWHERE
    if drift.kind in ("post_attention_layernorm", "pre_feedforward_layernorm"):
        return BY_KIND["norm of a sum"]
    return BY_KIND.get(drift.kind) or BY_KIND["norm" if "norm" in drift.kind else "q_proj"]


def neighbour_hypothesis(drift: Drift | None, is_row_of_another: bool, files: Mapping[str, str]) -> Hypothesis:
    """What a request that is right alone and wrong in company points to."""
    if is_row_of_another:
        points_to = "rows of the batch that are mixed up: its own logits are there, in another request's row"
        check = "Follow one row from the plan through the pass to the sampler: the order must be the plan's everywhere."
        return Hypothesis(points_to, check, pick(files, ("runner", "sampler")))
    if drift is None:
        points_to = "the choice: in company the sampler takes another token from the same logits"
        return Hypothesis(points_to, "Does a row get another's parameters?", pick(files, ("sampler", "penalties")))
    if drift.kind in ("attention", "position_ids", "rotary_emb"):
        points_to = "K/V of another sequence: a cache, block or slot that is exchanged, shared or not cleared"
        check = "Which K/V does its row read in that pass, and who wrote there last?"
        return Hypothesis(points_to, check, pick(files, (*CACHE, "scheduler")))
    if drift.kind == "token_ids":
        points_to = "tokens of another sequence being fed: the rows of the plan are mixed up"
        return Hypothesis(points_to, "Whose token is it?", pick(files, ("scheduler", "runner")))
    points_to = "rows that touch each other in a batch: padding, packing, or a buffer that is used again"
    if drift.kind == "logits" and len(drift.agreeing) == 0:  # no layer was seen
        points_to = "rows that touch each other in a batch: K/V of another sequence, padding, packing"
    return Hypothesis(points_to, "Does the row count what is not this sequence's?", pick(files, ("runner", "forward")))


def delivery_hypothesis(files: Mapping[str, str]) -> Hypothesis:
    """The sampler chose the right token, and the request got another."""
    points_to = "what happens to a token after it is chosen: it reached another request, or this one another's"
    check = "Follow it from the sampler to the sequence: row of the plan, apply(), accept_tokens()."
    return Hypothesis(points_to, check, pick(files, ("runner", "scheduler", "completion")))


def sampling_hypothesis(clues: str, files: Mapping[str, str]) -> Hypothesis:
    """The logits are right, and another token than the best was taken."""
    points_to = (
        "what happens to logits before a token is chosen: a penalty, a bias, a ban, or a choice that is not greedy"
    )
    check = (
        f"{clues}Which SamplingParams arrive there? generate() may be given a repetition penalty by the checkpoint's "
        "generation_config.json; an engine should not (the reference pins it off)."
    )
    return Hypothesis(points_to, check, pick(files, ("sampler", "penalties")))


def length_hypothesis(is_longer: bool, finish_reason: str, files: Mapping[str, str]) -> Hypothesis:
    """One of two equal outputs goes on where the other ends. finish_reason: the engine's, when it is run alone."""
    roles = ("completion", "inputs")
    if is_longer:
        points_to = "an end that the engine does not see: an EOS id it does not know, or a count that is off by one"
        check = "EOS is a set of ids: generation_config's if it names any, else config's."
    else:
        points_to = "an end too early: max_tokens or max_model_len off by one, an id taken for EOS, an abort"
        check = f'Run alone, the engine gives "{finish_reason}" as its reason to finish.'
    return Hypothesis(points_to, check, pick(files, roles))


NEAR_TIE = Hypothesis(
    "rounding, and no fault",
    "Another batch shape or order of summation is enough to turn such a choice around. Compare tokens in "
    "float32 or float64, or with prompts that have no near tie.",
)
NOT_REPRODUCED = Hypothesis(
    "what was different in that run: the other requests, their order and timing, or what earlier ones left behind",
    "Serve it once more in the company that it had; then halve that company until it agrees.",
)
HAND_WRITTEN = Hypothesis(
    "the hand-written forward pass: the same plans through transformers' modules give the right tokens",
    "Compare the two layer by layer, from the embedding on, for one prompt.",
)
UNDER_TOLERANCE = Hypothesis(
    "something small: too small to count as a drift of a layer, too large for rounding at the head",
    "Repeat in float64, where what is left is no rounding. What is named above is only where it is first visible.",
)
