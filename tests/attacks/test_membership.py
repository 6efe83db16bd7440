"""Membership inference: an overfitted model gives its training rows away, noise on updates prevents it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.attacks.membership import attack_membership, compared, logit
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.report.audit import tables
from hansa.runs.run import run
from tests.attacks.silos import federation, unrelated, words, write

NOISE = {"noise_multiplier": 2.0, "clip": 1.0, "seeded": True}  # repeats, so that the figure below is one figure


def overfitted(folder: Path, **silo: Any) -> Path:
    """A run on random labels, long enough to remember them."""
    vocabulary = words(200)
    silos = {n: {"train": write(folder / f"{n}.jsonl", unrelated(n, 160, vocabulary))} | silo for n in ("a", "b")}
    settings = federation(
        silos,
        train={"optimizer": "adam", "lr": 0.001, "batch": 16, "samples": {"epochs": 15}},
        data={"max_length": 20, "valid": 0.0, "test": 0.5},
        tokenizer={"size": 900, "min_count": 2},
        rounds=2,
    )
    return run(settings, folder / "run", workers=0).folder


def test_an_overfitted_model_gives_members_away_and_noise_prevents_it(tmp_path: Path) -> None:
    open_ = attack_membership(overfitted(tmp_path / "open"), "a", shadows=2)
    scores = {row["attack"]: row for row in open_["rows"]}
    assert set(scores) == {"loss", "calibrated", "likelihood ratio"}
    assert scores["loss"]["low"] > 0.6
    assert open_["control"]["value"] > 0.6
    assert open_["rounds"][-1]["value"] == pytest.approx(scores["loss"]["value"])
    assert "above guessing" in " ".join(open_["reading"])
    [shown] = tables(open_)
    assert shown["rows"][-1][0] == "(control: the silo alone)"
    private = attack_membership(overfitted(tmp_path / "private", privacy=NOISE), "a", shadows=0)
    assert private["protected"]
    [loss] = private["rows"]
    assert loss["value"] <= 0.55


def test_the_likelihood_ratio_finds_what_the_loss_alone_cannot() -> None:
    """Oracle: rows of very different difficulty, of which members are only a little easier than without training."""
    rng = stream(0, "difficulty")
    rows, shadows = 400, 8
    difficulty, member = rng.normal(0, 5, rows), np.arange(rows) < rows // 2
    phi = difficulty + 1.0 * member + rng.normal(0, 0.5, rows)
    inside = rng.random((shadows, rows)) < 0.5
    seen = difficulty + 1.0 * inside + rng.normal(0, 0.5, (shadows, rows))
    ins = [np.where(chosen, values, np.nan) for chosen, values in zip(inside, seen, strict=True)]
    outs = [np.where(chosen, np.nan, values) for chosen, values in zip(inside, seen, strict=True)]
    found = compared(phi, ins, outs)

    def auc(scores: Any) -> float:
        return float(np.mean(scores[member][:, None] > scores[~member][None, :]))

    assert auc(phi) < 0.6
    assert auc(found["calibrated"]) > 0.8
    assert auc(found["likelihood ratio"]) > 0.8


def test_the_logit_of_the_loss() -> None:
    losses = np.array([0.01, 0.5, 3.0])
    p = np.exp(-losses)
    np.testing.assert_allclose(logit(losses), np.log(p / (1 - p)))


def test_too_few_rows_are_refused_in_a_sentence(tmp_path: Path) -> None:
    silos = {"a": {"train": write(tmp_path / "a.jsonl", unrelated("a", 30, words(20)))}}
    done = run(federation(silos, rounds=1), tmp_path / "run", workers=0)
    with pytest.raises(UserError, match="membership inference needs at least 20 of each"):
        attack_membership(done.folder, None)
