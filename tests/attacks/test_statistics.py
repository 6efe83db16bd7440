"""The area under the ROC curve against its definition; exposure at its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.attacks.statistics import Values, auc, exposure, true_positives
from hansa.core.seeds import stream

values = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=20).map(np.array)


@given(values, values)
def test_the_auc_is_the_share_of_pairs_in_order(members: Values, others: Values) -> None:
    pairs = [(a > b) + 0.5 * (a == b) for a in members for b in others]
    found = auc(members, others)
    assert found.value == pytest.approx(np.mean(pairs))
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    assert auc(others, members).value == pytest.approx(1 - found.value)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Normal scores one deviation apart: the AUC is Φ(1/√2) = 0.7602."""
    rng = stream(0, "coverage")
    covered = [
        found.low <= 0.7602 <= found.high
        for found in (auc(rng.normal(1.0, 1.0, 80), rng.normal(0.0, 1.0, 80)) for _ in range(400))
    ]
    assert 0.91 <= np.mean(covered) <= 0.985


def test_true_positives_at_few_false_positives() -> None:
    members, others = np.arange(100.0) + 50, np.arange(100.0)
    assert true_positives(members, others, 0.0) == pytest.approx(0.5)
    assert true_positives(others, others, 0.05) == pytest.approx(0.05)


def test_exposure_of_the_first_the_last_and_the_middle() -> None:
    assert exposure(1, 1024) == 10.0
    assert exposure(1024, 1024) == 0.0
    assert exposure(512, 1024) == 1.0
