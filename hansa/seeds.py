"""Randomness is an argument: every stream is derived from the seed and from what it is for.

Nothing depends on the order of execution, so one worker, eight workers and a network give the same run.
"""

import hashlib

import numpy as np


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(seed, round, silo, "masks")``."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))
