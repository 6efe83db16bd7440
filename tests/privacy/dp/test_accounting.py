"""The price of releases, against formulas written down here and against each other."""

from math import erf, exp, inf, isclose, sqrt
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as some

from hansa.core.errors import ConfigError
from hansa.core.grid import grid_error
from hansa.core.mechanism import Event, GaussianEvent, ZCdpEvent
from hansa.privacy.dp.accounting import composed, concentrated_epsilon, epsilon


def delta_of(noise: float, eps: float) -> float:
    """Balle & Wang (2018), Theorem 8: the δ at which one Gaussian release of sensitivity 1 has this ε."""

    def phi(x: float) -> float:
        return 0.5 * (1 + erf(x / sqrt(2)))

    return phi(0.5 / noise - eps * noise) - exp(eps) * phi(-0.5 / noise - eps * noise)


@pytest.mark.parametrize(("noise", "releases"), [(0.8, 1), (1.0, 10), (4.0, 100)])
def test_without_sampling_it_is_the_exact_figure(noise: Any, releases: Any) -> None:
    found = epsilon(noise, releases, 1e-5)
    assert isclose(delta_of(noise / sqrt(releases), found), 1e-5, rel_tol=1e-3)


def test_the_numerical_bound_meets_the_exact_figure_where_sampling_ends() -> None:
    exact = epsilon(1.0, 10, 1e-5)
    assert exact <= epsilon(1.0, 10, 1e-5, sampling=1 - 1e-12) <= exact + 0.01


@settings(max_examples=10, deadline=None)
@given(some.floats(0.7, 5.0), some.integers(1, 50), some.floats(0.01, 0.5))
def test_more_noise_fewer_releases_and_rarer_sampling_cost_less(noise: Any, releases: Any, rate: Any) -> None:
    cost = epsilon(noise, releases, 1e-5)
    assert epsilon(1.5 * noise, releases, 1e-5) < cost < epsilon(noise, releases + 1, 1e-5)
    assert epsilon(noise, releases, 1e-5, rate) < cost


def test_no_noise_has_no_bound_and_no_release_has_no_cost() -> None:
    assert epsilon(0.0, 1, 1e-5) == inf
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(0.0, 5, 1e-5, sampling=0.0) == 0.0


def test_published_figure_for_sampled_noise() -> None:
    """Abadi et al. (2016), Section 3.2: q = 0.01, σ = 4, 10,000 steps.

    The moments accountant gives 1.26 at 1e-5, strong composition 9.34. A tight accountant lies below the moments
    accountant's bound, and not at zero.
    """
    assert 0.8 < epsilon(4.0, 10_000, 1e-5, sampling=0.01) < 1.26


def test_values_out_of_range_are_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="delta is 0"):
        epsilon(1.0, 1, 0.0)
    with pytest.raises(ConfigError, match="sampling rate is 2"):
        epsilon(1.0, 1, 1e-5, sampling=2.0)


def test_a_mixture_of_events_costs_what_dp_accounting_says() -> None:
    events: list[Event] = [GaussianEvent(2.0, 3), GaussianEvent(1.1, 200, sampling=0.02), GaussianEvent(4.0, 1)]
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for noise, count in ((2.0, 3), (4.0, 1)):
        accountant.compose(dp_accounting.GaussianDpEvent(noise), count)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.1)), 200)
    assert composed(events, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert composed(events[:1] + events[2:], 1e-5) < composed(events, 1e-5)
    exact = dp_accounting.get_epsilon_gaussian(1 / sqrt(3 / 4 + 1 / 16), 1e-5)
    assert composed(events[:1] + events[2:], 1e-5) == pytest.approx(exact)


@pytest.mark.parametrize("rho", [1e-4, 0.1, 0.5, 5.0, 300.0])
def test_concentrated_privacy_is_converted_as_by_dp_accounting(rho: Any) -> None:
    accountant = RdpAccountant(orders=(1 + np.logspace(-4, 4, 4001)).tolist())
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    found = concentrated_epsilon(rho, 1e-5)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert found < rho + 2 * sqrt(rho * np.log(1e5)), "Bun and Steinke (2016), Proposition 1.3"
    # the Gaussian mechanism is a case of it, and its exact ε lies below
    assert epsilon(1 / sqrt(2 * rho), 1, 1e-5) <= found
    assert composed([ZCdpEvent(rho / 4, 4)], 1e-5) == pytest.approx(found)


def test_concentrated_and_sampled_events_add_up() -> None:
    sampled, rest = GaussianEvent(1.1, 100, sampling=0.01), ZCdpEvent(0.02, 3)
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 100)
    accountant.compose(dp_accounting.ZCDpEvent(0.06))
    both = composed([sampled, rest], 1e-5)
    assert both == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert both > max(composed([sampled], 1e-5), composed([rest], 1e-5))


@pytest.mark.parametrize(("noise", "count", "sampling"), [(1.0, 3, 1.0), (4.0, 30, 1.0), (1.0, 300, 0.05)])
def test_the_distance_of_grid_noise_from_gaussian_noise_is_taken_out_of_delta(
    noise: Any, count: Any, sampling: Any
) -> None:
    ideal = composed([GaussianEvent(noise, count, sampling)], 1e-5)
    grid = composed([GaussianEvent(noise, count, sampling, error=grid_error(noise))], 1e-5)
    assert ideal <= grid <= ideal + 0.01
    coarse = composed([GaussianEvent(noise, count, sampling, error=1e-6)], 1e-5)
    assert coarse > grid, "a coarse grid has its price"


def test_where_delta_has_no_room_the_bound_is_that_of_concentrated_privacy() -> None:
    found = composed([GaussianEvent(0.07, 3, error=grid_error(0.07))], 1e-5)
    assert found == concentrated_epsilon(3 / (2 * 0.07**2), 1e-5)
    assert epsilon(0.07, 3, 1e-5) < found < 1.05 * epsilon(0.07, 3, 1e-5)
    assert composed([GaussianEvent(1.0, 1, error=1.0), ZCdpEvent(0.0, 5)], 1e-5) == concentrated_epsilon(0.5, 1e-5)


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.1])
def test_next_to_no_noise_has_a_price_too(noise: Any) -> None:
    for sampling in (1.0, 0.1):
        for error in (0.0, grid_error(noise)):
            found = composed([GaussianEvent(noise, 3, sampling, error), GaussianEvent(1.0, 1)], 1e-5)
            assert 1 / noise**2 < found < inf
