"""The random numbers of sampling: one per token, each a pure function of what names the token. Torch-free."""

import hashlib

DIGEST_BYTES = 8
FLOAT_BITS = 53  # a Python float holds this many bits exactly


def uniform(seed: int, index: int, position: int, purpose: str = "") -> float:
    """The number in [0, 1) behind the token at `position` (counted from the prompt's first token).

    A keyed hash and not a generator: there is no state to lose. The number does not depend on
    batch order, on neighbours that join or leave, on preemption, on the device, nor on
    `torch.manual_seed`. `index` tells the n completions of one request apart; `purpose`, several
    numbers for one token.
    """
    key = f"{seed},{index},{position}{purpose}".encode()
    digest = hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()
    return (int.from_bytes(digest, "big") >> (8 * DIGEST_BYTES - FLOAT_BITS)) / 2**FLOAT_BITS
