"""A batch in parts takes the same step as in one piece."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.training import train
from hansa.config.sections import Training
from hansa.methods.fedavg import PlainObjective
from hansa.runs.run import run
from hansa.tasks.classify import Classify
from tests.classifiers import batch_of, classifier, texts_of, work_of
from tests.conftest import Build, same, weights


def after(*cuts: int) -> tuple[torch.Tensor, float, int, int]:
    """Where one step leads when the batch is cut there."""
    texts, labels = texts_of(7)
    edges = [0, *cuts, 7]
    parts = [batch_of(texts[a:b], labels[a:b]) for a, b in pairwise(edges)]
    learner = classifier()
    done = train(work_of(learner), Classify(), PlainObjective(), Training(lr=0.5), iter([parts]), 1.0)
    return learner.flat, done.loss, done.steps, done.seen


@pytest.mark.parametrize("cuts", [(3,), (1, 2), (5, 6)])
def test_parts_add_up_to_the_batch(cuts: Any) -> None:
    whole, parts = after(), after(*cuts)
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-5, atol=1e-6)
    assert parts[1] == pytest.approx(whole[1], rel=1e-5)
    assert parts[2:] == whole[2:] == (1, 7)


def test_a_part_without_a_target_teaches_nothing_and_spoils_nothing() -> None:
    texts, labels = texts_of(4)
    full, one = batch_of(texts, labels), batch_of(texts[:1], labels[:1])
    empty = replace(one, targets=torch.zeros(0, dtype=torch.long))
    learner = classifier()
    done = train(work_of(learner), Classify(), PlainObjective(), Training(lr=0.5), iter([[full, empty]]), 1.0)
    alone = classifier()
    train(work_of(alone), Classify(), PlainObjective(), Training(lr=0.5), iter([[full]]), 1.0)
    assert torch.equal(learner.flat, alone.flat)
    assert done.loss == done.loss, "a number"


def test_the_file_says_how_many_samples_go_through_the_model_together(federation: Build, tmp_path: Path) -> None:
    """Labels need no masks, which would be drawn otherwise: so the two runs differ by rounding alone."""
    settings = {"task": "classify", "rounds": 1, "model": "mini"}
    train = {"lr": 0.2, "batch": 16, "samples": {"floor": 16}}
    run(federation(**settings, train=train), tmp_path / "whole", workers=0)
    run(federation(**settings, train=train | {"micro_batch": 5}), tmp_path / "parts", workers=0)
    run(federation(**settings, train=train | {"batch": 5}), tmp_path / "smaller", workers=0)
    whole, parts, smaller = (weights(tmp_path / name / "model") for name in ("whole", "parts", "smaller"))
    assert not same(parts, whole), "it went another way"
    assert all(torch.allclose(parts[name], whole[name], rtol=1e-4, atol=1e-5) for name in whole)
    assert not all(torch.allclose(smaller[name], whole[name], rtol=1e-4, atol=1e-5) for name in whole)
