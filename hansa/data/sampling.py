"""Which samples a silo trains on in a round, and how they are cut into batches."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hansa.config import Training
from hansa.seeds import stream

Indices = NDArray[np.int64]


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
    """Samples (r−1)·length … r·length of an endless series of passes, each pass in an order of its own: every sample
    comes once per pass, and any round can be computed without the rounds before it."""
    parts: list[Indices] = []
    start, left = (round - 1) * length, length
    while left > 0:
        epoch, position = divmod(start, size)
        order = stream(seed, node, "pass", epoch).permutation(size)
        parts.append(order[position : position + left])
        start, left = start + len(parts[-1]), left - len(parts[-1])
    return np.concatenate(parts)


def batches(
    chosen: Indices, lengths: NDArray[np.int64], size: int, rng: np.random.Generator | None
) -> Iterator[Indices]:
    """Batches of samples of similar length, so that little is spent on padding; with ``rng``, in random order."""
    by_length = chosen[np.argsort(lengths[chosen], kind="stable")]
    starts = np.arange(0, len(by_length), size)
    for start in rng.permutation(starts) if rng is not None else starts:
        yield by_length[start : start + size]
