"""Li et al. (2020), Federated Optimization in Heterogeneous Networks, Algorithm 2 and Equation 2.

    h(w; w^t) = F(w) + (μ/2)·‖w − w^t‖²        so  ∇h = ∇F + μ·(w − w^t)

F: the silo's task loss; w: its model while training; w^t: the global model it received; μ: the weight of the term.
Deviations: the term covers the shared tensors; personal tensors have no global value.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from hansa.core.learner import Work
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class Proximal:
    """The task's loss and μ/2·‖θᵢ − θ‖²."""

    mu: float
    needs_text_vectors: ClassVar[bool] = False
    task_loss_only: ClassVar[bool] = True
    state: ClassVar[None] = None

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The task's loss; `gradient` adds the proximal term."""
        return task_loss()  # the gradient of the other term is known in closed form

    def gradient(self, work: Work) -> None:
        """Add μ·(θᵢ − θ) for the shared tensors."""
        learner, start = work.learner, work.received
        if start.layout == learner.layout:
            learner.grad.add_(learner.flat, alpha=self.mu).sub_(start.flat, alpha=self.mu)
            return
        for name, span in start.layout.spans.items():
            mine = learner.layout.spans[name]
            learner.grad[mine].add_(learner.flat[mine] - start.flat[span], alpha=self.mu)

    def finish(self, work: Work) -> None:
        """Keep no state: the proximal term refers to the received model alone."""


def fedprox(mu: float) -> Method:
    """FedProx with the weight μ of the proximal term."""
    return replace(fedavg(), name="fedprox", objective=Proximal(mu))


@METHODS.register("fedprox")
class FedProx(Section):
    """FedProx (Li et al., 2020): a proximal term keeps silos near the global model."""

    mu: float = Field(default=0.01, ge=0.0, description="Weight μ of the proximal term.")

    def build(self) -> Method:
        """FedAvg with the proximal term of weight ``mu``."""
        return fedprox(self.mu)
