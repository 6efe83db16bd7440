"""Which samples a silo trains on in a round."""

import numpy as np

from hansa.config.sections import Training
from hansa.core.seeds import stream
from hansa.data.batching import Indices


def draw(training: Training, size: int, rng: np.random.Generator, seed: int, round: int, node: str) -> Indices:
    """The samples of one round, by the rule of the federation file (see `config.Samples`)."""
    rule = training.samples
    if rule.epochs is not None and rule.times == 1.0:
        chosen = np.concatenate([rng.permutation(size) for _ in range(rule.epochs)])
    elif rule.replace and rule.epochs is None:
        chosen = rng.integers(0, size, rule.amount(size))
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
        order = stream(seed, node, "pass", epoch).permutation(size)
        parts.append(order[position : position + left])
        start, left = start + len(parts[-1]), left - len(parts[-1])
    return np.concatenate(parts)
