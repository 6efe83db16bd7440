"""Hits@N counted by hand, and its baselines against brute force."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hansa.attacks.hits import (
    MAX_GUESSES,
    Frequencies,
    Truth,
    combined,
    frequency_baseline,
    random_baseline,
    score,
    size_bin,
)

SPECIAL = np.array([True, True, False, False, False, False, False, False])  # [CLS], [SEP], six words


def truth(*texts: list[int]) -> Truth:
    return Truth(tuple(np.array(text) for text in texts), SPECIAL)


def test_by_hand() -> None:
    behind = truth([0, 2, 3, 1], [0, 2, 4, 5, 1])
    assert behind.at == {1: {2}, 2: {3, 4}, 3: {5}}, "special tokens are no secret"
    known = Frequencies([*behind.texts, *[np.array([2])] * 9], SPECIAL)
    guesses = {1: [3, 2], 2: [6, 4], 3: [7, 6, 3]}
    found = score(behind, guesses.__getitem__, known)
    assert found.any.tolist() == [1, 2, 3]
    assert found.same.tolist() == [2, 2, MAX_GUESSES + 1]
    assert found.curve("any")[:3] == [1 / 3, 2 / 3, 1.0]
    assert found.curve("same")[:3] == [0.0, 2 / 3, 2 / 3]
    # Rare are 3, 4 and 5; of two true tokens at position 2, two guesses hit one; at 3 the one guess is wrong.
    assert found.rare == (1, 3)


def test_frequent_tokens_know_the_silo_but_not_the_centroid() -> None:
    known = Frequencies([np.array([0, 2, 3, 1]), np.array([0, 2, 4, 1]), np.array([0, 3, 4, 1])], SPECIAL)
    found = frequency_baseline(truth([0, 2, 3, 1]), known)
    assert found.same.tolist() == [1, 2], "2 is most frequent first; at the second place 4 is, then 3"
    assert found.any.tolist() == [1, 1]


@pytest.mark.parametrize("drawn", [1, 2, 3])
def test_chance_is_what_all_draws_give_on_average(drawn: Any) -> None:
    behind = truth([0, 2, 3, 1], [0, 2, 4, 1])
    words = np.flatnonzero(~SPECIAL).tolist()
    draws = [set(draw) for draw in combinations(words, drawn)]
    same = np.mean([[bool(draw & true) for true in behind.at.values()] for draw in draws])
    assert random_baseline([behind], "same")[drawn - 1] == pytest.approx(float(same))
    anywhere = np.mean([bool(draw & {2, 3, 4}) for draw in draws])
    assert random_baseline([behind], "any")[drawn - 1] == pytest.approx(float(anywhere))


@settings(max_examples=30, deadline=None)
@given(some.lists(some.lists(some.integers(2, 7), min_size=1, max_size=6), min_size=1, max_size=4), some.randoms())
def test_curves_rise_and_any_position_is_never_harder(texts: Any, random: Any) -> None:
    behind = truth(*texts)
    known = Frequencies(behind.texts, SPECIAL)
    order = {p: random.sample(range(2, 8), 6) for p in behind.at}
    found = score(behind, order.__getitem__, known)
    for where in ("any", "same"):
        curve = found.curve(where)
        assert curve == sorted(curve)
        assert curve[5] == 1.0, "after six guesses all six words are out"
        assert random_baseline([behind], where)[5] == pytest.approx(1.0)
    assert all(a >= b for a, b in zip(found.curve("any"), found.curve("same"), strict=True))
    assert combined([found, found]).curve("same") == found.curve("same")


def test_sizes() -> None:
    assert [size_bin(n) for n in (1, 2, 9, 20, 21, 5000)] == ["1", "2–5", "6–10", "11–20", "21–50", "51 or more"]
