"""Batches of samples of similar length."""

import numpy as np

from hansa.core.seeds import stream
from hansa.data.batching import batches


def test_batches_are_complete_and_of_similar_length() -> None:
    lengths = stream(0).integers(1, 60, 200)
    found = list(batches(np.arange(200), lengths, 16, stream(1)))
    assert sorted(i for batch in found for i in batch) == list(range(200))
    assert np.mean([np.ptp(lengths[batch]) for batch in found]) < 8
    order = [int(lengths[b].mean()) for b in found]
    assert order != sorted(order), "batches must not be sorted by length"
