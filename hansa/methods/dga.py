"""Dimitriadis et al. (2021), Dynamic Gradient Aggregation for Federated Domain Adaptation, Section 3.

    wᵢ = exp(−β·Lᵢ) / Σⱼ exp(−β·Lⱼ)

Lᵢ: silo i's mean training loss in this round; β (``temperature``): how sharply good fits are preferred; β = 0 is
the uniform mean. Deviations: the softmax form only; their learned weighting network is not included.
"""

from dataclasses import dataclass, replace
from math import exp
from typing import Annotated, ClassVar

from pydantic import Field

from hansa.core.messages import Update
from hansa.core.method import METHODS, Method
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg

STEEPEST = 50.0  # largest temperature: beyond it a single silo would count
LARGEST = 700.0  # e to this is about the largest number there is


@dataclass(frozen=True)
class ByLoss:
    """wᵢ ∝ exp(−β·Lᵢ)."""

    temperature: float = 1.0
    known_before_training: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False

    def weight(self, update: Update) -> float:
        return exp(max(-LARGEST, min(LARGEST, -self.temperature * update.loss)))


@METHODS.register("dga")
class Dga(Section):
    temperature: Annotated[float, Field(ge=0.0, le=STEEPEST)] = 1.0

    def build(self) -> Method:
        return replace(fedavg(), name="dga", weighting=ByLoss(self.temperature))
