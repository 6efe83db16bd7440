r"""Wang et al. (2022), FedKC: Federated Knowledge Composition for Multilingual Natural Language Understanding.

    clusters C₁ … C_q of a silo's samples by k-means on their pooled outputs                             (Section 4.3)
    eᵢ = mean of the intermediate representation over Cᵢ,   ŷᵢ = mean prediction over Cᵢ                 (Equation 6)
    L = (1/q)·Σᵢ CE(ŷᵢ, f(eᵢ; w))                                                                        (Equation 8)
    the silo minimises  its local loss + α·L,  L over the pairs of the other silos of the cohort         (Equation 2)

f: the layers from the intermediate one on; w: the silo's model. ``layer: last``: e is the pooled output, f the last
linear layer. ``layer: all``: e is the output of the embedding layer (positions × width), f every block and the head.
Both e and ŷ are computed with the global model that the silo received. Without k-means (the paper's "\K") q is 1.
What a pair costs: d + k numbers (last) or T·d + k (all), up once and down to every other silo of the cohort.

``local`` is any other method: its objective, weights, aggregation and server are kept, so that FedKC composes with
FedProx, MOON or a server Adam. Clusters of fewer than ``floor`` members are not shared, nor positions that fewer of
them reach; ``noise`` adds noise to what is shared (methods/centroid_noise.py).

Deviations: L is one mean over all pairs received, where Equation 2 sums over silos: α does not depend on the size of
the cohort. A position of e is the mean over the members that have a token there. The floor, the noise and ``sample``
are additions: with all layers the pairs cost several times a batch; a random sample of them at each step equals
Equation 8 in expectation.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from hansa.core import representations
from hansa.core.errors import ConfigError
from hansa.core.knowledge import Samples, SharedKnowledge, Sizes
from hansa.core.learner import Work
from hansa.core.mechanism import Mechanism
from hansa.core.messages import Knowledge
from hansa.core.method import METHODS, Method, Objective, TaskLoss
from hansa.core.settings import Count, Named, Section
from hansa.core.tensors import Layout, Tensors
from hansa.methods.centroid_noise import Noise, bounded
from hansa.methods.centroids import (
    k_means,
    mean_rows,
    mean_texts,
    model_outputs,
    real_positions,
    require_sklearn,
    truncate_means,
)

Layer = Literal["last", "all"]
FLOORS: dict[Layer, int] = {"last": 2, "all": 20}  # few embedded texts can be reconstructed: docs/privacy.md
PAIR = ("centroids", "predictions")


@dataclass(frozen=True)
class ClusterPairs:
    """What a silo shares: for each of its clusters, a centroid and a mean prediction."""

    layer: Layer
    clusters: int  # 1: no k-means
    floor: int
    noise: Noise | None = None
    needs_text_vectors: ClassVar[bool] = True

    @property
    def min_samples(self) -> int:
        """The member floor: smaller clusters are not shared."""
        return self.floor

    @property
    def release(self) -> Mechanism | None:
        """The Gaussian noise on centroids and predictions; None where no noise is set."""
        return self.noise

    @property
    def description(self) -> str:
        """Centroids and mean predictions in words, with the floor and the noise."""
        what = "their pooled outputs" if self.layer == "last" else "their embedded tokens, position by position"
        how = "without noise" if self.noise is None else f"with noise (multiplier {self.noise.multiplier:g})"
        return (
            f"for at most {self.clusters} clusters of at least {self.floor} samples the mean of {what} and of the "
            f"model's predictions, {how}, with the number of samples"
        )

    def numbers(self, sizes: Sizes) -> int:
        """The size of all centroids and predictions if no cluster is withheld."""
        centroid = sizes.pooled if self.layer == "last" else sizes.length * sizes.embedding
        return self.clusters * (centroid + sizes.labels)

    def share(self, work: Work, samples: Samples) -> SharedKnowledge:
        """Cluster the samples; return the centroid and the mean prediction of each cluster that reaches the floor.

        Noise, if it is set, is added here. Smaller clusters are only counted, as withheld.
        """
        seen = model_outputs(work.learner, samples)
        groups = [torch.arange(samples.size).numpy()]
        if self.clusters > 1:
            groups = k_means(seen.pooled.numpy(), self.clusters, samples.rng)
        kept = [members for members in groups if len(members) >= self.floor]
        withheld = len(groups) - len(kept)
        if not kept:
            return SharedKnowledge(Knowledge(Tensors.zeros(Layout((), ())), withheld=withheld))
        lengths: tuple[int, ...] = ()
        members = tuple(map(len, kept))
        counts = torch.tensor(members, dtype=torch.float32)
        predictions = mean_rows(seen.predictions, kept)
        if self.noise is not None:
            predictions = self.noise.blur_predictions(predictions, counts, samples.rng)
        if self.layer == "last":
            centroids = mean_rows(bounded(seen.pooled, self.noise), kept)
            centroids = self._blur(centroids, counts, torch.ones(len(kept)), samples)
        else:
            means, counts = mean_texts(work.learner, samples, kept, self.noise)
            means = self._blur(means, counts, (counts >= self.floor).sum(dim=1), samples)
            centroids, lengths = truncate_means(means, counts, self.floor)
        pairs = Tensors.of(dict(zip(PAIR, (centroids, predictions), strict=True)))
        return SharedKnowledge(Knowledge(pairs, members, lengths, withheld), tuple(kept))

    def _blur(self, means: Tensor, counts: Tensor, lengths: Tensor, samples: Samples) -> Tensor:
        return means if self.noise is None else self.noise.blur(means, counts, lengths, samples.rng)

    def check(self, knowledge: Knowledge, sizes: Sizes) -> str:
        """Why the names, shapes, lengths or distributions of the pairs are wrong; empty if none is."""
        layout = knowledge.tensors.layout
        if layout.names != PAIR:
            return f"it shared {', '.join(layout.names) or 'nothing'} instead of {' and '.join(PAIR)}"
        centroids, predictions = layout.shapes
        width = sizes.pooled if self.layer == "last" else sizes.embedding
        if len(centroids) != (2 if self.layer == "last" else 3) or centroids[-1] != width:
            return f"its centroids have the shape {list(centroids)}, and their width must be {width}"
        rows = len(knowledge.members)
        if self.layer == "all" and not lengths_fit(centroids[1], knowledge.lengths, rows, sizes.length):
            return f"its centroids have {centroids[1]} positions, of which {list(knowledge.lengths)[:3]}… are real"
        return distribution_problem(knowledge.tensors["predictions"], predictions, sizes.labels, "predictions")


def lengths_fit(positions: int, lengths: tuple[int, ...], rows: int, longest: int) -> bool:
    """Whether each of ``rows`` mean texts has a length within its ``positions``, and those within ``longest``."""
    return len(lengths) == rows and positions <= longest and all(1 <= n <= positions for n in lengths)


def distribution_problem(values: Tensor, shape: tuple[int, ...], classes: int, what: str) -> str:
    """Why values are not distributions over the classes; empty if they are. ``what``: their name in the reason."""
    if len(shape) != 2 or shape[1] != classes:
        return f"its {what} have the shape {list(shape)}, and there are {classes} classes"
    if bool((values < -1e-6).any()) or bool(((values.sum(dim=1) - 1).abs() > 1e-3).any()):
        return f"its {what} are not distributions: each must be non-negative and sum to 1"
    return ""


@dataclass(frozen=True)
class ConsistencyLoss:
    """The local objective plus α times the cross-entropy on the pairs of the other silos."""

    local: Objective
    alpha: float
    layer: Layer
    sample: int | None = None  # number of pairs at every step; none: all
    needs_text_vectors: ClassVar[bool] = True

    @property
    def state(self) -> type | None:
        """The state of the local objective."""
        return self.local.state

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The local objective's loss plus α times `consistency`; the local loss alone where no pairs were received."""
        loss = self.local.loss(work, task_loss)
        if not work.knowledge or not self.alpha:
            return loss
        return loss + self.alpha * self.consistency(work)

    def consistency(self, work: Work) -> Tensor:
        """Equation 8, over all pairs received."""
        if "pairs" not in work.prepared:
            work.prepared["pairs"] = self._pairs(work.knowledge)
        centroids, mask, predictions = self._some(*work.prepared["pairs"])
        model = work.learner.model
        if self.layer == "last":
            logits = representations.from_pooled(model, centroids)
        else:
            logits = representations.from_embedded(model, centroids, mask)
        return nn.functional.cross_entropy(logits, predictions)

    def _some(self, centroids: Tensor, mask: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs of this step: all, or a random sample, whose mean equals Equation 8 in expectation."""
        if self.sample is None or self.sample >= len(predictions):
            return centroids, mask, predictions
        # torch's generator is seeded by silo and round, so that the draw does not depend on the process.
        drawn = torch.randperm(len(predictions))[: self.sample].to(predictions.device)
        return centroids[drawn], mask[drawn], predictions[drawn]

    def _pairs(self, shared: tuple[Knowledge, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """All centroids, stacked, with the mask of their real positions and their predictions."""
        predictions = torch.cat([one.tensors["predictions"] for one in shared])
        centroids = [one.tensors["centroids"] for one in shared]
        if self.layer == "last":
            return torch.cat(centroids), torch.zeros(len(predictions), 0), predictions
        longest = max(c.shape[1] for c in centroids)
        padded = [nn.functional.pad(c, (0, 0, 0, longest - c.shape[1])) for c in centroids]
        masks = [real_positions(one.lengths, longest) for one in shared]
        return torch.cat(padded), torch.cat(masks).to(predictions.device), predictions

    def gradient(self, work: Work) -> None:
        """Add the closed-form term of the local objective."""
        self.local.gradient(work)

    def finish(self, work: Work) -> Any:
        """The state of the local objective for the next round."""
        return self.local.finish(work)


def fedkc(
    local: Method,
    layer: Layer,
    clusters: int,
    alpha: float,
    floor: int,
    noise: Noise | None = None,
    sample: int | None = None,
) -> Method:
    """FedKC around a ``local`` method; raises `ConfigError` if they do not compose."""
    if reason := cannot_compose(local):
        raise ConfigError(f"method.local is '{local.name}', which {reason}: choose another, for example 'fedprox'")
    objective = ConsistencyLoss(local.objective, alpha, layer, sample)
    return replace(local, name="fedkc", exchange=ClusterPairs(layer, clusters, floor, noise), objective=objective)


def cannot_compose(local: Method) -> str:
    """Why a method cannot be combined with FedKC; empty if it can."""
    if local.exchange is not None:
        return "has an exchange of its own"
    if local.hierarchy is not None:
        return "works on trees, where there is no cohort whose silos could share knowledge"
    if not local.participation.synchronous:
        return "has no rounds in which several silos train at the same time"
    if local.scope.shares_nothing:
        return "shares no model, so that the centroids of other silos would have no meaning"
    return ""


@METHODS.register("fedkc")
class FedKC(Section):
    """FedKC (Wang et al., 2022): silos share cluster centroids with predictions, and train to agree on them."""

    layer: Layer = Field(default="all", description="Centroids of pooled outputs (last) or of embedded texts (all).")
    q: Count = Field(default=10, description="Number q of clusters per silo.")
    alpha: float = Field(default=1.0, ge=0.0, description="Weight α of the consistency loss.")
    kmeans: bool = Field(default=True, description="Cluster with k-means; false: all samples form one cluster.")
    floor: Count | None = Field(
        default=None, description="Smallest cluster that is shared. Default: 2 for the last layer, 20 for all layers."
    )
    noise: Noise | None = Field(default=None, description="Differential privacy of the centroids; default: no noise.")
    sample: Count | None = Field(
        default=None, description="Number of pairs drawn at each step; default: all, as in the paper, which is slower."
    )
    local: Named = Field(
        default=Named(name="fedavg"), description="The method that FedKC adds to: a name, or a name with settings."
    )

    @field_validator("local", mode="before")
    @classmethod
    def _name_only(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def build(self) -> Method:
        """FedKC around the method ``local``, with the floor of the layer unless one is given.

        Raises `ConfigError` if scikit-learn is missing or the methods do not compose.
        """
        if self.kmeans and self.q > 1:
            require_sklearn("fedkc")
        floor = FLOORS[self.layer] if self.floor is None else self.floor
        clusters = self.q if self.kmeans else 1
        return fedkc(METHODS.build(self.local), self.layer, clusters, self.alpha, floor, self.noise, self.sample)
