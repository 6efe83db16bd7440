"""The distributed discrete Gaussian: the sum is the plain one with the stated noise, and ε is the paper's."""

from dataclasses import replace
from math import exp, inf, log, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.config.federation import Federation
from hansa.config.sections import DistributedNoise, Privacy
from hansa.core.errors import ConfigError
from hansa.core.messages import Train, no_tensors
from hansa.core.noise import SecretSource, SeededSource, discrete_gaussian
from hansa.privacy.dp.accounting import price
from hansa.privacy.dp.charging import charges_for
from hansa.privacy.dp.distributed import (
    MAX_VALUES,
    MAX_WRAP,
    DistributedMechanism,
    SiloNoise,
    distributed_mechanism,
    smallest_sum,
)
from hansa.privacy.dp.prices import run_price, seeded_noise, update_mechanisms
from hansa.privacy.dp.rotation import Rotation
from hansa.privacy.dp.updates import UpdateMechanism
from hansa.privacy.policy.rules import Purpose
from tests.conftest import Build

SIZE = 40_000


def mechanism(multiplier: float = 1.0, cohort: int = 10, clip: float = 1.0, seeded: bool = False) -> Any:
    noise = DistributedNoise(multiplier=multiplier, clip=clip, seeded=seeded)
    return DistributedMechanism(noise, cohort, smallest_sum(cohort, 0.6))


def total(one: DistributedMechanism, updates: list[Any], smallest: int, round: int = 1) -> Any:
    """The sum of the silos' words modulo 2³², as the masks leave it, decoded."""
    rotation = Rotation(len(updates[0]), 1, round)
    words = np.zeros(len(updates[0]), np.uint32)
    for number, update in enumerate(updates):
        words += one.encode(update, smallest, rotation, SeededSource(0, round, number))
    return one.decode(words, len(updates), rotation)


def updates(count: int, norm: float = 0.5, size: int = SIZE) -> list[Any]:
    rng = np.random.default_rng(3)
    found = [rng.standard_normal(size).astype(np.float32) for _ in range(count)]
    return [(one * (norm / np.linalg.norm(one))).astype(np.float32) for one in found]


# ── the sum ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_next_to_no_noise_the_sum_is_the_plain_mean() -> None:
    given, one = updates(5), mechanism(1e-4, 5)
    found, plain = total(one, given, 5), np.mean(given, axis=0)
    assert np.abs(found - plain).max() < 5e-4 / 5 + 5 / one.steps
    assert np.linalg.norm(found - plain) < 1e-4 * sqrt(SIZE) / 5 * 1.1


def test_updates_are_clipped_as_a_whole() -> None:
    given, one = updates(3, norm=40.0), mechanism(1e-4, 3, clip=2.0)
    np.testing.assert_allclose(total(one, given, 3), np.mean(given, axis=0) / 20, atol=2e-3)
    within = updates(3, norm=1.9)
    np.testing.assert_allclose(total(one, within, 3), np.mean(within, axis=0), atol=2e-3)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("answered", [7, 10])
def test_the_sum_carries_the_stated_noise(multiplier: Any, answered: Any) -> None:
    """Shares are sized for the fewest silos (7 of 10): then the noise is exact, and larger if more answer."""
    one = mechanism(multiplier, 10, clip=2.0)
    given = updates(answered)
    noise = answered * (total(one, given, one.smallest) - np.mean(given, axis=0))
    stated = multiplier * 2.0
    assert one.smallest == 7
    assert noise.std() == pytest.approx(stated * sqrt(answered / 7), rel=0.05)
    assert noise.std() >= 0.97 * stated, "also after drop-outs down to the threshold"
    assert noise.std() != pytest.approx(1.1 * stated * sqrt(answered / 7), rel=0.05), "a wrong scale is noticed"
    assert abs(noise.mean()) < 5 * stated * sqrt(answered / 7) / sqrt(SIZE)


def test_shares_for_the_whole_cohort_would_not_do_after_dropouts() -> None:
    """The negative control: sized for 10 silos, the noise of 7 is too small."""
    one, given = mechanism(1.0, 10), updates(7)
    noise = 7 * (total(one, given, smallest=10) - np.mean(given, axis=0))
    assert noise.std() < 0.9


def test_a_share_is_smaller_than_local_noise_by_the_root_of_the_silos() -> None:
    one = mechanism(1.0, 10)
    words = one.encode(np.zeros(SIZE, np.float32), 9, Rotation(SIZE, 1, 1), SecretSource())
    share = words.view(np.int32).std() / one.steps
    local = UpdateMechanism(Privacy(noise_multiplier=1.0, clip=1.0)).multiplier
    assert share == pytest.approx(local / 3, rel=0.05)


def test_no_noise_is_used_twice_and_seeded_noise_repeats() -> None:
    zero = np.zeros(100, np.float32)
    secret, seeded = (SiloNoise(mechanism(seeded=s), 1, "north") for s in (False, True))
    assert not np.array_equal(secret.encode(zero, 1, 3), secret.encode(zero, 1, 3))
    assert np.array_equal(seeded.encode(zero, 1, 3), seeded.encode(zero, 1, 3))
    assert not np.array_equal(seeded.encode(zero, 1, 3), seeded.encode(zero, 2, 3))
    assert not np.array_equal(seeded.encode(zero, 1, 3), replace(seeded, silo="south").encode(zero, 1, 3))


# ── sensitivity and wrap-around ───────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40)
@given(st.integers(1, 9000), st.floats(1e-8, 1e8), st.integers(0, 10**6), st.sampled_from(["dense", "one", "halves"]))
def test_the_rounded_update_is_within_the_sensitivity(size: int, norm: float, seed: int, shape: str) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size)
    if shape == "one":
        values = np.zeros(size)
        values[seed % size] = 1.0
    if shape == "halves":
        values = np.full(size, 0.5)
    one = mechanism()
    update = (values * (norm / np.linalg.norm(values))).astype(np.float32)
    rounded = one.rounded(update, Rotation(size, seed, 1), SeededSource(seed)).astype(np.float64)
    assert sqrt(float(rounded @ rounded)) <= one.sensitivity(size) <= one.sensitivity() <= 1.001 * one.steps


def test_rounding_is_unbiased() -> None:
    one, rotation = mechanism(), Rotation(1, 0, 1)
    value = np.array([0.3 / one.steps], np.float32)
    drawn = [int(one.rounded(value, rotation, SeededSource(n))[0]) for n in range(4000)]
    assert {*drawn} <= {-1, 0, 1}
    assert abs(np.mean(drawn)) == pytest.approx(0.3, abs=0.04)


@pytest.mark.parametrize(("multiplier", "cohort"), [(0.01, 3), (1.0, 10), (100.0, 10), (1000.0, 50), (1.0, 20_000)])
def test_the_grid_keeps_wrap_around_improbable(multiplier: Any, cohort: Any) -> None:
    one = mechanism(multiplier, cohort)
    assert one.wrap_probability() <= MAX_WRAP
    assert one.steps >= 2**8
    assert one._wrap(2.0**40, MAX_VALUES) == 1.0, "a grid that is too fine"


def test_the_bound_on_wrap_around_is_respected() -> None:
    """On grids that are too fine for 32 bits, sums leave the range: sometimes at 2²⁹ steps, mostly at 2³⁰."""
    size, trials, shares = 64, 300, dict[int, float]()
    for bits in (28, 29, 30):
        one, wrapped = mechanism(1.0, 3), 0
        vars(one)["steps"] = 2**bits
        for round in range(trials):
            rotation, update = Rotation(size, 1, round), updates(1, norm=0.99, size=size)[0]
            source, sums = SeededSource(round), np.zeros(size, np.int64)
            for _ in range(3):
                sums += one.rounded(update, rotation, source) + discrete_gaussian(one.share(3), size, source)
            wrapped += bool((np.abs(sums) >= 2**31).any())
        shares[bits] = wrapped / trials
        assert shares[bits] <= one.wrap_probability(size)
    assert shares[28] == 0 < shares[29] < 0.1 < shares[30]


@pytest.mark.parametrize(("multiplier", "says"), [(1e-9, "so little noise .* raise it"), (1e9, "so much .* lower it")])
def test_noise_that_fits_no_grid_is_refused(multiplier: Any, says: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        _ = mechanism(multiplier).steps


def test_an_update_beyond_the_stated_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hansa.privacy.dp.distributed.MAX_VALUES", 9)
    with pytest.raises(ValueError, match="10 values; ε is stated for at most 9"):
        mechanism().encode(np.zeros(10, np.float32), 3, Rotation(10, 1, 1), SecretSource())


def test_few_values_of_very_many_silos_are_refused() -> None:
    with pytest.raises(ValueError, match="too few to spread"):
        mechanism(1.0, 20_000).encode(np.zeros(10, np.float32), 3, Rotation(10, 1, 1), SecretSource())


# ── the price ─────────────────────────────────────────────────────────────────────────────────────────────────────


def independent_epsilon(multiplier: float, cohort: int, rounds: int, delta: float, steps: float) -> float:
    """Theorem 1 and the conversion of Canonne, Kamath and Steinke (2020, Proposition 12), in units of the clip."""
    gamma, d, beta = 1.0 / steps, 2.0**30, 1e-9
    share = multiplier / sqrt(cohort)  # the smallest that any silo adds
    square = min(
        1 + gamma**2 * d / 4 + sqrt(2 * log(1 / beta)) * gamma * (1 + gamma * sqrt(d) / 2), (1 + gamma * sqrt(d)) ** 2
    )
    tau = 10 * sum(exp(-2 * pi**2 * (share / gamma) ** 2 * j / (j + 1)) for j in range(1, cohort))
    concentrated = min(sqrt(square / multiplier**2 + tau * d / 2), sqrt(square) / multiplier + tau * sqrt(d))
    rho, best = rounds * concentrated**2 / 2, inf
    for alpha in np.exp(np.linspace(log(1.001), log(1e4), 40_000)):
        best = min(best, rho * alpha + log(1 - 1 / alpha) - log(delta * alpha) / (alpha - 1))
    return best


@pytest.mark.parametrize(("multiplier", "rounds"), [(0.5, 1), (1.0, 10), (4.0, 20), (20.0, 100)])
def test_epsilon_equals_an_independent_computation(multiplier: Any, rounds: Any) -> None:
    one = mechanism(multiplier)
    stated, expected = price(one, rounds).epsilon, independent_epsilon(multiplier, 10, rounds, 1e-5, one.steps)
    assert stated == pytest.approx(expected, rel=0.01)
    assert stated >= expected * 0.9999, "never below"


@given(st.floats(0.05, 50), st.floats(1.01, 3), st.integers(3, 40), st.integers(1, 50))
@settings(max_examples=25)
def test_epsilon_is_monotone(multiplier: float, more: float, cohort: int, rounds: int) -> None:
    def rho(multiplier: float, rounds: int, colluding: int = 0) -> float:
        event = mechanism(multiplier, cohort).event(rounds, colluding)
        return float(event.rho * event.count)

    assert rho(multiplier * more, rounds) < rho(multiplier, rounds) < rho(multiplier, rounds + 1)
    assert rho(multiplier, rounds) < rho(multiplier, rounds, 1) < rho(multiplier, rounds, 2)


def test_colluding_silos_leave_the_noise_of_the_others() -> None:
    one = mechanism(2.0, 10)
    assert one.event(1, 3).rho / one.event(1).rho == pytest.approx(7 / 4, rel=1e-6), "σ² shrinks to 4 of 7 shares"
    with pytest.raises(ValueError, match="must remain"):
        one.event(1, 7)


def test_the_grid_costs_next_to_nothing() -> None:
    """The limit: ρ of the continuous Gaussian mechanism with the same multiplier."""
    assert mechanism(1.3).event(1).rho == pytest.approx(1 / (2 * 1.3**2), rel=1e-3)


def test_a_federation_file_asks_for_it(federation: Build) -> None:
    secure = {"secure_aggregation": {"noise": {"multiplier": 2}, "threshold": 0.5}, "aggregate": {"weights": "uniform"}}
    found = distributed_mechanism(federation(**secure))
    assert found is not None
    assert (found.multiplier, found.cohort, found.smallest) == (2.0, 3, 3)
    assert distributed_mechanism(federation(secure_aggregation=True)) is None
    assert distributed_mechanism(federation(**secure, rounds=0)) is None


def federation_with_noise(federation: Build, **more: Any) -> Federation:
    noise = {"multiplier": 2.0, "seeded": more.pop("seeded", False)}
    return federation(rounds=3, secure_aggregation={"noise": noise}, aggregate={"weights": "uniform"}, **more)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("rounds", [1, 100])
def test_the_price_is_at_most_that_of_renyi_accounting(multiplier: Any, rounds: Any) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    one = DistributedMechanism(DistributedNoise(multiplier=multiplier), 10, 7)
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.ZCDpEvent(one.event(1).rho), rounds)
    theirs = float(accountant.get_epsilon(one.delta))
    ours = price(one, rounds).epsilon
    assert ours <= theirs * (1 + 1e-6), "the same conversion, at every order"
    assert ours > 0.95 * theirs
    assert one.event(rounds).noise_multiplier == pytest.approx(multiplier, rel=0.01)


def test_every_price_counts_the_noise_of_the_sum(federation: Build, tmp_path: Path) -> None:
    settings = federation_with_noise(federation)
    mechanisms = update_mechanisms(settings)
    expected = price(DistributedMechanism(DistributedNoise(multiplier=2.0), 3, 3), 3)
    assert set(mechanisms) == {"north", "south", "east"}
    assert run_price(settings) == (expected.epsilon, 1e-5)
    assert Purpose.of(settings, "east").epsilon == expected.epsilon
    train = Train(1, no_tensors())
    [charge] = charges_for(settings, "east", "run", train)
    assert charge.event == mechanisms["east"].event(1)
    bare = federation(rounds=3, secure_aggregation=True)
    assert run_price(bare) is None
    assert charges_for(bare, "east", "run", train) == [], "the control"


def test_seeded_noise_of_the_sum_is_found(federation: Build) -> None:
    assert seeded_noise(federation_with_noise(federation)) == []
    assert len(seeded_noise(federation_with_noise(federation, seeded=True))) == 3
