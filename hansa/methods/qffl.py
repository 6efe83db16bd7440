"""Li et al. (2020), Fair Resource Allocation in Federated Learning, Algorithm 2 (q-FedAvg).

    Δᵢ = L·Fᵢ^q·(θ − θᵢ),   hᵢ = q·Fᵢ^(q−1)·‖L·(θ − θᵢ)‖² + L·Fᵢ^q,   θ ← θ − Σ Δᵢ / Σ hᵢ

Fᵢ: silo i's training loss; q: the degree of fairness (0: silos weigh the same; large: only the silo with the highest
loss counts); L = 1/η: the inverse of the silo's learning rate. A silo with a high loss has a larger weight, so that
losses become more even over silos.
Deviations: Fᵢ is the mean loss of the round's batches, which is the loss of θ itself when a round is one batch. If the
file has a `server` section, its optimizer takes Σ Δᵢ/Σ hᵢ as the pseudo-gradient.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from hansa.core.messages import Update
from hansa.core.method import METHODS, Method
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class Uniform:
    """Every silo weighs the same."""

    known_before_training: ClassVar[bool] = True
    replaceable: ClassVar[bool] = True

    def weight(self, update: Update) -> float:
        """The weight 1 for every update."""
        return 1.0


@dataclass(frozen=True)
class QFairMean:
    """Σ Δᵢ / Σ hᵢ of q-FedAvg; hᵢ needs the norm of each update."""

    q: float
    lipschitz: float
    linear: ClassVar[bool] = False
    per_tensor: ClassVar[bool] = True
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = False

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """Sum L·Fᵢ^q times each pseudo-gradient, and divide by the sum of hᵢ."""
        mean = WeightedMean(layout)
        for update, weight in updates:
            loss = max(update.loss, 1e-10)
            pull = weight * self.lipschitz * loss**self.q
            norm = float(update.gradient.flat.norm()) * self.lipschitz
            mean.add(update.gradient, pull, weight * self.q * loss ** (self.q - 1) * norm**2 + pull)
        return mean.mean()


@METHODS.register("qffl")
class QFfl(Section):
    """q-FedAvg (Li et al., 2020): silos with a higher loss weigh more."""

    q: float = Field(default=1.0, ge=0.0, le=20.0, description="Degree of fairness q; 0: silos weigh the same.")
    lr: Positive = Field(
        default=0.1, description="η, whose inverse L bounds the curvature: `train.lr`. It only scales the step."
    )

    def build(self) -> Method:
        """FedAvg with uniform weights and the q-fair mean, where L is 1 / ``lr``."""
        return replace(fedavg(), name="qffl", weighting=Uniform(), aggregator=QFairMean(self.q, 1 / self.lr))
