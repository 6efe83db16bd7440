"""Scores of entities: strict F1 equals seqeval, type F1 equals nervaluate, and what overlaps count for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.data.formats.annotated import bio_spans
from hansa.tasks.tag import Tag, count

TAG = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(TAG, TAG), min_size=1, max_size=12))
def test_strict_f1_equals_seqeval(both: Any) -> None:
    from seqeval.metrics import f1_score

    true, guessed = map(list, zip(*both, strict=True))
    sums: dict[str, float] = {"words": 1.0, "nll": 0.0}
    count(bio_spans(true), bio_spans(guessed), sums)
    ours = Tag().metrics(sums)
    assert ours["strict_f1"] == pytest.approx(f1_score([true], [guessed], zero_division=0))
    assert ours["type_f1"] >= ours["strict_f1"] - 1e-12, "type F1 is less strict"


ONE = st.sampled_from(["O", "B-X", "I-X"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ONE, ONE), min_size=1, max_size=12))
def test_type_f1_equals_nervaluate(both: Any) -> None:
    """With one entity type; with several, nervaluate also pairs spans of different types."""
    from nervaluate import Evaluator

    true, guessed = map(list, zip(*both, strict=True))
    sums: dict[str, float] = {"words": 1.0, "nll": 0.0}
    count(bio_spans(true), bio_spans(guessed), sums)
    theirs = Evaluator([true], [guessed], tags=["X"], loader="list").evaluate()["overall"]["ent_type"]
    assert Tag().metrics(sums)["type_f1"] == pytest.approx(theirs.f1)


def test_an_entity_is_matched_with_the_closest_one() -> None:
    """The prediction (0, 4) overlaps two entities and is closer to (1, 5), so that (4, 5) has none left."""
    sums: dict[str, float] = {"words": 1.0, "nll": 0.0}
    count([(0, 1, "X"), (1, 5, "X")], [(0, 4, "X"), (4, 5, "X")], sums)
    assert Tag().metrics(sums)["type_f1"] == pytest.approx(0.5)


def test_an_overlap_counts_for_type_and_not_for_strict() -> None:
    sums: dict[str, float] = {"words": 1.0, "nll": 0.0}
    count([(0, 3, "X")], [(0, 2, "X")], sums)
    count([(0, 2, "X")], [(0, 2, "Y")], sums)
    metrics = Tag().metrics(sums)
    assert metrics["strict_f1"] == 0.0
    assert metrics["type_f1"] == pytest.approx(0.5)


def test_macro_and_weighted_f1_by_hand() -> None:
    sums: dict[str, float] = {"words": 1.0, "nll": 0.0}
    count([(0, 1, "X"), (1, 2, "X"), (2, 3, "X"), (3, 4, "Y")], [(0, 1, "X"), (1, 2, "X"), (5, 6, "Y")], sums)
    metrics = Tag().metrics(sums)
    x, y = 2 * 2 / (2 + 3), 0.0
    assert metrics["macro_f1"] == pytest.approx((x + y) / 2)
    assert metrics["weighted_f1"] == pytest.approx((3 * x + 1 * y) / 4)
    assert metrics["strict_f1"] == pytest.approx(2 * 2 / (3 + 4))
