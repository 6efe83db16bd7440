"""Policies that require losses and scores under masks: what they refuse, what they accept, and the least samples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Evaluate,
    Failure,
    MaskedPart,
    MaskingPart,
    Scores,
    ShareSecrets,
    Train,
    Update,
    no_tensors,
)
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.dp.charging import RunCharging
from hansa.privacy.policy.audit_log import AuditLog
from hansa.privacy.policy.guard import Behind, Guard, SiloChecks
from hansa.privacy.policy.limits import Limits
from hansa.privacy.policy.model_check import ModelHistory, received_models
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.request_limits import RequestLimits
from hansa.privacy.policy.rules import Purpose
from tests.conftest import Build
from tests.privacy.policy.policies import ALL, policy

WORDS = Tensors.zeros(Layout(("words",), ((24,),)))
MODEL = Tensors.zeros(Layout(("block.0.w",), ((4,),)))
ROSTER = MaskingPart(dict.fromkeys(("north", "south", "east"), ("a", "b", "1", "c", "")))
TRAIN = Train(1, MODEL, masking=ROSTER)
MASKED_UPDATE = Update(MODEL, 1, 0, 0, 0.0, 0.0, masked=MaskedPart(0, WORDS))
PLAIN_UPDATE = Update(MODEL, 40, 16, 2, 1.5, 0.1, masked=MaskedPart(0))
METRICS: dict[str, Any] = {"secure_aggregation": {"metrics": True}}


def guard(federation: Build, folder: Path, reply: Any, least: int = 1, samples: int = 40, **settings: Any) -> Guard:
    """A guard of a silo whose answer to everything is ``reply``; ``samples``: behind each part of its scores."""
    found = federation(rounds=2, **settings)
    groups = {"en|0": samples, "fr|0": 0, "en|1": samples, "fr|1": 0}

    def behind(request: Any) -> Behind:
        whole = getattr(request, "parts", 1) == 1
        return Behind(40, groups={"en": samples, "fr": 0} if whole else groups)

    text = folder / "policy.yaml"
    text.write_text(text.read_text() + f"limits: {{min_samples: {least}, min_update_samples: 1}}\n")
    models = ModelHistory(folder / "models", lambda: MODEL, lambda name: name.split(".")[0])
    checks = SiloChecks(RequestLimits(found, "north"), models, behind, RunCharging(found, "north", folder))
    log = AuditLog(folder / "audit.jsonl", "north")
    part_of: Callable[[str], str] = lambda name: {"block.0.w": "block"}[name]  # noqa: E731
    return Guard(lambda request: reply, text, Purpose.of(found, "north"), log, part_of, "x", checks=checks)


def requiring(folder: Path, secure_metrics: bool = True) -> None:
    policy(folder, release=ALL, require={"secure_metrics": secure_metrics})


@pytest.mark.parametrize(
    ("request_", "reply", "settings", "refused"),
    [
        (TRAIN, MASKED_UPDATE, METRICS, False),
        (TRAIN, PLAIN_UPDATE, METRICS, True),
        (TRAIN, Update(MODEL, 1, 0, 0, 1.5, 0.0, masked=MaskedPart(0, WORDS)), METRICS, True),
        (Train(1, MODEL), MASKED_UPDATE, METRICS, True),
        (TRAIN, PLAIN_UPDATE, {"secure_aggregation": True}, True),
        (Evaluate(0, MODEL, "test", 1.0, masking=ROSTER), Scores({}, WORDS), METRICS, False),
        (Evaluate(0, MODEL, "test", 1.0, masking=ROSTER), Scores({"en": {"nll": 1.0}}), METRICS, True),
        (Evaluate(0, MODEL, "test", 1.0, masking=ROSTER), Scores({"en": {"nll": 1.0}}, WORDS), METRICS, True),
        (Evaluate(0, MODEL, "test", 1.0), Scores({"en": {"nll": 1.0}}), METRICS, True),
        (Evaluate(0, MODEL, "test", 1.0), Scores({"en": {"nll": 1.0}}), {"secure_aggregation": True}, True),
    ],
)
def test_a_rule_that_requires_masked_metrics_refuses_plain_ones(
    federation: Build, tmp_path: Path, request_: Any, reply: Any, settings: Any, refused: Any
) -> None:
    requiring(tmp_path)
    answer = guard(federation, tmp_path, reply, **settings)(request_)
    assert isinstance(answer, Failure) == refused, answer
    if not refused:
        assert answer == reply


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (TRAIN, PLAIN_UPDATE),
        (Evaluate(0, MODEL, "test", 1.0), Scores({"en": {"nll": 1.0}})),
    ],
)
def test_without_the_requirement_plain_metrics_leave(
    federation: Build, tmp_path: Path, request_: Any, reply: Any
) -> None:
    """The control: the requirement refused them above, and nothing else."""
    requiring(tmp_path, False)
    assert guard(federation, tmp_path, reply, secure_aggregation=True)(request_) == reply


def test_the_preview_says_the_same(federation: Build, tmp_path: Path) -> None:
    found = policy(tmp_path, release=ALL, require={"secure_metrics": True})
    for settings, refused in ((METRICS, set()), ({"secure_aggregation": True}, {"Train", "Evaluate"})):
        decisions = preview_policy(found, federation(rounds=2, **settings))
        assert {d.request for d in decisions if not d.verdict.allowed} & {"Train", "Evaluate"} == refused


def test_masked_figures_cannot_be_taken_out_of_an_update(federation: Build, tmp_path: Path) -> None:
    """Plain losses are withheld where no rule releases metrics; under masks the sum would not open without them."""
    policy(tmp_path, release=ALL | {"metrics": False})
    plain = guard(federation, tmp_path, PLAIN_UPDATE, secure_aggregation=True)(TRAIN)
    assert isinstance(plain, Update)
    assert plain.loss == 0.0
    policy(tmp_path, release=ALL | {"metrics": False})
    answer = guard(federation, tmp_path, MASKED_UPDATE, **METRICS)(TRAIN)
    assert isinstance(answer, Failure)
    assert "metrics may not leave" in answer.reason


@pytest.mark.parametrize(
    ("samples", "least", "parts", "refused"),
    [(9, 10, 1, True), (10, 10, 1, False), (9, 10, 4, True), (10, 10, 4, False), (0, 10, 1, False)],
)
def test_masked_scores_have_the_least_number_of_samples_behind_them(
    federation: Build, tmp_path: Path, samples: Any, least: Any, parts: Any, refused: Any
) -> None:
    requiring(tmp_path)
    guarded = guard(federation, tmp_path, Scores({}, WORDS), least, samples, **METRICS)
    answer = guarded(Evaluate(2, MODEL, "test", 1.0, parts, masking=ROSTER))
    assert isinstance(answer, Failure) == refused, answer
    if isinstance(answer, Failure):
        assert f"{samples} samples are behind masked scores" in answer.reason


def test_keys_for_scores_need_no_release_of_tensors(federation: Build, tmp_path: Path) -> None:
    reply = AdvertisedKeys("a" * 64, "b" * 64, 1, "c" * 64, "s")
    for release, scores, refused in (
        ({"metrics": True, "samples": True}, "test", False),
        ({"metrics": True, "samples": True}, "", True),
        ({"tensors": "any", "samples": True}, "test", True),
        ({"tensors": "any", "samples": True}, "", False),
    ):
        policy(tmp_path, release=release)
        answer = guard(federation, tmp_path, reply, **METRICS)(AdvertiseKeys(2, "d" * 64, scores))
        assert isinstance(answer, Failure) == refused, (release, scores)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (AdvertiseKeys(0, "", "valid"), ""),
        (AdvertiseKeys(0, "", ""), "round 0"),
        (ShareSecrets(2, {}, 2, "test-in-parts"), ""),
        (AdvertiseKeys(1, "", "valid"), "no model after round 1"),
        (AdvertiseKeys(4, "", "valid"), "no model after round 4"),
        (AdvertiseKeys(0, "", "train"), "only scores of validation and test"),
        (Evaluate(0, no_tensors(), "valid", 1.0, masking=ROSTER), ""),
        (Evaluate(0, no_tensors(), "valid", 1.0), "leave under masks"),
    ],
)
def test_masked_evaluations_follow_from_the_settings(federation: Build, request_: Any, why: Any) -> None:
    limits = RequestLimits(federation(rounds=2, evaluate={"every": 2, "share": 1.0}, **METRICS), "north")
    found = limits.objection(request_)
    assert why in found
    assert bool(found) == bool(why)


def test_without_masked_metrics_no_scores_are_summed(federation: Build) -> None:
    limits = RequestLimits(federation(rounds=2, secure_aggregation=True), "north")
    for request in (AdvertiseKeys(0, "", "valid"), Evaluate(0, no_tensors(), "valid", 1.0, masking=ROSTER)):
        assert "mask no scores" in limits.objection(request)


def test_the_announced_digest_of_an_evaluation_is_no_model(tmp_path: Path) -> None:
    models = ModelHistory(tmp_path, lambda: MODEL, lambda name: name)
    train = Train(1, MODEL)
    assert not models.judge(train, received_models(train), Limits()).refusal
    assert not models.judge(AdvertiseKeys(1, "e" * 64, "test"), [], Limits()).refusal
    assert models.judge(AdvertiseKeys(1, "e" * 64), [], Limits()).refusal, "the control: of updates, it is the model's"
