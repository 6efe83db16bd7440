"""Privacy accounting: the ε of repeated releases with noise, by `dp-accounting` where it has the event.

A release clips each unit's contribution to norm C and adds noise of standard deviation z·C to the sum; z is the noise
multiplier. The caller defines the *unit* (a sample, a patient, a silo) and which datasets are neighbours: ``C`` must
bound how far the sum moves between neighbours (adding or removing a unit: C; replacing it: 2C).

Noise on a grid is not exactly Gaussian. If every release is within total variation distance η of one that is, and these
are (ε, δ′)-private together, then the releases are (ε, δ′ + (1 + e^ε)·Ση)-private: ε is computed for a δ′ that leaves
room for the second term. Where ε is so large that there is no room, the bound for concentrated differential privacy
takes its place, which holds for the discrete Gaussian itself (Canonne, Kamath and Steinke, 2020, Theorems 4 and 14).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from hansa.core.errors import ConfigError
from hansa.core.mechanism import Event, GaussianEvent, Mechanism, ZCdpEvent

GRID_STEP = 1e-3  # of the privacy loss: rounds ε up, never down; ten times finer changes ε by less than 0.01
ROOM = (1e-6, 1e-3, 0.1, 0.5)  # parts of δ that are tried for what noise on a grid takes
MAX_EXPONENT = 700.0
MIN_NOISE = 0.2  # of sampled releases: with less, ε is far above 10 and privacy loss distributions need gigabytes


def epsilon(noise_multiplier: float, releases: int, delta: float, sampling: float = 1.0) -> float:
    """Return ε at ``delta`` after ``releases`` releases with Gaussian noise.

    ``sampling``: the probability with which a unit takes part in each release, drawn independently and in secret
    (Poisson sampling). Without sampling ε is exact: T releases with z are one with z/√T (Balle & Wang, 2018, Theorem
    8). With sampling it is a numerical upper bound (privacy loss distributions). Without noise it is infinite. Raises
    `ConfigError` for a ``delta`` or ``sampling`` out of range, and if dp-accounting is not installed.
    """
    return composed([GaussianEvent(noise_multiplier, releases, sampling)], delta)


def composed(events: Iterable[Event], delta: float) -> float:
    """Return ε at ``delta`` of all events together; raises `ConfigError` as `epsilon` does."""
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta is {delta}: it must lie between 0 and 1, and well below one over the number of units")
    happened = [event for event in events if _happened(event)]
    if not happened:
        return 0.0
    if any(event.noise_multiplier <= 0.0 for event in happened):
        return inf
    gaussian = [event for event in happened if isinstance(event, GaussianEvent)]
    if len(gaussian) < len(happened):
        return _concentrated(happened, delta)
    error = sum(event.count * event.error for event in gaussian)
    for room in ROOM if error else (0.0,):
        found = _gaussian(gaussian, delta * (1 - room))
        if found < inf and (not error or (found < MAX_EXPONENT and (1 + exp(found)) * error <= room * delta)):
            return found
    return _concentrated(happened, delta)


def _happened(event: Event) -> bool:
    if isinstance(event, ZCdpEvent):
        return event.count > 0 and event.rho > 0
    if not 0.0 <= event.sampling <= 1.0:
        raise ConfigError(f"the sampling rate is {event.sampling}: it must lie between 0 and 1")
    return event.count > 0 and event.sampling > 0


def _gaussian(events: Sequence[GaussianEvent], delta: float) -> float:
    """The ε of Gaussian noise: exact without sampling, an upper bound with it; inf where that needs too much memory."""
    accounting = _library()
    whole = sum(event.count / event.noise_multiplier**2 for event in events if event.sampling == 1.0)
    sampled = [event for event in events if event.sampling < 1.0]
    if not sampled:
        with np.errstate(all="ignore"):  # next to no noise: the library's logarithms reach −∞
            return float(accounting.get_epsilon_gaussian(1 / sqrt(whole), delta))
    if min(event.noise_multiplier for event in events) < MIN_NOISE:
        return inf
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=GRID_STEP)
    for event in sampled:
        one = accounting.PoissonSampledDpEvent(event.sampling, accounting.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(one, event.count)
    if whole:
        accountant.compose(accounting.GaussianDpEvent(1 / sqrt(whole)))
    return float(accountant.get_epsilon(delta))


def _concentrated(events: Sequence[Event], delta: float) -> float:
    """The ε of concentrated differential privacy; of releases with sampling also by Rényi accounting.

    Sampling never costs privacy, so that the events without it are a bound as well.
    """
    rho = sum(event.count / (2 * event.noise_multiplier**2) for event in events)
    bound = concentrated_epsilon(rho, delta)
    sampled = [event for event in events if isinstance(event, GaussianEvent) and event.sampling < 1.0]
    if not sampled or any(event.error or event.noise_multiplier < MIN_NOISE for event in sampled):
        return bound
    accounting = _library()
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for event in sampled:
        one = accounting.PoissonSampledDpEvent(event.sampling, accounting.GaussianDpEvent(event.noise_multiplier))
        accountant.compose(one, event.count)
    rest = sum(event.count / (2 * event.noise_multiplier**2) for event in events if event not in sampled)
    if rest:
        accountant.compose(accounting.ZCDpEvent(rest))
    return min(bound, float(accountant.get_epsilon(delta)))


def concentrated_epsilon(rho: float, delta: float) -> float:
    """The smallest ε for which ρ-concentrated differential privacy gives (ε, δ).

    Canonne, Kamath and Steinke (2020), Corollary 13: the minimum over α > 1 of
    αρ + (log(1/δ) + (α − 1)·log(1 − 1/α) − log α)/(α − 1), here on a fine grid of α: rounded up, never down.
    """
    if rho <= 0.0:
        return 0.0
    above = np.logspace(-9, 9, 20_001)  # α − 1
    alpha = 1 + above
    values = alpha * rho + (log(1 / delta) + above * (np.log(above) - np.log(alpha)) - np.log(alpha)) / above
    return max(0.0, float(values.min()))


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
    cost = composed([event], delta)
    return Spent(cost, delta, event.noise_multiplier, event.count, mechanism.unit, mechanism.not_covered)


def _library() -> Any:
    """The module `dp_accounting`; raises `ConfigError` if it is not installed."""
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError("differential privacy needs dp-accounting: pip install 'hansa[privacy]'") from None
    return dp_accounting
