"""Privacy accounting: the ε of repeated releases with Gaussian noise, by `dp-accounting`.

A release clips each unit's contribution to norm C and adds noise of standard deviation z·C to the sum; z is the noise
multiplier. The caller defines the *unit* (a sample, a silo) and which datasets are neighbours: ``C`` must bound how far
the sum moves between neighbours (adding or removing a unit: C; replacing it: 2C).
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from hansa.core.errors import ConfigError
from hansa.core.mechanism import ConcentratedEvent, Mechanism

GRID_STEP = 1e-3  # of the privacy loss: rounds ε up, never down; ten times finer changes ε by less than 0.01


def epsilon(noise_multiplier: float, releases: int, delta: float, sampling: float = 1.0) -> float:
    """Return ε at ``delta`` after ``releases`` releases.

    ``sampling``: the probability with which a unit takes part in each release, drawn independently and in secret
    (Poisson sampling). Without sampling ε is exact: T releases with z are one with z/√T (Balle & Wang, 2018, Theorem
    8). With sampling it is a numerical upper bound (privacy loss distributions). Without noise it is infinite. Raises
    `ConfigError` for a ``delta`` or ``sampling`` out of range, and if dp-accounting is not installed.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta is {delta}: it must lie between 0 and 1, and well below one over the number of units")
    if not 0.0 <= sampling <= 1.0:
        raise ConfigError(f"the sampling rate is {sampling}: it must lie between 0 and 1")
    if releases <= 0 or sampling == 0.0:
        return 0.0
    if noise_multiplier <= 0.0:
        return inf
    accounting = _library()
    if sampling == 1.0:
        return float(accounting.get_epsilon_gaussian(noise_multiplier / sqrt(releases), delta))
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=GRID_STEP)
    accountant.compose(
        accounting.PoissonSampledDpEvent(sampling, accounting.GaussianDpEvent(noise_multiplier)), releases
    )
    return float(accountant.get_epsilon(delta))


def concentrated_epsilon(rho: float, releases: int, delta: float) -> float:
    """Return ε at ``delta`` after ``releases`` releases, each ``rho``-concentrated differentially private.

    Raises `ConfigError` if dp-accounting is not installed.
    """
    if releases <= 0:
        return 0.0
    accounting = _library()
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    accountant.compose(accounting.ZCDpEvent(rho), releases)
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class Spent:
    """The price of a mechanism after some rounds."""

    epsilon: float
    delta: float
    noise_multiplier: float
    releases: int
    unit: str
    not_covered: str = ""

    @property
    def line(self) -> str:
        """The price in words."""
        excluded = f"; not covered by ε: {self.not_covered}" if self.not_covered else ""
        return (
            f"ε = {self.epsilon:,.3g} at δ = {self.delta:g} after {self.releases} releases with noise multiplier "
            f"{self.noise_multiplier:.3g}; protected unit: {self.unit}{excluded}"
        )


def price(mechanism: Mechanism, rounds: int) -> Spent:
    """Return the price of a mechanism to a unit that took part in every one of ``rounds`` rounds.

    Raises `ConfigError` if dp-accounting is not installed.
    """
    event, delta = mechanism.event(rounds), mechanism.delta
    if isinstance(event, ConcentratedEvent):
        cost = concentrated_epsilon(event.rho, event.count, delta)
    else:
        cost = epsilon(event.noise_multiplier, event.count, delta, event.sampling)
    return Spent(cost, delta, event.noise_multiplier, event.count, mechanism.unit, mechanism.not_covered)


def _library() -> Any:
    """The module `dp_accounting`; raises `ConfigError` if it is not installed."""
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError("differential privacy needs dp-accounting: pip install 'hansa[privacy]'") from None
    return dp_accounting
