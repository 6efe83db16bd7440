"""Randomness is an argument: every stream is derived from the seed and from what it is for.

Nothing depends on the order of execution, so one worker, eight workers and a network give the same run.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

ONE_AT_A_TIME = threading.RLock()  # torch has one generator for all threads of a process


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(seed, round, silo, "masks")``."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """A numpy generator for one purpose; see `derive`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *purpose)))


@contextmanager
def torch_seeded(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed what torch draws from by itself (dropout, fresh weights), and leave its generator as it was found.

    Other threads that need the generator wait until the body ends, so that runs in several threads do not mix. The
    generator is addressed directly: `torch.manual_seed` also records a stack trace for devices not yet in use,
    which takes longer than a training step of a small model.
    """
    with ONE_AT_A_TIME:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(derive(seed, *purpose))
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(derive(seed, *purpose))
        try:
            yield
        finally:
            torch.set_rng_state(before)
