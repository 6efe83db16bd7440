"""SCAFFOLD as a plug-in: state at the server and at the silos, with nothing from inside the package.

Karimireddy et al. (2020), SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, Algorithm 1, option II.

    silo     g ← g − c_i + c;   c_i⁺ = c_i − c + (x − y_i)/(K·η_l);   Δc_i = c_i⁺ − c_i
    server   c ← c + β·(|S|/N)·mean Δc_i

The symbols are those of hansa/methods/scaffold.py. β (``strength``) is the variant: below 1 the server's control
variate is smaller than the mean of the silos', which weakens the correction; β = 1 is the paper.
An objective declares the dataclass of its silo state (``state``), reads it from ``work.state`` and returns the next one
from ``finish``. Hansa stores it in the silo's folder, and the server's part in the checkpoints, so that a run resumes.

In a federation file:

    plugins: [examples/scaffold.py]
    method: {name: my-scaffold, strength: 0.5}
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from hansa.core.learner import Work
from hansa.core.messages import Update
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.settings import Named, Section, Share
from hansa.core.tensors import Layout, Tensors


@dataclass(frozen=True)
class ControlVariate:
    """State of a silo: c_i."""

    value: Tensors


@dataclass(frozen=True)
class DriftCorrection:
    """The task's loss, with c − c_i added to its gradient; for methods that share all tensors."""

    needs_text_vectors: ClassVar[bool] = False
    state: ClassVar[type[ControlVariate]] = ControlVariate

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The task's loss."""
        return task_loss()

    def gradient(self, work: Work) -> None:
        """Add c − c_i, at every step."""
        if work.shared_state is None:  # no server, as when a silo trains a personal model
            return
        work.learner.grad.add_(work.shared_state.flat)
        if work.state is not None:
            work.learner.grad.sub_(work.state.value.flat)

    def finish(self, work: Work) -> ControlVariate | None:
        """Send Δc_i to the server; keep c_i⁺."""
        if work.shared_state is None or not work.steps * work.lr:
            before: ControlVariate | None = work.state
            return before
        c, own = work.shared_state, work.state.value.flat if work.state is not None else 0.0
        after = own - c.flat + (work.received.flat - work.learner.flat) / (work.steps * work.lr)
        work.contribution = Tensors(c.layout, after - own)
        return ControlVariate(Tensors(c.layout, after))


@dataclass(frozen=True)
class ServerVariate:
    """The server's c, which the silos' contributions move."""

    strength: float

    def begin(self, layout: Layout) -> Tensors:
        """Zero."""
        return Tensors.zeros(layout)

    def merge(self, value: Tensors, mean: Tensors, participation: float) -> Tensors:
        """C + β·(|S|/N)·mean Δc_i."""
        return Tensors(value.layout, value.flat + self.strength * participation * mean.flat)


@dataclass(frozen=True)
class EqualWeights:
    """All silos weigh the same, as in the paper."""

    known_before_training: ClassVar[bool] = True
    replaceable: ClassVar[bool] = True

    def weight(self, update: Update) -> float:
        """One."""
        return 1.0


@METHODS.register("my-scaffold")
class MyScaffold(Section):
    """SCAFFOLD with a factor on the server's control variate."""

    strength: Share = Field(default=1.0, description="β: factor on the server's control variate; 1: the paper.")

    def build(self) -> Method:
        """FedAvg with another objective, equal weights and a shared state."""
        return replace(
            METHODS.build(Named(name="fedavg")),
            name="my-scaffold",
            objective=DriftCorrection(),
            weighting=EqualWeights(),
            shared_state=ServerVariate(self.strength),
        )
