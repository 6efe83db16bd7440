"""Singhal, Ponkshe and Vepakomma (2024), FedEx-LoRA: exact aggregation of adapters, arXiv 2410.09432.

    Aᵢ, Bᵢ: the adapter of silo i after local training; wᵢ: its weight, Σ wᵢ = 1
    Ā = Σ wᵢ Aᵢ, B̄ = Σ wᵢ Bᵢ                        what plain averaging gives every silo
    Δ = Σ wᵢ Bᵢ Aᵢ − B̄ Ā = Σ wᵢ (Bᵢ − B̄)(Aᵢ − Ā)      what it misses

Deviations: the paper adds Δ to the weights of the base; here it stays a low-rank factor beside the base, which may be
quantised (`hansa.core.factors`). Weights are those of the method, in place of 1/k. The rank of the sum of all Δ may be
bounded (`model.lora.residual_rank`); beyond it, its best approximation is kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hansa.core.method import WeightedFactors


@dataclass(frozen=True)
class ExactFactors:
    """The adapter is the average, and the residual is what the average of the products has beside it."""

    restarts: bool = False

    def residual(self, silos: WeightedFactors) -> tuple[Tensor, Tensor]:
        """The factors of Δ, the difference between the mean of the products and the product of the means."""
        mean_a = torch.stack([w * a for w, a, _ in silos]).sum(0)
        mean_b = torch.stack([w * b for w, _, b in silos]).sum(0)
        return torch.cat([w * (b - mean_b) for w, _, b in silos], 1), torch.cat([a - mean_a for _, a, _ in silos])
