"""Laws of tensors and messages, over many made-up values."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.core import wire
from hansa.core.messages import (
    BelowPart,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
    Knowledge,
    KnowledgePart,
    LayersPart,
    MaskedPart,
    MaskingPart,
    Personalise,
    PersonalScores,
    RevealedShares,
    Scores,
    SecretShares,
    ShareKnowledge,
    ShareSecrets,
    StepWindow,
    SubtreePart,
    Train,
    Update,
    VocabularyCounts,
)
from hansa.core.tensors import Layout, Tensors, WeightedMean, is_finite

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
NAMES = st.text(min_size=1, max_size=12)
SUMS = st.dictionaries(NAMES, st.floats(-1e9, 1e9), max_size=3)
COUNTS = st.dictionaries(NAMES, st.integers(0, 10**12), max_size=4)


@st.composite
def tensors(draw: Any) -> Tensors:
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    shapes = [tuple(draw(st.lists(st.integers(0, 3), max_size=3))) for _ in names]
    layout = Layout(tuple(names), tuple(shapes))
    values = draw(st.lists(FLOATS, min_size=layout.size, max_size=layout.size))
    return Tensors(layout, torch.tensor(values, dtype=torch.float32))


MEMBERS = st.lists(st.integers(1, 99), max_size=3).map(tuple)
ATTENTION = st.dictionaries(NAMES, st.dictionaries(NAMES, SUMS, max_size=2), max_size=2)
KNOWLEDGE = st.builds(Knowledge, tensors(), MEMBERS, MEMBERS, st.integers(0, 9))
MESSAGES = st.one_of(
    st.just(DescribeData()),
    st.builds(CollectVocabulary, st.integers(0, 100), st.integers(0, 100)),
    st.builds(ShareKnowledge, st.integers(0, 10**6), tensors()),
    KNOWLEDGE,
    st.builds(
        Train,
        st.integers(0, 10**6),
        tensors(),
        st.integers(0, 10**6),
        schedule=st.none() | st.builds(StepWindow, st.integers(0, 10**6), st.integers(0, 10**6)),
        knowledge=st.none() | st.builds(KnowledgePart, st.lists(KNOWLEDGE, max_size=2).map(tuple)),
        masking=st.none() | st.builds(MaskingPart, st.dictionaries(NAMES, st.tuples(NAMES, NAMES), max_size=2)),
        subtree=st.none() | st.builds(SubtreePart, NAMES, tensors(), st.floats(0, 1e6)),
        shared_state=st.none() | tensors(),
        capacity=st.integers(0, 10**9),
        reference=st.booleans(),
    ),
    st.builds(
        ShareSecrets, st.integers(0, 9), st.dictionaries(NAMES, st.tuples(NAMES, NAMES), max_size=2), st.integers(2, 9)
    ),
    st.builds(SecretShares, st.dictionaries(NAMES, NAMES, max_size=2)),
    st.builds(RevealedShares, st.dictionaries(NAMES, st.tuples(NAMES, NAMES), max_size=2)),
    st.builds(Evaluate, st.integers(0, 10**6), tensors(), NAMES, st.floats(0, 1), st.integers(1, 9)),
    st.builds(VocabularyCounts, COUNTS, st.lists(NAMES, max_size=3).map(tuple), st.integers(0, 10**6)),
    st.builds(
        DataCard,
        st.dictionaries(NAMES, COUNTS, max_size=2),
        st.integers(0, 10**6),
        st.lists(NAMES, max_size=2).map(tuple),
    ),
    st.builds(
        Update,
        tensors(),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
        st.integers(0, 10**6),
        st.floats(allow_nan=False),
        st.floats(0, 1e6),
        movement=st.lists(st.floats(0, 1e6), max_size=3).map(tuple),
        masked=st.none() | st.builds(MaskedPart, st.integers(0, 10**6)),
        below=st.none() | st.builds(BelowPart, st.dictionaries(NAMES, NAMES, max_size=2), COUNTS, COUNTS),
        layers=st.none() | st.builds(LayersPart, tensors(), ATTENTION, st.dictionaries(NAMES, NAMES, max_size=2)),
        shared_state=st.none() | tensors(),
    ),
    st.builds(Scores, st.dictionaries(NAMES, SUMS, max_size=3)),
    st.builds(Personalise, st.integers(0, 10**6), tensors(), tensors(), NAMES, st.integers(0, 9), st.booleans()),
    st.builds(
        PersonalScores,
        tensors(),
        st.dictionaries(NAMES, st.dictionaries(NAMES, SUMS, max_size=2), max_size=2),
        SUMS,
        st.dictionaries(NAMES, st.lists(st.floats(-1e9, 1e9), max_size=3).map(tuple), max_size=2),
        st.floats(0, 1),
    ),
    st.builds(Failure, NAMES),
)


@given(MESSAGES)
def test_the_wire_gives_back_the_same_message_bit_for_bit(message: Any) -> None:
    back = wire.decode(wire.encode(message))
    assert type(back) is type(message)
    assert wire.equal(message, back)


@given(tensors())
def test_a_selection_and_its_rest_make_the_whole(whole: Any) -> None:
    names = whole.layout.names
    blank = Tensors(whole.layout, torch.zeros(whole.layout.size))
    for part in (names[::2], names[1::2]):
        blank.write(whole.only(part))
    assert blank.same_bits(whole)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-100, 100, width=32), min_size=5, max_size=5), st.floats(0.01, 10)),
        min_size=1,
        max_size=6,
    )
)
def test_the_running_mean_is_numpys(rows: Any) -> None:
    layout = Layout(("a", "b"), ((2,), (3,)))
    mean = WeightedMean(layout)
    for values, weight in rows:
        mean.add(Tensors(layout, torch.tensor(values)), weight)
    expected = np.average([v for v, _ in rows], axis=0, weights=[w for _, w in rows])
    np.testing.assert_allclose(mean.mean().flat.numpy(), expected, rtol=1e-4, atol=1e-3)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    st.data(),
)
def test_one_bad_value_is_always_found(values: Any, bad: Any, data: Any) -> None:
    assert is_finite(torch.tensor(values))
    values[data.draw(st.integers(0, len(values) - 1))] = bad
    assert not is_finite(torch.tensor(values))


def test_scores_add_up() -> None:
    a, b = Scores({"fr": {"nll": 1.0, "tokens": 2.0}}), Scores({"fr": {"nll": 3.0}, "it": {"tokens": 1.0}})
    assert (a + b).sums == {"fr": {"nll": 4.0, "tokens": 2.0}, "it": {"tokens": 1.0}}
    assert a.sums["fr"]["nll"] == 1.0, "adding changes neither"
