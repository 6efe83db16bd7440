"""Which samples a silo trains on in a round, and how they are cut into batches."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def batches(
    chosen: Indices, lengths: NDArray[np.int64], size: int, rng: np.random.Generator | None
) -> Iterator[Indices]:
    """Batches of samples of similar length, so that little is spent on padding; with ``rng``, in random order."""
    by_length = chosen[np.argsort(lengths[chosen], kind="stable")]
    starts = np.arange(0, len(by_length), size)
    for start in rng.permutation(starts) if rng is not None else starts:
        yield by_length[start : start + size]
