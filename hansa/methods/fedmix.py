"""Yoon et al. (2021), FedMix: Approximation of Mixup under Mean Augmented Federated Learning, Algorithms 1 and 2.

    a silo shares means (x̄, ȳ) of M of its samples and of their labels               (mean augmented federated learning)
    L₁ = (1 − λ)·L(f((1 − λ)·x), y)
    L₂ = λ·L(f((1 − λ)·x), ȳ)
    L₃ = λ·⟨∂L₁/∂x, x̄⟩,  the derivative at (1 − λ)·x
    L = L₁ + L₂ + L₃                        the first-order expansion of mixup with the mean of others, in its input

``naive`` (the paper's NaiveMix) mixes the input itself:  (1 − λ)·L(f(x̃), y) + λ·L(f(x̃), ȳ),  x̃ = (1 − λ)·x + λ·x̄;
the two differ by terms of order λ².

x: a text as the output of the embedding layer; (x̄, ȳ): one of the means of other silos, drawn for each batch; λ:
``mix``; M: ``average``. The step differentiates L₃ a second time.
Deviations: tokens cannot be averaged, so means are of embedded texts, computed in each round with the received model,
at most ``means`` of them; a position is averaged over real tokens. The loss that a silo reports is L itself.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hansa.core import representations
from hansa.core.knowledge import Samples, SharedKnowledge, Sizes
from hansa.core.learner import Work
from hansa.core.messages import Knowledge
from hansa.core.method import METHODS, Method, TaskLoss
from hansa.core.settings import Count, Section, Share
from hansa.core.tensors import Layout, Tensors
from hansa.methods.centroids import mean_rows, mean_texts, truncate_means
from hansa.methods.fedavg import fedavg
from hansa.methods.fedkc import distribution_problem, lengths_fit

MEAN = ("inputs", "labels")


@dataclass(frozen=True)
class Means:
    """What a silo shares: at most ``count`` means of ``size`` random samples each."""

    size: int
    count: int
    needs_text_vectors: ClassVar[bool] = True
    release: ClassVar[None] = None

    @property
    def min_samples(self) -> int:
        """The number M of samples in each mean."""
        return self.size

    @property
    def description(self) -> str:
        """Means of embedded texts and labels in words, with the number and size of the groups."""
        return (
            f"for at most {self.count} groups of {self.size} samples the mean of their embedded tokens, position by "
            "position, and of their labels, without noise"
        )

    def numbers(self, sizes: Sizes) -> int:
        """The size of ``count`` means of the longest texts, with their labels."""
        return self.count * (sizes.length * sizes.embedding + sizes.labels)

    def share(self, work: Work, samples: Samples) -> SharedKnowledge:
        """Average random groups of exactly ``size`` samples: embedded tokens by position, and labels.

        A silo with fewer samples shares nothing, and counts one mean as withheld.
        """
        order = samples.rng.permutation(samples.size)
        count = min(self.count, samples.size // self.size)
        if not count:
            return SharedKnowledge(Knowledge(Tensors.zeros(Layout((), ())), withheld=1))
        groups = [np.sort(order[i * self.size : (i + 1) * self.size]) for i in range(count)]
        inputs, lengths = truncate_means(*mean_texts(work.learner, samples, groups))
        labels = mean_rows(_labels(work, samples), groups)
        means = Tensors.of(dict(zip(MEAN, (inputs, labels), strict=True)))
        return SharedKnowledge(Knowledge(means, (self.size,) * count, lengths), tuple(groups))

    def check(self, knowledge: Knowledge, sizes: Sizes) -> str:
        """Why the names, shapes, lengths or label distributions of the means are wrong; empty if none is."""
        layout = knowledge.tensors.layout
        if layout.names != MEAN:
            return f"it shared {', '.join(layout.names) or 'nothing'} instead of {' and '.join(MEAN)}"
        inputs, labels = layout.shapes
        if len(inputs) != 3 or inputs[-1] != sizes.embedding:
            return f"its inputs have the shape {list(inputs)}, and their width must be {sizes.embedding}"
        if not lengths_fit(inputs[1], knowledge.lengths, len(knowledge.members), sizes.length):
            return f"its inputs have {inputs[1]} positions, of which {list(knowledge.lengths)[:3]}… are real"
        return distribution_problem(knowledge.tensors["labels"], labels, sizes.labels, "labels")


def _labels(work: Work, samples: Samples) -> Tensor:
    """Every sample's label, as a distribution."""
    found = torch.zeros(samples.size, representations.last_linear(work.learner.model).out_features)
    for indices, batch in samples.batches():
        found[torch.from_numpy(indices), batch.targets.cpu()] = 1.0
    return found


@dataclass(frozen=True)
class MixupLoss:
    """FedMix's loss: mixup with the means that other silos shared."""

    mix: float
    naive: bool = False
    needs_text_vectors: ClassVar[bool] = True
    state: ClassVar[None] = None

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The mixup loss of the batch with one random mean of another silo; the task's loss where there is none."""
        if not work.knowledge or work.batch is None:
            return task_loss()
        if "means" not in work.prepared:
            pairs = [zip(*(o.tensors[name] for name in MEAN), strict=True) for o in work.knowledge]
            work.prepared["means"] = [mean for several in pairs for mean in several]
        means = work.prepared["means"]
        # torch's generator is seeded by silo and round, so that the draw does not depend on the process.
        others, label = means[int(torch.randint(len(means), (1,)))]
        if self.naive:
            _, logits = representations.scaled(work.learner.model, work.batch.inputs, 1 - self.mix, self.mix * others)
            return naive_loss(logits, work.batch.targets, label, self.mix)
        x, logits = representations.scaled(work.learner.model, work.batch.inputs, 1 - self.mix)
        return mixed_loss(x, logits, work.batch.targets, others, label, self.mix)

    def gradient(self, work: Work) -> None:
        """Add nothing: the whole mixup loss is differentiated automatically."""

    def finish(self, work: Work) -> None:
        """Keep no state: means are exchanged anew in each round."""


def mixed_loss(x: Tensor, logits: Tensor, targets: Tensor, others: Tensor, label: Tensor, mix: float) -> Tensor:
    """L₁ + L₂ + L₃, mean over the batch; ``logits`` follow from ``x``, ``others`` is x̄ and ``label`` ȳ."""
    first = (1 - mix) * nn.functional.cross_entropy(logits, targets)
    second = mix * nn.functional.cross_entropy(logits, label.expand_as(logits))
    [slope] = torch.autograd.grad(first, x, create_graph=True)
    positions = min(x.shape[1], len(others))
    return first + second + mix * (slope[:, :positions] * others[:positions]).sum()


def naive_loss(logits: Tensor, targets: Tensor, label: Tensor, mix: float) -> Tensor:
    """Mixup of texts with a mean: ``logits`` follow from x̃."""
    own = nn.functional.cross_entropy(logits, targets)
    return (1 - mix) * own + mix * nn.functional.cross_entropy(logits, label.expand_as(logits))


@METHODS.register("fedmix")
class FedMix(Section):
    """FedMix (Yoon et al., 2021): mixup with means that other silos share."""

    mix: Share = Field(default=0.1, description="Mixing ratio λ.")
    average: Count = Field(default=5, description="Number M of samples in a mean.")
    means: Count = Field(default=20, description="Largest number of means that a silo shares in a round.")
    naive: bool = Field(default=False, description="Use NaiveMix, which mixes the inputs themselves.")

    def build(self) -> Method:
        """FedAvg with the exchange of means and the mixup loss."""
        return replace(
            fedavg(),
            name="fedmix",
            exchange=Means(self.average, self.means),
            objective=MixupLoss(self.mix, self.naive),
        )
