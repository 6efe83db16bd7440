"""Personal models: APFL's equations, the sweep, the mixture of nearby silos, and what is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa.client.evaluation import evaluate
from hansa.client.host import SiloHost
from hansa.client.personalisation import ALPHAS, Mixing, ahead
from hansa.client.training import train
from hansa.config.sections import Training
from hansa.core.errors import DataError
from hansa.core.learner import Learner, Work
from hansa.core.messages import Scores
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import PlainObjective
from hansa.runs.inference import load
from hansa.runs.ledger import Ledger
from hansa.runs.personalisation import mixture, similarity
from hansa.runs.run import run
from hansa.tasks.mlm import MaskedLM
from tests.conftest import Build, same, weights
from tests.toys import Point, Pull, batches

DATA = {"max_length": 16, "valid": 0.15, "test": 0.2}
PERSONAL = {"rounds": 4, "train": {"optimizer": "adamw", "lr": 0.01, "batch": 8}}


def facts(folder: Any) -> Any:
    ledger = Ledger(folder)
    try:
        return ledger.facts()["personal"]
    finally:
        ledger.close()


def test_adaptive_mixing_is_apfl_written_out() -> None:
    targets, shared, lr, alpha_lr = [[3.0, -1.0], [2.0, 0.0], [4.0, 1.0]], np.array([1.0, 1.0]), 0.1, 0.05
    own, alpha = np.array([0.5, 0.0]), 0.4
    learner = Learner(Point(own.tolist()))
    training = Training(optimizer="sgd", lr=lr)
    mixing = Mixing(learner, torch.tensor(shared, dtype=torch.float32), training, alpha, alpha_lr)
    work = Work(learner, learner.state.copy(), 1, {})
    train(work, Pull(), PlainObjective(), training, batches(targets), 1.0, mixing)  # type: ignore[arg-type]
    for target in targets:
        gradient = alpha * own + (1 - alpha) * shared - np.array(target)
        slope = gradient @ (own - shared)
        own = own - lr * alpha * gradient
        alpha = min(1.0, max(0.0, alpha - alpha_lr * slope))
    np.testing.assert_allclose(mixing.own.numpy(), own, rtol=1e-5)
    assert mixing.alpha == pytest.approx(alpha, rel=1e-5)


def test_alpha_stays_between_zero_and_one() -> None:
    learner = Learner(Point([5.0, 5.0]))
    mixing = Mixing(learner, torch.zeros(2), Training(lr=0.01), 0.5, 100.0)
    work = Work(learner, learner.state.copy(), 1, {})
    training = Training(lr=0.01)
    train(work, Pull(), PlainObjective(), training, batches([[0.0, 0.0]]), 1.0, mixing)  # type: ignore[arg-type]
    assert mixing.alpha == 0.0


def test_the_sweep_keeps_the_best_on_validation_and_every_silo_has_a_model(federation: Build, tmp_path: Path) -> None:
    outcome = run(federation(rounds=2, personal=PERSONAL | {"rounds": 12}, data=DATA), tmp_path / "r", workers=0)
    found = facts(outcome.folder)
    for name, known in found["silos"].items():
        assert len(known["curves"]["loss"]) == len(ALPHAS) == 21
        best = int(np.argmin(known["curves"]["loss"]))
        assert known["alpha"] in (0.0, ALPHAS[best]), "the best, or the shared model where that is not sure"
        at_alpha = known["curves"]["loss"][ALPHAS.index(known["alpha"])]
        assert known["losses"]["interpolated"] == pytest.approx(at_alpha)
        assert known["losses"]["interpolated"] <= known["losses"]["federated"]
        assert known["losses"]["federated"] == pytest.approx(known["curves"]["loss"][0])
        _, model = load(outcome.folder, name)
        assert model.config.vocab_size > 0
        note = json.loads((outcome.folder / "silos" / name / "personal.json").read_text())
        assert note["loss"] == min(known["losses"].values())
    personal = [weights(outcome.folder / "silos" / name / "model") for name in found["silos"]]
    assert not all(same(one, weights(outcome.folder / "model")) for one in personal), "some have a model of their own"


def test_without_the_fallback_the_sweep_keeps_the_best_whatever_its_lead(federation: Build, tmp_path: Path) -> None:
    settings = PERSONAL | {"rounds": 12, "fallback": False}
    outcome = run(federation(rounds=2, personal=settings, data=DATA), tmp_path / "r", workers=0)
    for known in facts(outcome.folder)["silos"].values():
        assert known["alpha"] == ALPHAS[int(np.argmin(known["curves"]["loss"]))]


def parts(losses: Any, hits: Any) -> Any:
    """What a silo knows of a model, on four parts of a hundred tokens each."""
    return Scores(
        {
            f"g|{i}": {"nll": 100 * x, "tokens": 100, "correct": n}
            for i, (x, n) in enumerate(zip(losses, hits, strict=True))
        }
    )


def test_a_mixture_is_taken_only_if_it_is_better_beyond_chance() -> None:
    shared = parts([1.0] * 4, [50] * 4)
    sure, more = [0.8, 0.7, 0.8, 0.7], [52, 53, 52, 53]
    assert ahead(MaskedLM(), shared, parts(sure, more))
    assert not ahead(MaskedLM(), shared, parts([0.2, 1.2, 1.1, 1.2], more)), "one lucky part is not enough"
    assert not ahead(MaskedLM(), shared, parts(sure, [50, 51, 50, 49])), "a better loss that guesses no better"
    assert not ahead(MaskedLM(), shared, parts([1.1] * 4, more))
    assert not ahead(MaskedLM(), parts([1.0], [50]), parts([0.5], [60])), "one part shows no spread"
    assert not ahead(MaskedLM(), shared, shared)


def test_several_draws_ask_other_questions_of_the_same_samples(federation: Build, tmp_path: Path) -> None:
    once = run(federation(rounds=1, personal=PERSONAL, data=DATA), tmp_path / "once", workers=0)
    runtime, model = load(once.folder)
    held = SiloHost(runtime).silo("north").resident.examples("test")

    def tokens(draws: Any) -> Any:
        return evaluate(model, runtime.task, held, runtime.vocabulary, 0, draws=draws).sums["north"]["tokens"]

    assert tokens(1) < tokens(3) < 4 * tokens(1)
    assert tokens(3) != 3 * tokens(1), "other masks"


def test_where_the_shared_model_stays_its_figures_are_the_very_same(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2, personal=PERSONAL | {"draws": 3}, data=DATA)
    found = facts(run(settings, tmp_path / "r", workers=0).folder)
    models = [(known["alpha"], known["models"]) for known in found["silos"].values()]
    assert all(m["interpolated"] == m["federated"] for alpha, m in models if alpha == 0.0)
    assert all(m["interpolated"] != m["federated"] for alpha, m in models if alpha > 0.0)


def test_personal_training_starts_from_the_chosen_round(federation: Build, tmp_path: Path) -> None:
    late = run(federation(rounds=4, personal=PERSONAL, data=DATA), tmp_path / "late", workers=0)
    early = run(federation(rounds=4, personal=PERSONAL | {"start": 1}, data=DATA), tmp_path / "early", workers=0)
    a, b = (facts(o.folder)["silos"]["north"]["losses"] for o in (late, early))
    assert a["federated"] == b["federated"], "the shared model is the same"
    assert a["personalised"] != b["personalised"]
    assert (early.folder / "checkpoints" / "round-1").exists()


def test_the_same_for_any_number_of_workers(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2, personal=PERSONAL | {"nearby": 1}, data=DATA)
    a = run(settings, tmp_path / "a", workers=0).folder
    b = run(settings, tmp_path / "b", workers=2).folder
    assert facts(a) == facts(b)
    assert same(weights(a / "silos" / "east" / "model"), weights(b / "silos" / "east" / "model"))


def test_similar_silos_are_found_and_strangers_are_not() -> None:
    steps = {"a": [1.0, 0.1], "b": [0.9, 0.2], "c": [-1.0, 0.5]}
    near = {n: Tensors.of({"w": torch.tensor(v)}) for n, v in steps.items()}
    found = similarity(near, 2)
    assert found["a"] == {"b": 1.0}, "c points the other way: it has no share"
    np.testing.assert_allclose(mixture("a", near, found), [0.95, 0.15], rtol=1e-6)
    assert found["c"] == {}
    assert torch.equal(mixture("c", near, found), near["c"].flat), "alone, it keeps its own step"


def test_without_validation_data_it_is_refused(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no validation samples, and 'personal'"):
        run(federation(rounds=1, personal=PERSONAL, data={"max_length": 24, "valid": 0.0}), tmp_path / "r", workers=0)
