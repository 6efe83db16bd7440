"""Dimitriadis et al. (2021), Dynamic Gradient Aggregation for Federated Domain Adaptation, Section 3.

    wᵢ = exp(−β·Lᵢ) / Σⱼ exp(−β·Lⱼ)

Lᵢ: silo i's mean training loss in this round; β (``temperature``): how strongly silos with a low loss are preferred;
β = 0 is the uniform mean. Deviations: the softmax form only; their learned weighting network is not included.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import ClassVar

from pydantic import Field

from hansa.core.messages import Update
from hansa.core.method import METHODS, Method
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg

MAX_TEMPERATURE = 50.0  # beyond it, a single silo would have all of the weight
MAX_EXPONENT = 700.0  # exp(700) is close to the largest float64


@dataclass(frozen=True)
class ByLoss:
    """wᵢ ∝ exp(−β·Lᵢ)."""

    temperature: float = 1.0
    known_before_training: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False

    def weight(self, update: Update) -> float:
        """Weight by exp(−β·loss), with the exponent limited to ±`MAX_EXPONENT`."""
        return exp(max(-MAX_EXPONENT, min(MAX_EXPONENT, -self.temperature * update.loss)))


@METHODS.register("dga")
class Dga(Section):
    """Dynamic gradient aggregation (Dimitriadis et al., 2021): weights by training loss."""

    temperature: float = Field(
        default=1.0,
        ge=0.0,
        le=MAX_TEMPERATURE,
        description="β of softmax(−β·loss), an inverse temperature: larger is sharper; 0: uniform.",
    )

    def build(self) -> Method:
        """FedAvg weighted by training loss."""
        return replace(fedavg(), name="dga", weighting=ByLoss(self.temperature))
