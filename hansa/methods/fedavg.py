"""McMahan et al. (2017), Communication-Efficient Learning of Deep Networks from Decentralized Data, Algorithm 1.

    θ ← Σᵢ (Nᵢ/N)·θᵢ  =  θ − Σᵢ (Nᵢ/N)·(θ − θᵢ)

θ: the model; θᵢ: silo i's model after local steps; Nᵢ: its samples; g = θ − θᵢ: its pseudo-gradient. Written the
second way, so that any server optimiser can take the step; plain SGD with rate 1 is FedAvg itself.
Deviations: none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from hansa.core.compression import NoCompression
from hansa.core.messages import Update
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.participation import Synchronous
from hansa.core.settings import Section
from hansa.core.tensors import Layout, Tensors, WeightedMean

if TYPE_CHECKING:
    from hansa.core.learner import Work


@dataclass(frozen=True)
class ShareEverything:
    """All trainable tensors travel."""

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        return layout.names


@dataclass(frozen=True)
class PlainObjective:
    """Nothing beside the task's own loss, and nothing kept."""

    def loss(self, work: "Work", task_loss: TaskLoss) -> Tensor:
        return task_loss()

    def gradient(self, work: "Work") -> None:
        return None

    def keep(self, work: "Work") -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class BySamples:
    """wᵢ ∝ Nᵢ^t: t = 1 is FedAvg, t = 0 counts every silo the same, between them small silos gain."""

    temperature: float = 1.0

    def weight(self, update: Update) -> float:
        return self.of(update.samples)

    def of(self, samples: int) -> float:
        return float(samples**self.temperature)


@dataclass(frozen=True)
class Mean:
    """A running weighted mean: one sum in memory, whatever the number of silos."""

    needs: ClassVar[Literal["sum"]] = "sum"

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        mean = WeightedMean(layout)
        for update, weight in updates:
            mean.add(update.gradient, weight)
        return mean.mean()


@dataclass(frozen=True)
class ServerSgd:
    """θ ← θ − η·g."""

    lr: float = 1.0

    def begin(self, layout: Layout) -> dict[str, Tensors]:
        return {}

    def step(self, model: Tensors, gradient: Tensors, state: dict[str, Tensors], round: int, scale: float) -> None:
        model.flat.add_(gradient.flat, alpha=-self.lr * scale)


def fedavg() -> Method:
    return Method(
        name="fedavg",
        pace=Synchronous(),
        exchange=None,
        scope=ShareEverything(),
        objective=PlainObjective(),
        upload=NoCompression(),
        weigh=BySamples(),
        aggregate=Mean(),
        server=ServerSgd(),
    )


@METHODS.register("fedavg")
class FedAvg(Section):
    def build(self) -> Method:
        return fedavg()
