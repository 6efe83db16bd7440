"""Batches of samples of similar length."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hansa.data.arrays import Indices, ordered


def batches(
    chosen: Indices, lengths: NDArray[np.int64] | NDArray[np.int32], size: int, rng: np.random.Generator | None
) -> Iterator[Indices]:
    """Batches of samples of similar length, which need little padding; in random order if ``rng`` is given."""
    by_length = ordered(chosen, lengths)
    starts = np.arange(0, len(by_length), size)
    for start in rng.permutation(starts) if rng is not None else starts:
        yield by_length[start : start + size]
