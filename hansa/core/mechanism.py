"""Privacy mechanisms: an object that both protects a release and states its price.

After jax_privacy's execution plans: because noise and price belong to one object, they cannot drift apart. Everything
that reports a price (the preview, the policy, the audit log, the report) asks the mechanism, never a setting.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class GaussianEvent:
    """``count`` releases with Gaussian noise of ``noise_multiplier`` times the sensitivity.

    ``sampling``: the probability with which a unit takes part in each release, drawn independently and in secret
    (Poisson sampling); 1: every unit takes part.
    """

    noise_multiplier: float
    count: int
    sampling: float = 1.0


@dataclass(frozen=True)
class ConcentratedEvent:
    """``count`` releases that are each ``rho``-concentrated differentially private (zCDP, Bun and Steinke, 2016).

    ``noise_multiplier``: standard deviation of the noise over the sensitivity, for reports.
    """

    rho: float
    count: int
    noise_multiplier: float


class Mechanism(Protocol):
    """What protects a release. Each mechanism adds a method that applies it to the values it protects."""

    @property
    def unit(self) -> str:
        """What is protected, in words: the data of a silo, a document, a sample."""

    @property
    def delta(self) -> float:
        """The δ at which ε is stated."""

    @property
    def seeded(self) -> bool:
        """Whether the noise comes from the federation's seed, so that it can be subtracted: for simulations only."""

    @property
    def not_covered(self) -> str:
        """What leaves beside the protected values and is outside of ε, in words."""

    def event(self, rounds: int) -> GaussianEvent | ConcentratedEvent:
        """What a unit that took part in every one of ``rounds`` rounds has to be accounted for."""
