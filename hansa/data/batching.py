"""Batches of samples of similar length."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def batches(
    chosen: Indices, lengths: NDArray[np.int64], size: int, rng: np.random.Generator | None
) -> Iterator[Indices]:
    """Batches of samples of similar length, which need little padding; in random order if ``rng`` is given."""
    by_length = chosen[np.argsort(lengths[chosen], kind="stable")]
    starts = np.arange(0, len(by_length), size)
    for start in rng.permutation(starts) if rng is not None else starts:
        yield by_length[start : start + size]
