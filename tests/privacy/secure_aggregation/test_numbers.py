"""Numbers under masks: sums of any size are exact."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.messages import Scores
from hansa.privacy.secure_aggregation.numbers import LIMBS, MAX_NUMBER, from_words, to_words
from hansa.privacy.secure_aggregation.scores import flatten, unflatten

NUMBERS = st.one_of(st.integers(-(10**15), 10**15).map(float), st.floats(-MAX_NUMBER, MAX_NUMBER))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12))
@settings(max_examples=40)
def test_sums_of_words_are_sums_of_numbers(rows: list[tuple[float, float]]) -> None:
    total = np.sum([to_words(row) for row in rows], axis=0, dtype=np.uint32)
    for found, column in zip(from_words(np.asarray(total)), zip(*rows, strict=True), strict=True):
        exact = sum(round(x * 2**24) for x in column)
        assert found == exact / 2**24


def test_the_largest_sums_do_not_overflow() -> None:
    words = to_words([MAX_NUMBER, -MAX_NUMBER, -(2.0**-24)])
    assert from_words((words.astype(np.uint64) * 65_536).astype(np.uint32)) == [
        65_536 * MAX_NUMBER,
        -65_536 * MAX_NUMBER,
        -(2.0**-8),
    ]
    assert words.max() < 2**16, "a limb uses half of its word, so that others can be added"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e16])
def test_other_numbers_are_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="not finite or too large"):
        to_words([1.0, number])


@pytest.mark.parametrize("parts", [1, 3])
def test_scores_are_laid_out_without_their_groups(parts: Any) -> None:
    names = ("nll", "tokens", "correct")
    groups = [g if parts == 1 else f"{g}|{p}" for g in ("fr", "de|x") for p in range(parts)]
    scores = Scores({group: {"nll": 1.5 + i, "tokens": 4.0} for i, group in enumerate(groups)})
    found = unflatten(flatten(scores, names, parts), names, parts)
    assert list(found.sums) == (["all"] if parts == 1 else ["all|0", "all|1", "all|2"])
    first = found.sums["all" if parts == 1 else "all|0"]
    assert first == {"nll": 1.5 + 1.5 + len(groups) // 2, "tokens": 8.0, "correct": 0.0}
    assert len(to_words(flatten(Scores({}), names, parts))) == 3 * parts * LIMBS, "of a silo without samples too"


def test_a_sum_that_the_task_does_not_name_is_refused() -> None:
    with pytest.raises(ValueError, match="does not name beforehand"):
        flatten(Scores({"fr": {"surprise": 1.0}}), ("nll",), 1)
