"""How many guesses were right. Torch-free."""

from collections.abc import Sequence as Seq


def accepted_length(draft: Seq[int], chosen: Seq[int]) -> int:
    """draft: the guesses. chosen: the target's token after the last token, and after each guess: one more than guesses.

    A guess counts only if all before it were right: the target's token after a wrong one is no use.
    """
    for count, (guess, token) in enumerate(zip(draft, chosen)):
        if guess != token:
            return count
    return len(draft)
