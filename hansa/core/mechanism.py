"""Privacy mechanisms: an object that both protects a release and states its price.

After jax_privacy's execution plans: because noise and price belong to one object, they cannot drift apart. Everything
that reports a price (the preview, the policy, the audit log, the report, a silo's budget) asks the mechanism, never a
setting.
"""

from dataclasses import dataclass
from math import inf, sqrt
from typing import Protocol


@dataclass(frozen=True)
class GaussianEvent:
    """``count`` releases with Gaussian noise of ``noise_multiplier`` times the sensitivity.

    ``sampling``: the probability with which a unit takes part in each release, drawn independently and in secret
    (Poisson sampling); 1: every unit takes part. ``error``: the total variation distance of one release from one with
    exact Gaussian noise, such as that of noise on a grid; accounting takes it out of δ.
    """

    noise_multiplier: float
    count: int
    sampling: float = 1.0
    error: float = 0.0


@dataclass(frozen=True)
class ZCdpEvent:
    """``count`` releases that are each ``rho``-zero-concentrated differentially private (Bun and Steinke, 2016)."""

    rho: float
    count: int

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the Gaussian mechanism with this ρ: 1/√(2ρ)."""
        return 1 / sqrt(2 * self.rho) if self.rho > 0 else inf


Event = GaussianEvent | ZCdpEvent


class Mechanism(Protocol):
    """What protects a release. Each mechanism adds a method that applies it to the values it protects."""

    @property
    def unit(self) -> str:
        """What is protected, in words: the data of a silo, of a patient, a document, a sample."""

    @property
    def delta(self) -> float:
        """The δ at which ε is stated."""

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from the federation's seed, so that it can be subtracted: for simulations only."""

    @property
    def not_covered(self) -> str:
        """What leaves beside the protected values and is outside of ε, in words."""

    def event(self, rounds: int) -> Event:
        """What a unit that took part in every one of ``rounds`` rounds has to be accounted for."""
