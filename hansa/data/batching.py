"""Batches of samples of similar length."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hansa.data.arrays import Indices, ordered


def batches(
    chosen: Indices,
    lengths: NDArray[np.int64] | NDArray[np.int32],
    size: int,
    rng: np.random.Generator | None,
    by_length: bool = True,
) -> Iterator[Indices]:
    """Batches of samples of similar length, which need little padding; in random order if ``rng`` is given.

    ``by_length=False``: batches of samples in the order in which they were chosen.
    """
    if not by_length:
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))
        return
    in_order = ordered(chosen, lengths)
    starts = np.arange(0, len(in_order), size)
    for start in rng.permutation(starts) if rng is not None else starts:
        yield in_order[start : start + size]
