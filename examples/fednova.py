"""FedNova as a plug-in: an aggregator of your own, and a method that uses it.

Wang et al. (2020), Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.

    d_i = (x − y_i)/τ_i,   τ_eff = Σ_i p_i·τ_i,   x ← x − τ_eff·Σ_i p_i·d_i

x: the global model; y_i: silo i's model after τ_i local steps; p_i: its share of the samples. A silo that takes more
steps does not count more: its update is divided by its number of steps.
Deviations: the local optimizer is taken to be plain SGD, for which the normaliser ‖a_i‖₁ is τ_i.

In a federation file:

    plugins: [examples/fednova.py]
    method: fednova
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from hansa.core.messages import Update
from hansa.core.method import METHODS, Method
from hansa.core.settings import Named, Section
from hansa.core.tensors import Layout, Tensors, WeightedMean


@dataclass(frozen=True)
class NormalisedMean:
    """τ_eff times the weighted mean of the updates per step."""

    linear: ClassVar[bool] = False  # it does not follow from the weighted sum of the updates alone
    per_tensor: ClassVar[bool] = False  # τ_eff is one number for all tensors
    min_cohort: ClassVar[int] = 1
    replaceable: ClassVar[bool] = False

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """Divide each update by its steps before it enters the running mean."""
        mean, steps, total = WeightedMean(layout), 0.0, 0.0
        for update, weight in updates:
            mean.add(update.gradient, weight / max(1, update.steps), weight)
            steps += weight * update.steps
            total += weight
        result = mean.mean()
        if total:
            result.flat.mul_(steps / total)
        return result


@METHODS.register("fednova")
class FedNova(Section):
    """FedNova (Wang et al., 2020): averaging normalised by local steps."""

    def build(self) -> Method:
        """FedAvg with another aggregator."""
        return replace(METHODS.build(Named(name="fedavg")), name="fednova", aggregator=NormalisedMean())
