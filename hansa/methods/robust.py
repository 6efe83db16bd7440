"""Byzantine-robust aggregation: a few malicious silos cannot determine the result.

Yin et al. (2018), Byzantine-Robust Distributed Learning, Definitions 1 and 2: coordinate-wise median; β-trimmed mean
(cut the β·n smallest and largest of every coordinate, average the rest).
Blanchard et al. (2017), Machine Learning with Adversaries, Equation for Krum: of n updates with f Byzantine ones,
take the one with the smallest sum of squared distances to its n − f − 2 nearest others; n ≥ 2f + 3.
Sun et al. (2019), Can You Really Backdoor Federated Learning?: norm bound, g ← g·min(1, M/‖g‖).

Median, trimmed mean and Krum look at each update separately and ignore weights, which a malicious silo could inflate.
Deviations: none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hansa.core.messages import Update
from hansa.core.method import AGGREGATORS, METHODS, Aggregator, Method
from hansa.core.settings import Positive, Section
from hansa.core.tensors import Layout, Tensors, WeightedMean, stack
from hansa.methods.fedavg import fedavg

CHUNK = 1 << 20  # coordinates sorted at a time, so that sorting does not copy all updates at once


@dataclass(frozen=True)
class TrimmedMean:
    """The β-trimmed mean of every coordinate; ``trim`` is β, and 0.5 is the median."""

    trim: float
    linear: ClassVar[bool] = False
    per_tensor: ClassVar[bool] = True
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = False

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """The trimmed mean of every coordinate, without weights, over the silos that sent its tensor."""
        given = [update.gradient.copy() for update, _ in updates]
        if given and all(gradient.layout == layout for gradient in given):
            return Tensors(layout, self._middle([gradient.flat for gradient in given]))
        result = Tensors.zeros(layout)  # some silos left tensors out: combine each tensor over the silos that sent it
        for name, span in layout.spans.items():
            rows = [gradient.flat[gradient.layout.spans[name]] for gradient in given if name in gradient.layout.spans]
            if rows:
                result.flat[span] = self._middle(rows)
        return result

    def _middle(self, vectors: list[Tensor]) -> Tensor:
        rows = torch.stack(vectors)
        n = len(rows)
        cut = min(int(self.trim * n), (n - 1) // 2)
        out = torch.empty_like(rows[0])
        for start in range(0, len(out), CHUNK):
            part = rows[:, start : start + CHUNK].sort(dim=0).values
            out[start : start + CHUNK] = part[cut : n - cut].mean(dim=0)
        return out


@dataclass(frozen=True)
class Krum:
    """The update with the smallest distance to its nearest others; ``bad`` is f, the number of Byzantine silos."""

    bad: int
    linear: ClassVar[bool] = False
    per_tensor: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False

    @property
    def min_cohort(self) -> int:
        """The bound 2f + 3 of the paper."""
        return 2 * self.bad + 3

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """The one update with the smallest sum of squared distances to its n − f − 2 nearest others; zeros for none."""
        given = [update.gradient.copy() for update, _ in updates]
        if not given:
            return Tensors.zeros(layout)
        rows = stack(given)
        # ‖a − b‖² from differences: ‖a‖² + ‖b‖² − 2ab loses precision when updates differ much in size.
        n = len(rows)
        distances = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            for j in range(i):
                distances[i, j] = distances[j, i] = (rows[i] - rows[j]).square().sum(dtype=torch.float64)
        nearest = max(1, min(n - 1, n - self.bad - 2))
        scores = distances.sort(dim=1).values[:, 1 : 1 + nearest].sum(dim=1)
        return Tensors(layout, rows[int(scores.argmin())].clone())


@dataclass(frozen=True)
class NormBound:
    """The weighted mean of updates, each scaled down to an L2 norm of at most ``bound`` first."""

    bound: float
    linear: ClassVar[bool] = False
    per_tensor: ClassVar[bool] = True
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = False

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """Scale each pseudo-gradient to a norm of at most ``bound``, then average by weight."""
        mean = WeightedMean(layout)
        for update, weight in updates:
            norm = float(update.gradient.flat.norm())
            short = update.gradient.flat * min(1.0, self.bound / max(norm, 1e-30))
            mean.add(Tensors(update.gradient.layout, short), weight)
        return mean.mean()


Trim = Annotated[float, Field(ge=0.0, lt=0.5, description="Fraction β cut from each end of every coordinate.")]
Bad = Annotated[int, Field(ge=0, description="Number f of Byzantine silos that the rule tolerates.")]
Bound = Annotated[Positive, Field(description="Largest L2 norm M of an update; longer ones are scaled down to it.")]


@AGGREGATORS.register("median")
class MedianRule(Section):
    """Coordinate-wise median."""

    def build(self) -> Aggregator:
        """The aggregator that takes the median of every coordinate."""
        return TrimmedMean(0.5)


@AGGREGATORS.register("trimmed-mean")
class TrimmedMeanRule(Section):
    """β-trimmed mean of every coordinate."""

    trim: Trim = 0.2

    def build(self) -> Aggregator:
        """The aggregator that trims the fraction ``trim`` at each end."""
        return TrimmedMean(self.trim)


@AGGREGATORS.register("krum")
class KrumRule(Section):
    """Krum: the update that is closest to its nearest others."""

    bad: Bad = 1

    def build(self) -> Aggregator:
        """The aggregator Krum against ``bad`` Byzantine silos."""
        return Krum(self.bad)


@AGGREGATORS.register("norm-bound")
class NormBoundRule(Section):
    """The weighted mean of updates that are scaled down to a norm bound."""

    bound: Bound = 1.0

    def build(self) -> Aggregator:
        """The aggregator that bounds norms before it averages."""
        return NormBound(self.bound)


@METHODS.register("median")
class Median(Section):
    """FedAvg with the coordinate-wise median (Yin et al., 2018)."""

    def build(self) -> Method:
        """FedAvg with the median in place of the mean."""
        return replace(fedavg(), name="median", aggregator=TrimmedMean(0.5))


@METHODS.register("trimmed-mean")
class TrimmedMeanSettings(Section):
    """FedAvg with the trimmed mean (Yin et al., 2018)."""

    trim: Trim = 0.2

    def build(self) -> Method:
        """FedAvg with the trimmed mean in place of the weighted mean."""
        return replace(fedavg(), name="trimmed-mean", aggregator=TrimmedMean(self.trim))


@METHODS.register("krum")
class KrumSettings(Section):
    """FedAvg with Krum (Blanchard et al., 2017)."""

    bad: Bad = 1

    def build(self) -> Method:
        """FedAvg with Krum in place of the mean."""
        return replace(fedavg(), name="krum", aggregator=Krum(self.bad))


@METHODS.register("norm-bound")
class NormBoundSettings(Section):
    """FedAvg with a norm bound (Sun et al., 2019)."""

    bound: Bound = 1.0

    def build(self) -> Method:
        """FedAvg with the mean of norm-bounded updates."""
        return replace(fedavg(), name="norm-bound", aggregator=NormBound(self.bound))
