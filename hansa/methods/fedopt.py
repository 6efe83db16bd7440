"""Reddi et al. (2021), Adaptive Federated Optimization, Algorithm 2; Manoel et al. (2023), Equation 2 and Table 2.

    Δ_t = Σ wᵢ·(θᵢ − θ) = −g                  g: the mean pseudo-gradient
    m_t = β₁·m_{t−1} + (1 − β₁)·g
    FedAdagrad  v_t = v_{t−1} + g²
    FedYogi     v_t = v_{t−1} − (1 − β₂)·g²·sign(v_{t−1} − g²)
    FedAdam     v_t = β₂·v_{t−1} + (1 − β₂)·g²
    θ ← θ − η·m̂ / (√v̂ + τ)

η: server learning rate; m, v: moments, kept over rounds; τ (``eps``): the degree of adaptivity; m̂, v̂:
bias-corrected as in Adam (Kingma & Ba, 2015), as the server of Manoel et al. uses it; ``bias_correction: false`` is
Reddi et al. as published. For Yogi and Adagrad only m is corrected, since their v has no decay to undo.
Deviations: v starts at zero (Reddi et al. allow any v₋₁ ≥ τ²).
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field

from hansa.core.method import METHODS, Method
from hansa.core.settings import Positive, Section, Share
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class MomentumState:
    """State of `Momentum` and `Nesterov`, changed in place."""

    m: Tensors


@dataclass(frozen=True)
class Momentum:
    """m ← μ·m + g;  θ ← θ − η·m."""

    lr: float
    momentum: float = 0.9

    def begin(self, layout: Layout) -> MomentumState:
        """Momentum of zero."""
        return MomentumState(Tensors.zeros(layout))

    def step(self, model: Tensors, gradient: Tensors, state: MomentumState, round: int, scale: float) -> None:
        """Add the pseudo-gradient to the decayed momentum, and move the model along the momentum."""
        m = state.m.flat
        m.mul_(self.momentum).add_(gradient.flat)
        model.flat.add_(m, alpha=-self.lr * scale)


@dataclass(frozen=True)
class Nesterov:
    """m ← μ·m + g;  θ ← θ − η·(g + μ·m): Nesterov's momentum (Sutskever et al., 2013), as torch's SGD has it."""

    lr: float
    momentum: float = 0.9

    def begin(self, layout: Layout) -> MomentumState:
        """A momentum vector that is zero in every tensor."""
        return MomentumState(Tensors.zeros(layout))

    def step(self, model: Tensors, gradient: Tensors, state: MomentumState, round: int, scale: float) -> None:
        """Update the momentum, and move the model along the pseudo-gradient plus μ times the new momentum."""
        m = state.m.flat
        m.mul_(self.momentum).add_(gradient.flat)
        model.flat.add_(gradient.flat, alpha=-self.lr * scale).add_(m, alpha=-self.lr * scale * self.momentum)


@dataclass(frozen=True)
class MomentsState:
    """State of `Adaptive`, changed in place: first and second moment."""

    m: Tensors
    v: Tensors


@dataclass(frozen=True)
class Adaptive:
    """Adam, Adagrad or Yogi at the server; the equations are above."""

    rule: Literal["adam", "adagrad", "yogi"]
    lr: float
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    bias_correction: bool = True

    def begin(self, layout: Layout) -> MomentsState:
        """First and second moments of zero."""
        return MomentsState(Tensors.zeros(layout), Tensors.zeros(layout))

    def step(self, model: Tensors, gradient: Tensors, state: MomentsState, round: int, scale: float) -> None:
        """Update both moments by the rule, and move the model by m̂ / (√v̂ + τ)."""
        beta1, beta2 = self.betas
        m, v, g = state.m.flat, state.v.flat, gradient.flat
        m.lerp_(g, 1 - beta1)
        if self.rule == "adam":
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        elif self.rule == "adagrad":
            v.addcmul_(g, g)
        else:
            g2 = g * g
            v.addcmul_(g2, torch.sign(v - g2), value=-(1 - beta2))
        correct_m = correct_v = 1.0
        if self.bias_correction:
            correct_m = 1 - beta1**round
            correct_v = 1 - beta2**round if self.rule == "adam" else 1.0
        denominator = v.sqrt().div_(correct_v**0.5).add_(self.eps)
        model.flat.addcdiv_(m, denominator, value=-self.lr * scale / correct_m)


class _FedOpt(Section):
    lr: Positive = Field(default=0.01, description="Server learning rate η.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.99), description="β₁ and β₂: decay of the first and second moment."
    )
    eps: Positive = Field(default=1e-3, description="τ, the degree of adaptivity.")
    bias_correction: bool = Field(default=False, description="Correct the moments' bias towards zero.")


@METHODS.register("fedadam")
class FedAdam(_FedOpt):
    """FedAdam (Reddi et al., 2021): Adam at the server."""

    def build(self) -> Method:
        """FedAvg with Adam at the server."""
        server = Adaptive("adam", self.lr, self.betas, self.eps, self.bias_correction)
        return replace(fedavg(), name="fedadam", server=server)


@METHODS.register("fedyogi")
class FedYogi(_FedOpt):
    """FedYogi (Reddi et al., 2021): Yogi at the server."""

    def build(self) -> Method:
        """FedAvg with Yogi at the server."""
        server = Adaptive("yogi", self.lr, self.betas, self.eps, self.bias_correction)
        return replace(fedavg(), name="fedyogi", server=server)


@METHODS.register("fedadagrad")
class FedAdagrad(_FedOpt):
    """FedAdagrad (Reddi et al., 2021): Adagrad at the server."""

    betas: tuple[Share, Share] = Field(
        default=(0.0, 0.99), description="β₁: decay of the first moment; the second value is not used."
    )

    def build(self) -> Method:
        """FedAvg with Adagrad at the server."""
        server = Adaptive("adagrad", self.lr, self.betas, self.eps, self.bias_correction)
        return replace(fedavg(), name="fedadagrad", server=server)


@METHODS.register("fedavgm")
class FedAvgM(Section):
    """FedAvgM (Hsu et al., 2019): SGD with momentum at the server."""

    lr: Positive = Field(default=1.0, description="Server learning rate η.")
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0, description="Momentum μ.")

    def build(self) -> Method:
        """FedAvg with heavy-ball momentum at the server."""
        return replace(fedavg(), name="fedavgm", server=Momentum(self.lr, self.momentum))
