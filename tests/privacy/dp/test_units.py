"""Privacy of single patients: sampling, sums of bounded norm, noise, price, data, and its place in a run."""

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.host import SiloHost
from hansa.client.private_training import by_unit
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.config.sections import Privacy
from hansa.core.errors import ConfigError, DataError
from hansa.core.messages import Train, Update
from hansa.core.noise import SecretSource
from hansa.core.tensors import Tensors
from hansa.preview.preview import preview
from hansa.privacy.dp.accounting import price
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.inference import open_run
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

FIELD = {"unit": "patient", "field": "patient_id"}


def mechanism(**settings: Any) -> UnitMechanism:
    return UnitMechanism(Privacy.model_validate(FIELD | settings))


def patients(federation: Build, tmp_path: Path, rows: int = 40, **privacy: Any) -> Federation:
    """A federation in which silo 'north' protects its patients, of whom each has two notes."""
    settings = federation(sizes={"north": rows, "south": 20}, task="classify", model="mini", rounds=1)
    file = tmp_path / "data" / "north.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    named = [line | {"patient_id": f"p{n // 2}"} for n, line in enumerate(lines)]
    file.write_text("".join(json.dumps(line) + "\n" for line in named))
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    raw["silos"]["north"]["privacy"] = FIELD | {"steps": 2} | privacy
    return parse(raw)


# ── the mechanism ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_patients_are_drawn_independently_with_the_stated_probability() -> None:
    source = SecretSource()
    drawn = np.zeros((2000, 50), bool)
    for step in drawn:
        step[mechanism(sampling=0.3).draw(50, source)] = True
    assert abs(drawn.mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / drawn.size)
    sizes = drawn.sum(axis=1)
    assert sizes.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.2), "batches of one size would have no variance"
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 5 / math.sqrt(2000)
    assert len(mechanism(sampling=1.0).draw(50, source)) == 50


@given(st.integers(1, 60), st.integers(0, 8), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_one_patient_more_moves_the_sum_by_at_most_the_sensitivity(
    size: Any, others: Any, length: Any, seed: Any
) -> None:
    rng = np.random.default_rng(seed)
    gradients = [torch.from_numpy(rng.normal(0, length, size).astype(np.float32)) for _ in range(others + 1)]
    without, whole = mechanism(clip=0.7).sum(size), mechanism(clip=0.7).sum(size)
    for gradient in gradients[:-1]:
        without.add(gradient)
    for gradient in gradients:
        whole.add(gradient)
    moved = math.sqrt(sum(int(k) ** 2 for k in whole.integers - without.integers)) * whole.grid.cell
    assert moved <= whole.grid.sensitivity < 0.7 * (1 + 1e-6)


def test_samples_that_are_clipped_one_by_one_do_not_bound_a_patient() -> None:
    """Negative control: ten notes of one patient, each clipped to C, move the sum by up to 10·C."""
    notes = [torch.ones(4) for _ in range(10)]
    right, wrong = mechanism(clip=1.0).sum(4), mechanism(clip=1.0).sum(4)
    right.add(torch.stack(notes).sum(dim=0))
    for note in notes:
        wrong.add(note)
    norms = [math.sqrt(float((one.integers.astype(float) ** 2).sum())) * one.grid.cell for one in (right, wrong)]
    assert norms[0] == pytest.approx(1.0)
    assert norms[1] == pytest.approx(10.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero(value: float) -> None:
    total = mechanism(clip=1.0).sum(3)
    total.add(torch.tensor([1.0, value, 2.0]))
    assert not total.integers.any()


def test_the_noise_of_a_step_has_the_stated_size() -> None:
    total, released = mechanism(clip=0.5, noise_multiplier=1.3).sum(200_000), torch.zeros(200_000)
    total.release(released, 8.0, SecretSource())
    stated = 1.3 * 0.5 / 8.0
    assert float(released.std()) == pytest.approx(stated, rel=0.01)
    assert float(released.std()) != pytest.approx(stated * 1.05, rel=0.01)


def test_the_price_is_that_of_poisson_sampled_noise_in_every_step() -> None:
    one = mechanism(noise_multiplier=1.1, sampling=0.05, steps=20, delta=1e-6)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.1)), 60)
    found = price(one, 3)
    assert found.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert found.releases == 60
    assert "protected unit: all data of a patient (field 'patient_id')" in found.line
    everyone = mechanism(noise_multiplier=1.1, sampling=1.0, steps=20, delta=1e-6)
    assert price(everyone, 3).epsilon > 3 * found.epsilon, "without secret sampling nothing is amplified"


# ── data ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_samples_know_their_patient_across_files(federation: Build, tmp_path: Path) -> None:
    settings = patients(federation, tmp_path, seeded=True)
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    second = tmp_path / "data" / "more.jsonl"
    rows = [{"text": f"fever and cough {n}", "label": "low", "patient_id": "p3"} for n in range(3)]
    second.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw["silos"]["north"]["sources"] = [*raw["silos"]["north"]["sources"], {"train": str(second)}]
    raw["data"] = raw["data"] | {"test": 0.0}
    outcome = run(parse(raw), tmp_path / "run", workers=0)
    held = SiloHost(open_run(outcome.folder)).silo("north").resident.examples("train")
    names, members = by_unit(held)
    assert len(names) == 20
    assert sorted(map(len, members)) == [2] * 19 + [5], "patient p3 is in both files"
    assert sorted(int(i) for some in members for i in some) == list(range(43))
    for name, some in zip(names, members, strict=True):
        assert (held.units[some] == name).all()
    assert not SiloHost(open_run(outcome.folder)).silo("south").resident.examples("train").units.size


def test_a_row_without_the_field_is_counted_and_a_file_without_it_refused(federation: Build, tmp_path: Path) -> None:
    settings = patients(federation, tmp_path, seeded=True)
    file = tmp_path / "data" / "north.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for number, value in ((0, None), (1, ""), (2, ["p1"]), (3, True)):
        lines[number] |= {"patient_id": value}
    del lines[4]["patient_id"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    raw["data"] = raw["data"] | {"test": 0.0}
    with pytest.raises(
        DataError, match=r"5 of 40 lines cannot be used.*field 'patient_id' \(named by 'privacy.field'\)"
    ):
        run(parse(raw), tmp_path / "one", workers=0)
    raw["data"] = raw["data"] | {"max_bad_rows": 0.2}
    outcome = run(parse(raw), tmp_path / "two", workers=0)
    assert len(SiloHost(open_run(outcome.folder)).silo("north").resident.examples("train")) == 35
    raw["silos"]["north"]["privacy"]["field"] = "case"
    for action in (lambda: run(parse(raw), tmp_path / "three", workers=0), lambda: preview(parse(raw))):
        with pytest.raises(DataError, match=r"no row has the field 'case' that 'privacy.field' names"):
            action()


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def update(settings: Federation, folder: Path, name: str = "north") -> tuple[Update, Tensors]:
    """One update of a silo, and the model that it started from."""
    runtime = open_run(folder)
    runtime.federation = settings
    model = runtime.start
    reply = SiloHost(runtime).silo(name).answer(Train(round=1, model=model))
    assert isinstance(reply, Update)
    return reply, model


def test_without_noise_and_sampling_a_step_is_that_of_sgd_on_all_samples(federation: Build, tmp_path: Path) -> None:
    """Limit: q = 1, σ → 0, a large C, patients of one sample: the mean gradient of all samples."""
    settings = patients(federation, tmp_path, noise_multiplier=1e-7, clip=1e4, sampling=1.0, steps=1, seeded=True)
    outcome = run(settings, tmp_path / "run", workers=0)
    private, _ = update(settings, outcome.folder)
    held = SiloHost(open_run(outcome.folder)).silo("north").resident.examples("train")
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    del raw["silos"]["north"]["privacy"]
    raw["train"] = {"lr": 0.2, "batch": 1000, "samples": {"epochs": 1}}
    plain, _ = update(parse(raw), outcome.folder)
    people = len(by_unit(held)[0])
    torch.testing.assert_close(private.gradient.flat * (people / len(held)), plain.gradient.flat, rtol=1e-2, atol=1e-3)
    assert float(plain.gradient.flat.norm()) > 0.05
    assert private.loss == 0.0 != plain.loss, "the training loss does not leave"


def test_what_leaves_does_not_tell_how_many_patients_were_drawn(federation: Build, tmp_path: Path) -> None:
    settings = patients(federation, tmp_path, sampling=0.3, steps=4)
    outcome = run(settings, tmp_path / "run", workers=0)
    replies = [update(settings, outcome.folder)[0] for _ in range(4)]
    assert len({(one.loss, one.seen, one.steps, one.samples) for one in replies}) == 1
    assert not torch.equal(replies[0].gradient.flat, replies[1].gradient.flat), "secret noise"


def test_a_run_repeats_if_it_is_seeded_and_states_its_unit(federation: Build, tmp_path: Path) -> None:
    settings = patients(federation, tmp_path, sampling=0.3, steps=3, seeded=True)
    one, two = (run(settings, tmp_path / name, workers=0) for name in ("one", "two"))
    assert same(weights(one.folder / "model"), weights(two.folder / "model"))
    secret = run(patients(federation, tmp_path, sampling=0.3, steps=3), tmp_path / "secret", workers=0)
    assert not same(weights(one.folder / "model"), weights(secret.folder / "model"))
    ledger = Ledger(one.folder)
    fact = ledger.facts()["privacy"]["north"]
    ledger.close()
    assert fact["unit"] == "all data of a patient (field 'patient_id')"
    assert fact["releases"] == 3
    assert fact["epsilon"] == pytest.approx(price(mechanism(sampling=0.3, steps=3), 1).epsilon)
    lines = " ".join(disclosures(settings))
    assert "protected unit: all data of a patient (field 'patient_id')" in lines
    assert "computing time and scores" in lines
    assert "The training loss of north does not leave." in lines


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"unit": "patient"}, "'unit: patient' needs 'field'"),
        ({"unit": "document", "field": "doc", "clip": "median"}, "needs a number as 'clip'"),
        ({**FIELD, "shrink": True}, "'noise_shared_by' and 'shrink' belong to 'unit: silo'"),
        ({"steps": 3}, "'steps' belongs to 'unit: patient'"),
        ({**FIELD, "sampling": 0.0}, "sampling"),
        ({"unit": "person", "field": "x"}, "unit is 'person'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse({"task": "mlm", "silos": {"a": {"train": "a.jsonl", "privacy": settings}}})


@pytest.mark.parametrize("settings", [{"noise_multiplier": 2.0}, {**FIELD, "steps": 4}])
def test_settings_survive_the_way_to_a_silo(settings: Any) -> None:
    """On the wire every field is named, defaults included."""
    given = Privacy.model_validate(settings)
    assert Privacy.model_validate_json(given.model_dump_json()) == given


@pytest.mark.parametrize("method", ["moon", "fedprox", "fedavg"])
def test_an_objective_that_mixes_samples_is_refused(federation: Build, tmp_path: Path, method: str) -> None:
    raw = patients(federation, tmp_path).model_dump(mode="json", exclude_defaults=True) | {"method": method}
    if method == "moon":
        with pytest.raises(ConfigError, match="bounds the gradient of each patient by itself"):
            build_method(parse(raw))
    else:
        build_method(parse(raw))


def test_weights_that_follow_the_loss_are_refused(federation: Build, tmp_path: Path) -> None:
    raw = patients(federation, tmp_path).model_dump(mode="json", exclude_defaults=True)
    with pytest.raises(ConfigError, match="the training loss does not leave"):
        build_method(parse(raw | {"aggregate": {"weights": "loss"}}))
