"""How many guesses were right, or good enough. Torch-free."""

from collections.abc import Sequence as Seq


def accepted_length(draft: Seq[int], chosen: Seq[int]) -> int:
    """draft: the guesses. chosen: the target's token after the last token, and after each guess: one more than guesses.

    A guess counts only if all before it were right: the target's token after a wrong one is no use.
    """
    # BEGIN SOLUTION 12.3
    for count, (guess, token) in enumerate(zip(draft, chosen)):
        if guess != token:
            return count
    return len(draft)
    # END SOLUTION


def accepted_draws(target: Seq[float], draft: Seq[float], uniforms: Seq[float]) -> int:
    """Of guesses that were drawn at random: each stands with probability min(1, p / q), if all before it do.

    target, draft: p and q, how likely each guess was for the target, and for whoever drew it. uniforms: in [0, 1).
    """
    for count, (p, q, u) in enumerate(zip(target, draft, uniforms)):
        if not u * q < p:  # not `>=`: no guess stands on a NaN
            return count
    return len(target)
