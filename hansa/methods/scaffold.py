"""Karimireddy et al. (2020), SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, Algorithm 1, option II.

    silo     y_i ← x;  K times:  y_i ← y_i − η_l·(g_i(y_i) − c_i + c)
             c_i⁺ = c_i − c + (x − y_i)/(K·η_l);   Δc_i = c_i⁺ − c_i;   c_i ← c_i⁺
    server   x ← x + (η_g/|S|)·Σ_{i∈S} (y_i − x);   c ← c + (|S|/N)·(1/|S|)·Σ_{i∈S} Δc_i

x: the global model; y_i: silo i's model while training; g_i: its stochastic gradient; K: its local steps; η_l: its
learning rate (``train.lr`` times the schedule's factor); η_g: the server learning rate; c, c_i: the control variates of
the server and of silo i, zero at first; S: the silos that answered; N: all silos. c − c_i corrects the drift of a silo
towards its own optimum. A silo keeps c_i between rounds; c travels to every silo with the model and Δc_i travels back
with the update, so that a round costs twice the bytes of FedAvg. Silos weigh the same, as in the paper.
Deviations: the correction covers the tensors that are shared. c_i⁺ is the mean gradient of the round only for plain SGD
without clipping and with one learning rate per round; other local optimizers run, with the formula as it stands. A silo
whose learning rate is 0, or that takes no step, keeps c_i. A silo whose update gets lost has replaced its c_i already.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from hansa.core.learner import Work
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import BySamples, ServerSgd, fedavg


@dataclass(frozen=True)
class SiloControl:
    """What a silo keeps: its control variate c_i."""

    value: Tensors


@dataclass(frozen=True)
class Corrected:
    """The task's loss, with c − c_i added to its gradient."""

    needs_text_vectors: ClassVar[bool] = False
    state: ClassVar[type[SiloControl]] = SiloControl

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The task's loss."""
        return task_loss()

    def gradient(self, work: Work) -> None:
        """Add c − c_i."""
        correction = _correction(work)
        if correction is None:
            return
        learner = work.learner
        if correction.layout == learner.layout:
            learner.grad.add_(correction.flat)
            return
        for name, span in correction.layout.spans.items():
            learner.grad[learner.layout.spans[name]].add_(correction.flat[span])

    def finish(self, work: Work) -> SiloControl | None:
        """Set Δc_i as the contribution; return c_i⁺."""
        before: SiloControl | None = work.state
        correction = _correction(work)
        if correction is None or not work.steps * work.lr:
            return before
        layout = correction.layout
        x, y = work.received.only(layout.names).flat, work.learner.state.only(layout.names).flat
        after = (x - y).div_(work.steps * work.lr).sub_(correction.flat)
        change = after if before is None else after - before.value.flat
        work.contribution = Tensors(layout, change)
        return SiloControl(Tensors(layout, after))


def _correction(work: Work) -> Tensors | None:
    """The correction c − c_i; None where the server sent no c, as outside of federated rounds."""
    if work.shared_state is None:
        return None
    if "correction" not in work.prepared:
        c, before = work.shared_state, work.state
        work.prepared["correction"] = c if before is None else Tensors(c.layout, c.flat - before.value.flat)
    correction: Tensors = work.prepared["correction"]
    return correction


@dataclass(frozen=True)
class ServerControl:
    """The server's control variate c."""

    def begin(self, layout: Layout) -> Tensors:
        """Zero."""
        return Tensors.zeros(layout)

    def merge(self, value: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The next c: c + (|S|/N)·mean Δc_i."""
        return Tensors(value.layout, value.flat.add(mean.flat, alpha=participation))


def scaffold(server_lr: float = 1.0) -> Method:
    """SCAFFOLD with the server learning rate η_g."""
    return replace(
        fedavg(),
        name="scaffold",
        objective=Corrected(),
        weighting=BySamples(0.0),
        server=ServerSgd(server_lr),
        shared_state=ServerControl(),
    )


@METHODS.register("scaffold")
class Scaffold(Section):
    """SCAFFOLD: control variates correct the drift of silos."""

    server_lr: Positive = Field(default=1.0, description="Server learning rate η_g.")

    def build(self) -> Method:
        """The method."""
        return scaffold(self.server_lr)
