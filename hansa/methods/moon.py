"""Li et al. (2021), Model-Contrastive Federated Learning (MOON), Equations 3 and 4.

    L_con = −log( exp(sim(z, z_glob)/τ) / (exp(sim(z, z_glob)/τ) + exp(sim(z, z_prev)/τ)) )
    L = L_task + μ·L_con

z: the representation of a text by the model in training; z_glob: by the global model it received; z_prev: by the
silo's own model at the end of the last round it took part in; sim: cosine; τ: temperature; μ: weight. The silo keeps
its model between rounds. In its first round there is no previous model and no term. z_glob and z_prev are computed
without dropout, so that they are the same whenever a text is seen.
z is the input of the output layer, as in the paper, where a small projection head stands between the encoder and the
output layer; in models such as BERT this is the output of the pooler or of the dense layer of the classification head.
Deviations: no projection head is added to a classifier without such a layer (most decoders).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hansa.core import representations
from hansa.core.learner import Work
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class PreviousModel:
    """State of a silo: its own model at the end of its last round."""

    model: Tensors


@dataclass(frozen=True)
class ContrastiveLoss:
    """The task's loss and μ times the model-contrastive term."""

    mu: float
    temperature: float
    needs_text_vectors: ClassVar[bool] = True
    state: ClassVar[type[PreviousModel]] = PreviousModel

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The task's loss plus μ times the contrast of the batch; the task's loss alone in a silo's first round."""
        if work.state is None or work.batch is None:
            return task_loss()
        model, inputs = work.learner.model, work.batch.inputs
        z, loss = representations.watched(model, inputs, task_loss)
        with torch.no_grad():
            z_glob = representations.represent_with(model, work.received.named(), inputs)
            z_prev = representations.represent_with(model, self._previous(work), inputs)
        return loss + self.mu * contrast(z, z_glob, z_prev, self.temperature)

    def _previous(self, work: Work) -> dict[str, Tensor]:
        if "previous" not in work.prepared:
            work.prepared["previous"] = work.state.model.named()
        named: dict[str, Tensor] = work.prepared["previous"]
        return named

    def gradient(self, work: Work) -> None:
        """Add nothing: the contrastive term is part of the loss."""

    def finish(self, work: Work) -> PreviousModel:
        """The silo's trained model, from which z_prev is computed in its next round."""
        return PreviousModel(work.learner.state.copy())


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """Equation 3, mean over the batch: cross-entropy of telling ``z_glob`` from ``z_prev`` by similarity to ``z``."""
    similar = [nn.functional.cosine_similarity(z, other, dim=-1) / temperature for other in (z_glob, z_prev)]
    first = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return nn.functional.cross_entropy(torch.stack(similar, dim=1), first)


@METHODS.register("moon")
class Moon(Section):
    """MOON (Li et al., 2021): a model-contrastive term."""

    mu: float = Field(default=1.0, ge=0.0, description="Weight μ of the contrastive term.")
    temperature: Positive = Field(default=0.5, description="Temperature τ of the similarities.")

    def build(self) -> Method:
        """FedAvg with the model-contrastive loss."""
        return replace(fedavg(), name="moon", objective=ContrastiveLoss(self.mu, self.temperature))
