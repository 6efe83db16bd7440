"""Wang et al. (2024), FLoRA: stacking of adapters of different ranks, arXiv 2409.05976.

    Aᵢ, Bᵢ: the adapter of silo i after local training, of its own rank rᵢ; wᵢ: its weight, Σ wᵢ = 1
    Σ wᵢ Bᵢ Aᵢ = [w₁B₁, …, wₖBₖ]·[A₁; …; Aₖ]             stacking, exact for any ranks

Deviations: the paper adds the product to the weights of the base in every round; here it stays a low-rank factor beside
the base (`hansa.core.factors`), whose rank may be bounded (`model.lora.residual_rank`). B begins every round at zero,
where the paper's adapters begin anew; A goes on from the average of the silos' A in place of new random values, so that
a silo's policy, which bounds how far a received model may move, need not be widened.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hansa.core.method import WeightedFactors


@dataclass(frozen=True)
class StackedFactors:
    """The residual takes all products, and the adapter begins at zero again."""

    restarts: bool = True

    def residual(self, silos: WeightedFactors) -> tuple[Tensor, Tensor]:
        """The stacked factors [w₁B₁, …, wₖBₖ] and [A₁; …; Aₖ], whose product is the weighted sum of all BᵢAᵢ."""
        return torch.cat([w * b for w, _, b in silos], 1), torch.cat([a for _, a, _ in silos])
