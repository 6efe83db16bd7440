"""Differential privacy of updates: the mechanism against its formula, its place in a run, its price."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.state import StateStore
from hansa.config.file import parse
from hansa.config.sections import Privacy
from hansa.core.errors import ConfigError
from hansa.privacy.dp.updates import NORM, protect, spent
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import same, weights

PRIVATE = {"noise_multiplier": 0.5, "noise_shared_by": 7}


def drawn(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def test_without_noise_a_short_update_passes_untouched():
    update = drawn(100) * 1e-3
    before = update.clone()
    protect(update, Privacy(noise_multiplier=1e-30, clip=5.0), {}, 0, 1, "a")
    torch.testing.assert_close(update, before, rtol=0, atol=1e-20)


@given(st.floats(0.1, 10.0), st.floats(0.01, 100.0))
def test_a_long_update_is_as_long_as_the_bound_and_keeps_its_direction(bound, length):
    update = drawn(50) * length
    before = update.clone()
    protect(update, Privacy(noise_multiplier=1e-30, clip=bound), {}, 0, 1, "a")
    expected = before.numpy() * min(1.0, bound / float(np.linalg.norm(before.numpy())))
    np.testing.assert_allclose(update.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("among", [1, 7])
def test_the_noise_has_the_stated_size_and_no_other(among):
    update = torch.zeros(200_000)
    protect(update, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=among), {}, 0, 1, "a")
    stated = 0.5 * 3.0 / among
    spread, error = float(update.std()), 4 * stated / math.sqrt(2 * 200_000)
    assert abs(spread - stated) < error
    assert abs(spread - stated * 1.02) > error, "a scale that is off by two hundredths would be seen"


def test_shrunk_it_is_the_same_update_times_a_factor_that_tells_nothing_and_nearer_to_the_truth():
    truth = drawn(10_000) * (3.0 / drawn(10_000).norm())
    plain, shrunk = truth.clone(), truth.clone()
    protect(plain, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=7), {}, 0, 1, "a")
    protect(shrunk, Privacy(noise_multiplier=0.5, clip=3.0, noise_shared_by=7, shrink=True), {}, 0, 1, "a")
    torch.testing.assert_close(shrunk, plain / (1 + 10_000 * (0.5 / 7) ** 2))
    errors = {factor: float((factor * plain - truth).norm()) for factor in (1.0, 1 / 52, 1 / 26, 1 / 104)}
    assert errors[1.0] > 7 * float((shrunk - truth).norm())
    assert min(errors.values()) == errors[1 / 52], "twice or half as long would be further off"


def test_the_bound_is_one_at_first_and_then_the_last_norm():
    settings, update = Privacy(noise_multiplier=1e-30), drawn(50) * 10
    norm = float(update.norm())
    protect(update, settings, {}, 0, 1, "a")
    assert float(update.norm()) == pytest.approx(1.0)
    longer = drawn(50, seed=1) * 1000
    protect(longer, settings, {NORM: torch.tensor(norm)}, 0, 2, "a")
    assert float(longer.norm()) == pytest.approx(norm, rel=1e-4)


def test_a_silo_remembers_the_norm_of_what_it_would_have_sent(federation, tmp_path):
    """Not of what it sent: noise would make the bound grow from round to round."""
    outcome = run(private(federation(rounds=1), "east"), tmp_path / "run", workers=0)
    kept = StateStore(outcome.folder / "silos" / "east" / "memory").recall(2)[NORM]
    assert 0 < float(kept) < 5.0, "the noise alone, at so many coordinates, is longer"


def test_noise_repeats_with_the_seed_and_never_when_it_is_secret():
    def noise(secret: bool, round: int = 1) -> torch.Tensor:
        update = torch.zeros(8)
        protect(update, Privacy(secret=secret), {}, 0, round, "a")
        return update

    assert torch.equal(noise(False), noise(False))
    assert not torch.equal(noise(False), noise(False, round=2))
    assert not torch.equal(noise(True), noise(True))


def private(settings, *names):
    """The same federation with privacy at some silos."""
    raw = settings.model_dump(mode="json", exclude_defaults=True)

    def mark(silos):
        for name, node in silos.items():
            mark(node.get("silos", {}))
            if name in names:
                node["privacy"] = PRIVATE

    mark(raw["silos"])
    return parse(raw)


def test_a_run_with_private_silos_repeats_and_states_its_price(federation, tmp_path):
    plain = federation(rounds=2)
    one, two = (run(private(plain, "east"), tmp_path / name, workers=0) for name in ("one", "two"))
    bare = run(plain, tmp_path / "bare", workers=0)
    assert same(weights(one.folder / "model"), weights(two.folder / "model"))
    assert not same(weights(one.folder / "model"), weights(bare.folder / "model"))
    ledger = Ledger(one.folder)
    fact = ledger.facts()["privacy"]
    ledger.close()
    assert set(fact) == {"east"}
    assert fact["east"]["updates"] == 2
    assert fact["east"]["unit"] == "all data of the silo"
    assert "ε = " in (one.folder / "model" / "README.md").read_text(encoding="utf-8")


def test_every_update_of_a_silo_in_a_tree_is_counted(federation):
    flat = federation(rounds=3)
    tree = flat.model_dump(mode="json", exclude_defaults=True)
    tree["silos"] = {"region": {"rounds": 4, "silos": tree["silos"]}}
    tree = parse(tree)
    deep, shallow = spent(private(tree, "east"), 3)["east"], spent(private(flat, "east"), 12)["east"]
    assert deep == shallow
    assert deep.updates == 12
    assert deep.epsilon > spent(private(flat, "east"), 3)["east"].epsilon
    assert not spent(tree, 3), "nobody is protected, nothing is claimed"


def test_the_releases_name_the_price_and_the_seed(federation):
    lines = " ".join(disclosures(private(federation(), "east")))
    assert "The updates of 'east'" in lines
    assert "ε = " in lines
    assert "comes from the seed" in lines


def test_privacy_stands_at_silos(federation):
    raw = federation().model_dump(mode="json", exclude_defaults=True)
    raw["silos"] = {"region": {"silos": raw["silos"], "privacy": PRIVATE}}
    with pytest.raises(ConfigError, match="put it on the silos below"):
        parse(raw)
