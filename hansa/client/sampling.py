"""Which samples a silo trains on in a round."""

from functools import lru_cache

import numpy as np

from hansa.config.sections import Training
from hansa.core.seeds import stream
from hansa.data.arrays import Indices, concatenated, drawn, permuted


def draw(training: Training, size: int, rng: np.random.Generator, seed: int, round: int, node: str) -> Indices:
    """The samples of one round, by the rule of the federation file (see `config.Samples`)."""
    rule = training.samples
    if rule.epochs is not None and rule.times == 1.0:
        chosen = concatenated([permuted(rng, size) for _ in range(rule.epochs)])
    elif rule.replace and rule.epochs is None:
        chosen = drawn(rng, size, rule.amount(size))
    else:
        chosen = _slice(size, training.per_round(size), seed, round, node)
    if training.max_batches is not None:
        chosen = chosen[: training.max_batches * training.batch]
    return chosen


def _slice(size: int, length: int, seed: int, round: int, node: str) -> Indices:
    """Samples (r−1)·length … r·length of an endless series of passes, each pass in an order of its own.

    Every sample comes once per pass, and any round can be computed without the rounds before it.
    """
    parts: list[Indices] = []
    start, left = (round - 1) * length, length
    while left > 0:
        epoch, position = divmod(start, size)
        parts.append(_pass(size, seed, node, epoch)[position : position + left])
        start, left = start + len(parts[-1]), left - len(parts[-1])
    return concatenated(parts)


@lru_cache(maxsize=2)
def _pass(size: int, seed: int, node: str, epoch: int) -> Indices:
    """The order of one pass over a silo's samples; it is the same in all rounds of the pass."""
    order = permuted(stream(seed, node, "pass", epoch), size)
    order.flags.writeable = False
    return order
