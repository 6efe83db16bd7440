"""Differential privacy of updates: the mechanism against its formula, its place in a run, its price."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.silo import PRIVACY
from hansa.client.state import StateFolder
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.sections import Privacy
from hansa.core.errors import ConfigError
from hansa.core.grid import Grid, grid_error
from hansa.privacy.dp.accounting import price
from hansa.privacy.dp.prices import update_mechanisms, update_prices
from hansa.privacy.dp.updates import UpdateMechanism, UpdateNorm
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights

PRIVATE = {"noise_multiplier": 0.5, "noise_shared_by": 7, "clip": "median", "seeded": True}


def drawn(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def protect(
    update: torch.Tensor, settings: Privacy, last: UpdateNorm | None = None, seed: int = 0, round: int = 1
) -> UpdateNorm:
    """Apply the mechanism to an update of silo 'a', in place."""
    return UpdateMechanism(settings).apply(update, last, seed, round, "a")


def test_without_noise_a_short_update_passes_untouched() -> None:
    update = drawn(100) * 1e-3
    before = update.clone()
    protect(update, Privacy(noise_multiplier=1e-30, clip=5.0))
    torch.testing.assert_close(update, before, rtol=0, atol=5.0 / 10 / 2**24)  # half a cell of the grid


@given(st.floats(0.1, 10.0), st.floats(0.01, 100.0))
def test_a_long_update_is_as_long_as_the_bound_and_keeps_its_direction(bound: Any, length: Any) -> None:
    update = drawn(50) * length
    before = update.clone()
    protect(update, Privacy(noise_multiplier=1e-30, clip=bound))
    expected = before.numpy() * min(1.0, bound / float(np.linalg.norm(before.numpy())))
    np.testing.assert_allclose(update.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("shared_by", [1, 7])
def test_the_noise_has_the_stated_size_and_no_other(shared_by: Any) -> None:
    update = torch.zeros(200_000)
    protect(update, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=shared_by))
    stated = 0.5 * 3.0 / shared_by
    spread, error = float(update.std()), 4 * stated / math.sqrt(2 * 200_000)
    assert abs(spread - stated) < error
    assert abs(spread - stated * 1.02) > error, "a scale that is off by two hundredths would be seen"


def test_the_price_is_of_the_noise_that_is_applied() -> None:
    """The noise multiplier of the event is the measured deviation over the clipping norm."""
    mechanism = UpdateMechanism(Privacy(noise_multiplier=0.9, clip=3.0, noise_shared_by=2))
    update = torch.zeros(200_000)
    mechanism.apply(update, None, 0, 1, "a")
    event = mechanism.event(5)
    assert float(update.std()) / 3.0 == pytest.approx(event.noise_multiplier, rel=0.01)
    assert (event.count, event.sampling) == (5, 1.0)
    assert price(mechanism, 5).noise_multiplier == event.noise_multiplier


def test_a_shrunk_update_is_the_same_one_times_a_public_factor_and_nearer_to_the_truth() -> None:
    truth = drawn(10_000) * (3.0 / drawn(10_000).norm())
    plain, shrunk = truth.clone(), truth.clone()
    protect(plain, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=7, seeded=True))
    protect(shrunk, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=7, shrink=True, seeded=True))
    torch.testing.assert_close(shrunk, plain / (1 + 10_000 * (0.5 / 7) ** 2))
    errors = {factor: float((factor * plain - truth).norm()) for factor in (1.0, 1 / 52, 1 / 26, 1 / 104)}
    assert errors[1.0] > 7 * float((shrunk - truth).norm())
    assert min(errors.values()) == errors[1 / 52], "twice or half as long would be further off"


def test_the_bound_is_one_at_first_and_then_the_last_norm() -> None:
    settings, update = Privacy(noise_multiplier=1e-30, clip="median"), drawn(50) * 10
    norm = float(update.norm())
    kept = protect(update, settings)
    assert float(update.norm()) == pytest.approx(1.0)
    assert kept.norm == pytest.approx(norm), "before clipping"
    longer = drawn(50, seed=1) * 1000
    protect(longer, settings, kept, round=2)
    assert float(longer.norm()) == pytest.approx(norm, rel=1e-4)


def test_a_silo_keeps_the_norm_of_its_update_before_noise(federation: Build, tmp_path: Path) -> None:
    """With the norm of the noisy update, the bound would grow from round to round."""
    outcome = run(private(federation(rounds=1), "east"), tmp_path / "run", workers=0)
    kept = StateFolder(outcome.folder / "silos" / "east" / "memory").recall(2).get(PRIVACY, UpdateNorm)
    assert kept is not None
    assert 0 < kept.norm < 5.0, "the noise alone, at so many coordinates, is longer"


def test_noise_repeats_only_where_it_is_seeded() -> None:
    def noise(seeded: bool, round: int = 1) -> torch.Tensor:
        update = torch.zeros(8)
        protect(update, Privacy(seeded=seeded), round=round)
        return update

    assert torch.equal(noise(True), noise(True))
    assert not torch.equal(noise(True), noise(True, round=2))
    assert not torch.equal(noise(False), noise(False))
    assert UpdateMechanism(Privacy(seeded=True)).seeded
    assert not UpdateMechanism(Privacy()).seeded, "secret by default"


def test_the_noise_comes_from_no_generator_of_torch_or_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generator keeps 32 bits of its seed, which a coordinator can try one after another."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("privacy noise must come from the operating system alone")

    for name in ("randn", "normal", "Generator"):
        monkeypatch.setattr(torch, name, refuse)
    monkeypatch.setattr(np.random, "default_rng", refuse)
    keys: list[int] = []
    monkeypatch.setattr(os, "urandom", lambda count: keys.append(count) or b"k" * count)  # type: ignore[func-returns-value]
    one, two = torch.zeros(1000), torch.zeros(1000)
    protect(one, Privacy())
    protect(two, Privacy())
    assert keys == [32, 16, 32, 16], "every release has a 256-bit key of its own"
    assert torch.equal(one, two), "the key is all that the noise depends on"


@given(st.integers(1, 400), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_clip_bound_is_never_exceeded(size: Any, bound: Any, length: Any) -> None:
    grid = Grid(bound, size, 1.0)
    integers = grid.clipped(drawn(size, size) * length)
    norm = math.sqrt(sum(int(k) ** 2 for k in integers)) * grid.cell
    assert norm <= grid.sensitivity
    assert bound < grid.sensitivity < bound * (1 + 1e-6), "the bound is the stated clipping norm"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_leaves_as_noise_alone(value: float) -> None:
    update = drawn(1000)
    update[17] = value
    kept = protect(update, Privacy(clip=1.0, noise_multiplier=1.0))
    assert torch.isfinite(update).all()
    assert float(update.std()) == pytest.approx(1.0, rel=0.2)
    assert UpdateMechanism(Privacy(clip="median")).clipping_norm(kept) == 1.0


def test_released_values_lie_on_the_grid() -> None:
    """The low bits of an update tell nothing: every value is a multiple of a public power of two."""
    update = drawn(4096) * 1e-3
    protect(update, Privacy(clip=1.0, noise_multiplier=1e-6))
    cells = update.double().numpy() / Grid(1.0, 4096, 1e-6).cell
    assert np.array_equal(cells, np.rint(cells))
    assert not np.array_equal(drawn(4096).double().numpy() * 1e-3 / Grid(1.0, 4096, 1e-6).cell, cells)


def test_noise_on_the_grid_is_as_near_to_gaussian_noise_as_stated() -> None:
    """The stated bound against sums over the whole distribution, for one value at coarse scales."""
    for scale in (1.0, 3.0, 10.0, 100.0):
        x = np.arange(-int(12 * scale), int(12 * scale) + 1).astype(float)
        discrete = np.exp(-(x**2) / (2 * scale**2))
        edges = np.array([math.erf((v - 0.5) / scale / math.sqrt(2)) for v in [*x, x[-1] + 1]])
        apart = 0.5 * np.abs(discrete / discrete.sum() - np.diff(edges) / 2).sum()
        assert apart <= 1 / (22 * scale**2)
        assert apart > 1 / (200 * scale**2), "the bound is not idle"
    for size in (1, 1000, 10**9):
        grid = Grid(2.5, size, 0.7)
        assert size / (22 * (grid.deviation / grid.cell) ** 2) <= grid_error(0.7)


def test_the_old_setting_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"privacy: 'secret' is no longer a setting.*seeded: true"):
        parse({"task": "mlm", "silos": {"a": {"train": "a.jsonl", "privacy": {"secret": True}}}})


def private(settings: Federation, *names: str) -> Federation:
    """The same federation with privacy at some silos."""
    raw = settings.model_dump(mode="json", exclude_defaults=True)

    def mark(silos: dict[str, Any]) -> None:
        for name, node in silos.items():
            mark(node.get("silos", {}))
            if name in names:
                node["privacy"] = PRIVATE

    mark(raw["silos"])
    return parse(raw)


def test_a_run_with_private_silos_repeats_and_states_its_price(federation: Build, tmp_path: Path) -> None:
    plain = federation(rounds=2)
    one, two = (run(private(plain, "east"), tmp_path / name, workers=0) for name in ("one", "two"))
    bare = run(plain, tmp_path / "bare", workers=0)
    assert same(weights(one.folder / "model"), weights(two.folder / "model"))
    assert not same(weights(one.folder / "model"), weights(bare.folder / "model"))
    ledger = Ledger(one.folder)
    fact = ledger.facts()["privacy"]
    ledger.close()
    assert set(fact) == {"east"}
    assert fact["east"]["releases"] == 2
    assert fact["east"]["unit"] == "all data of the silo"
    assert "ε = " in (one.folder / "model" / "README.md").read_text(encoding="utf-8")


def test_every_update_of_a_silo_in_a_tree_is_counted(federation: Build) -> None:
    flat = federation(rounds=3)
    raw = flat.model_dump(mode="json", exclude_defaults=True)
    raw["silos"] = {"region": {"rounds": 4, "silos": raw["silos"]}}
    tree = parse(raw)
    deep, shallow = (
        update_prices(private(tree, "east"), 3)["east"],
        update_prices(private(flat, "east"), 12)["east"],
    )
    assert deep == shallow
    assert deep.releases == 12
    assert deep.epsilon > update_prices(private(flat, "east"), 3)["east"].epsilon
    assert not update_prices(tree, 3), "without private silos there is no price"
    assert set(update_mechanisms(private(tree, "east"))) == {"east"}


def test_the_disclosures_state_the_price_and_the_seed(federation: Build) -> None:
    lines = " ".join(disclosures(private(federation(), "east")))
    assert "The updates of 'east'" in lines
    assert "ε = " in lines
    assert "The noise of east is drawn from the federation's seed" in lines


def test_privacy_stands_at_silos(federation: Build) -> None:
    raw = federation().model_dump(mode="json", exclude_defaults=True)
    raw["silos"] = {"region": {"silos": raw["silos"], "privacy": PRIVATE}}
    with pytest.raises(ConfigError, match="put it on the silos below"):
        parse(raw)
