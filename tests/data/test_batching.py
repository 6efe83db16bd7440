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


def test_batches_can_keep_the_order_of_the_draw() -> None:
    """Pooled languages differ in length: sorted, a batch has one language; in the order of the draw, both."""
    languages = np.arange(200) % 2
    lengths, drawn = 10 + 40 * languages, stream(2).permutation(200)
    mixed = list(batches(drawn, lengths, 16, stream(1), by_length=False))
    assert np.array_equal(np.concatenate(mixed), drawn)
    assert all(len(set(languages[batch])) == 2 for batch in mixed[:-1])
    sorted_batches = list(batches(drawn, lengths, 16, stream(1)))
    assert sum(len(set(languages[batch])) == 2 for batch in sorted_batches) <= 1, "sorted by length, hardly any does"
