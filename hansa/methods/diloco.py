"""Douillard et al. (2024), DiLoCo: Distributed Low-Communication Training of Language Models, Algorithm 1.

    silo i   θᵢ ← θ;  H times:  θᵢ ← InnerOpt(θᵢ, ∇f);   Δᵢ = θ − θᵢ
    server   Δ = (1/k)·Σᵢ Δᵢ;   m ← μ·m + Δ;   θ ← θ − η·(Δ + μ·m)

H: local steps between two rounds (hundreds; `train.samples`, `train.batch`); InnerOpt: AdamW (`train.optimizer:
adamw`), whose state a silo keeps between rounds; k: silos in the round; OuterOpt: SGD with Nesterov's momentum, η = 0.7
and μ = 0.9 as in Section 3.1. With H = 1, plain SGD inside, η = 1 and μ = 0 it is synchronous SGD over all silos.
Deviations: none. Streamed fragments (Douillard et al., 2025) are `upload: fragments`.
"""

from dataclasses import replace

from pydantic import Field

from hansa.core.method import METHODS, Method
from hansa.core.settings import Positive, Section
from hansa.methods.fedavg import BySamples, fedavg
from hansa.methods.fedopt import Nesterov


def diloco(lr: float = 0.7, momentum: float = 0.9) -> Method:
    """DiLoCo with the outer learning rate η and momentum μ."""
    return replace(
        fedavg(), name="diloco", weighting=BySamples(0.0), server=Nesterov(lr, momentum), keeps_optimizer=True
    )


@METHODS.register("diloco")
class DiLoCo(Section):
    """DiLoCo (Douillard et al., 2024): many local steps of AdamW, Nesterov's momentum at the server."""

    lr: Positive = Field(default=0.7, description="Outer learning rate η.")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Outer momentum μ.")

    def build(self) -> Method:
        """The method."""
        return diloco(self.lr, self.momentum)
