"""The price of releases, against formulas written down here and against each other."""

from math import erf, exp, inf, isclose, sqrt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hansa.core.errors import ConfigError
from hansa.privacy.dp.accounting import epsilon


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
