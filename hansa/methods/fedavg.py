"""McMahan et al. (2017), Communication-Efficient Learning of Deep Networks from Decentralized Data, Algorithm 1.

    θ ← Σᵢ (Nᵢ/N)·θᵢ  =  θ − Σᵢ (Nᵢ/N)·(θ − θᵢ)

θ: the model; θᵢ: silo i's model after local steps; Nᵢ: its samples; g = θ − θᵢ: its pseudo-gradient. The code uses the
second form, in which any server optimizer can take the step; SGD with learning rate 1 is FedAvg itself.
Deviations: none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hansa.core.compression import NoCompression
from hansa.core.learner import Work
from hansa.core.messages import Update
from hansa.core.method import AGGREGATORS, METHODS, Aggregator, Method, TaskLoss
from hansa.core.participation import Synchronous
from hansa.core.settings import Section
from hansa.core.tensors import Layout, Tensors, WeightedMean


@dataclass(frozen=True)
class ShareEverything:
    """All trainable tensors are shared."""

    shares_nothing: ClassVar[bool] = False

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        """The names of all tensors."""
        return layout.names


@dataclass(frozen=True)
class PlainObjective:
    """The task's own loss, and no state."""

    needs_text_vectors: ClassVar[bool] = False
    task_loss_only: ClassVar[bool] = True
    adds_no_gradient: ClassVar[bool] = True
    state: ClassVar[None] = None

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The task's loss, without any term beside it."""
        return task_loss()

    def gradient(self, work: Work) -> None:
        """Add nothing to the gradient."""

    def finish(self, work: Work) -> None:
        """Keep no state."""


@dataclass(frozen=True)
class BySamples:
    """wᵢ ∝ Nᵢ^t: t = 1 is FedAvg, t = 0 weighs all silos equally; the smaller t, the more small silos weigh."""

    temperature: float = 1.0
    known_before_training: ClassVar[bool] = True
    replaceable: ClassVar[bool] = True

    def weight(self, update: Update) -> float:
        """Weight by the number of samples to the power t."""
        return float(update.samples**self.temperature)


@dataclass(frozen=True)
class Mean:
    """The weighted mean, computed as a running sum: memory does not grow with the number of silos."""

    linear: ClassVar[bool] = True
    per_tensor: ClassVar[bool] = True
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = True

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """Average the pseudo-gradients by weight; a tensor is averaged over the silos that sent it."""
        mean = WeightedMean(layout)
        for update, weight in updates:
            mean.add(update.gradient, weight)
        return mean.mean()


@dataclass(frozen=True)
class ServerSgd:
    """θ ← θ − η·g."""

    lr: float = 1.0

    def begin(self, layout: Layout) -> None:
        """No state: SGD without momentum needs none."""

    def step(self, model: Tensors, gradient: Tensors, state: None, round: int, scale: float) -> None:
        """Subtract the pseudo-gradient, times the learning rate and the schedule's factor."""
        model.flat.add_(gradient.flat, alpha=-self.lr * scale)


def fedavg() -> Method:
    """FedAvg: every slot at its plainest."""
    return Method(
        name="fedavg",
        participation=Synchronous(),
        exchange=None,
        scope=ShareEverything(),
        objective=PlainObjective(),
        upload=NoCompression(),
        weighting=BySamples(),
        aggregator=Mean(),
        server=ServerSgd(),
    )


@AGGREGATORS.register("mean")
class MeanSettings(Section):
    """The weighted mean."""

    def build(self) -> Aggregator:
        """The aggregator that computes the weighted mean."""
        return Mean()


@METHODS.register("fedavg")
class FedAvg(Section):
    """Federated averaging (McMahan et al., 2017)."""

    def build(self) -> Method:
        """FedAvg, which has no settings."""
        return fedavg()
