"""Median, trimmed mean, Krum, norm bound: against numpy, and against a liar."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.methods.fedavg import Mean
from hansa.methods.robust import Krum, NormBound, TrimmedMean
from tests.toys import update

VALUES = st.lists(st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4), min_size=1, max_size=9)


def combine(rule: Any, rows: Any, samples: Any = 1) -> Any:
    updates = [update(list(row), samples) for row in rows]
    return rule.combine(updates[0].gradient.layout, ((u, float(u.samples)) for u in updates)).flat.numpy()


@given(VALUES)
def test_median_is_numpys(rows: Any) -> None:
    np.testing.assert_allclose(combine(TrimmedMean(0.5), rows), np.median(rows, axis=0), rtol=1e-5, atol=1e-6)


@given(VALUES)
def test_nothing_trimmed_is_the_mean(rows: Any) -> None:
    np.testing.assert_allclose(combine(TrimmedMean(0.0), rows), np.mean(rows, axis=0), rtol=1e-4, atol=1e-5)


def test_trimmed_mean_cuts_both_ends() -> None:
    rows = [[1.0], [2.0], [3.0], [4.0], [100.0]]
    assert combine(TrimmedMean(0.2), rows)[0] == pytest.approx(3.0)


def krum_by_hand(rows: Any, bad: int) -> Any:
    n = len(rows)
    scores = []
    for i in range(n):
        d = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(d[: n - bad - 2]))
    return rows[int(np.argmin(scores))]


def test_krum_equals_the_definition() -> None:
    rows = np.random.default_rng(3).normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_array_equal(combine(Krum(2), rows), krum_by_hand(rows, 2))


def test_norm_bound_keeps_short_updates_and_shortens_long_ones() -> None:
    np.testing.assert_allclose(combine(NormBound(10.0), [[3.0, 4.0]]), [3.0, 4.0])
    np.testing.assert_allclose(combine(NormBound(1.0), [[3.0, 4.0]]), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("rule", [TrimmedMean(0.5), TrimmedMean(0.2), Krum(1), NormBound(2.0)])
def test_one_liar_of_five_cannot_steer(rule: Any) -> None:
    honest = np.random.default_rng(0).normal(1.0, 0.1, size=(4, 6)).astype(np.float32)
    for lie in (honest[0] * 100, -honest[0] * 100):
        rows = np.vstack([honest, lie])
        assert np.abs(combine(rule, rows) - 1.0).max() < 0.8
        assert np.abs(combine(Mean(), rows) - 1.0).max() > 10, "the control must break"


def test_rules_that_see_each_update_say_so() -> None:
    assert not TrimmedMean(0.1).linear
    assert not Krum(1).linear
    assert not NormBound(1.0).linear
