"""The requests that a federation's settings imply, and no others."""

from typing import Any

import pytest

from hansa.client.personalisation import NEARBY, OWN
from hansa.core.messages import (
    AdvertiseKeys,
    CollectVocabulary,
    DescribeData,
    Evaluate,
    KnowledgePart,
    Personalise,
    ShareKnowledge,
    StepWindow,
    SubtreePart,
    Train,
    no_tensors,
)
from hansa.privacy.policy.request_limits import PERSONAL_MODELS, RequestLimits
from tests.conftest import Build

EMPTY = no_tensors()


@pytest.fixture
def limits(federation: Build) -> RequestLimits:
    return RequestLimits(federation(rounds=7, evaluate={"every": 3, "share": 0.5}), "north")


@pytest.mark.parametrize(
    "request_",
    [
        DescribeData(),
        CollectVocabulary(2),
        Train(1, EMPTY),
        Train(7, EMPTY),
        ShareKnowledge(3, EMPTY),
        Evaluate(0, EMPTY, "valid", 0.5),
        Evaluate(3, EMPTY, "test", 0.5),
        Evaluate(7, EMPTY, "test", 0.5),
        Evaluate(7, EMPTY, "test", 1.0, parts=4),
    ],
)
def test_what_the_settings_imply_is_allowed(limits: RequestLimits, request_: Any) -> None:
    assert limits.objection(request_) == ""


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Train(0, EMPTY), "round 0"),
        (Train(8, EMPTY), "round 8"),
        (AdvertiseKeys(8), "round 8"),
        (Evaluate(3, EMPTY, "train", 0.5), "only validation and test"),
        (Evaluate(3, EMPTY, "test", 1.0), "another"),
        (Evaluate(3, EMPTY, "test", 0.01), "another"),
        (Evaluate(2, EMPTY, "test", 0.5), "no model after round 2"),
        (Evaluate(9, EMPTY, "test", 0.5), "no model after round 9"),
        (Evaluate(7, EMPTY, "test", 1.0, parts=400), "400 parts"),
        (Evaluate(7, EMPTY, "valid", 0.5, parts=4), "4 parts"),
        (Evaluate(7, EMPTY, "test", 1.0, own=True), "keeps none"),
        (Evaluate(7, EMPTY, "test", 1.0, by_node=True), "no models of their own"),
        (Train(1, EMPTY, reference=True), "'reference'"),
        (Train(1, EMPTY, schedule=StepWindow(0, 9)), "'schedule'"),
        (Train(1, EMPTY, subtree=SubtreePart("root", EMPTY)), "'subtree'"),
        (Train(1, EMPTY, knowledge=KnowledgePart(())), "'knowledge'"),
        (Train(1, EMPTY, shared_state=EMPTY), "'shared_state'"),
        (Train(1, EMPTY, capacity=9), "'capacity'"),
        (CollectVocabulary(1), "words that 1 rows have"),
        (Personalise(7, EMPTY, EMPTY, "mine"), "no personal models"),
    ],
)
def test_what_they_do_not_imply_is_refused(limits: RequestLimits, request_: Any, why: str) -> None:
    assert why in limits.objection(request_)


def test_personal_models_follow_the_last_round(federation: Build) -> None:
    data = {"max_length": 16, "valid": 0.2, "test": 0.2}
    limits = RequestLimits(federation(rounds=2, personal={"rounds": 1}, data=data), "north")
    assert limits.objection(Personalise(2, EMPTY, EMPTY, OWN)) == ""
    assert "follow the last round" in limits.objection(Personalise(1, EMPTY, EMPTY, OWN))
    assert "compare none" in limits.objection(Personalise(2, EMPTY, EMPTY, OWN, share=True))
    for other in (Personalise(2, EMPTY, EMPTY, "mine"), Personalise(2, EMPTY, EMPTY, OWN, leg=7)):
        assert "another personal model" in limits.objection(other)
    near = RequestLimits(federation(rounds=2, personal={"rounds": 2, "nearby": 1}, data=data), "north")
    for name in (OWN, NEARBY):
        assert near.objection(Personalise(2, EMPTY, EMPTY, name, 0, True)) == ""
        assert near.objection(Personalise(2, EMPTY, EMPTY, name, 1)) == ""
    assert near.objection(Personalise(2, EMPTY, EMPTY, OWN, 1, True))
    assert set(PERSONAL_MODELS) == {OWN, NEARBY}


def test_own_models_are_scored_where_silos_keep_them(federation: Build) -> None:
    """Dynamic pulling leaves a silo with values of its own."""
    limits = RequestLimits(federation(rounds=2, upload="calm"), "north")
    assert limits.objection(Evaluate(2, EMPTY, "test", 1.0, own=True)) == ""


def test_silos_of_an_asynchronous_method_number_their_own_works(federation: Build) -> None:
    limits = RequestLimits(federation(rounds=4, method={"name": "fedbuff", "buffer": 2}), "north")
    assert limits.objection(Train(8, EMPTY)) == ""
    assert limits.objection(Train(9, EMPTY))
