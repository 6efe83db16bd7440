"""Client sampling: which samples a silo trains on in a round."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.client import sampling
from hansa.client.sampling import draw
from hansa.config.sections import Samples, Training
from hansa.core.seeds import stream
from hansa.data import arrays


@given(st.integers(1, 400), st.integers(1, 90), st.integers(0, 1000))
def test_without_replacement_every_sample_is_drawn_once_per_pass(size: Any, floor: Any, seed: Any) -> None:
    training = Training(samples=Samples(floor=floor, replace=False))
    taken: list[int] = []
    round = 0
    while len(taken) < 2 * size:
        round += 1
        taken += list(draw(training, size, stream(seed, round), seed, round, "fr"))
    assert sorted(taken[:size]) == list(range(size))
    assert sorted(taken[size : 2 * size]) == list(range(size))


def test_number_of_samples_of_the_paper() -> None:
    rule = Samples(floor=500, fraction=0.8e-4)
    assert rule.amount(34_104) == 500
    assert rule.amount(132_593_658) == 10_607
    with_replacement = draw(Training(samples=Samples(floor=50)), 10, stream(0), 0, 1, "fr")
    assert len(with_replacement) == 50
    assert len(set(with_replacement)) <= 10


def test_max_batches_limits_the_samples_of_a_round() -> None:
    training = Training(samples=Samples(epochs=2), batch=8, max_batches=3)
    assert len(draw(training, 100, stream(0), 0, 1, "fr")) == training.per_round(100) == 24


@pytest.mark.parametrize(
    "samples",
    [Samples(epochs=2), Samples(floor=30), Samples(floor=30, replace=False), Samples(fraction=0.7, replace=False)],
)
def test_large_draws_in_files_are_those_in_memory(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[list[int]]:
        sampling._pass.cache_clear()
        training = Training(samples=samples)
        return [draw(training, 100, stream(3, r), 3, r, "fr").tolist() for r in (1, 2, 3)]

    before = drawn()
    monkeypatch.setattr(arrays, "IN_MEMORY", 0)
    monkeypatch.setattr(arrays, "BLOCK", 7)
    assert drawn() == before


def test_the_order_of_a_pass_is_computed_once_for_its_rounds() -> None:
    sampling._pass.cache_clear()
    training = Training(samples=Samples(floor=10, replace=False))
    for round in range(1, 10):
        draw(training, 100, stream(0, round), 0, round, "fr")
    assert sampling._pass.cache_info().misses == 1
    with pytest.raises(ValueError, match="read-only"):
        draw(training, 100, stream(0), 0, 1, "fr")[0] = 7  # or a caller could change what later rounds draw
