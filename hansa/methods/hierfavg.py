"""Liu et al. (2020), Client-Edge-Cloud Hierarchical Federated Learning (HierFAVG), Algorithm 1.

    edge    θ_e ← Σ_{i∈C_e} (N_i/N_e)·θ_i      after κ₁ local steps
    cloud   θ   ← Σ_e (N_e/N)·θ_e              after κ₂ rounds at the edge

θ_i: a silo's model; C_e: the silos below edge e; N: samples below. κ₁ is ``train.samples``, κ₂ a node's ``rounds``.
All tensors are shared; a node's own model is its state at the end of its part of the round.
Deviations: an inner node with data of its own trains on it before its children (or in parallel with them), as
WorldLM's nodes do, so that both methods take the same number of sequential steps; any server optimizer may replace
the plain mean, at every level. On a tree of one level it is flat federated learning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from hansa.core.messages import NodeId
from hansa.core.method import METHODS, Attention, Filter, Layers, Method, Residual
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg
from hansa.methods.fltrust import TrustFilter
from hansa.methods.worldlm import FILTER, ORDER, Order, key_tensors


@dataclass(frozen=True)
class BackboneAverage:
    """The backbone is averaged; key layers, if there are any, stay at their node."""

    key_layers: float | tuple[str, ...] = 0.0
    order: Order = "sequential"
    filter: Filter | None = None
    keys_travel: ClassVar[bool] = False
    forwards_layers: ClassVar[bool] = False
    compares_moves: ClassVar[bool] = False

    def keys(self, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """The last blocks, or the named ones, with their tensors; empty if ``key_layers`` is 0."""
        return key_tensors(parts, self.key_layers)

    def adopt(self, own: Layers, others: Mapping[str, Layers], base: Layers) -> tuple[Layers, Attention]:
        """The node's own key layers unchanged, and no attention weights."""
        return own, {}

    def merge(self, own: str, members: Mapping[str, Layers], base: Layers) -> tuple[Layers, Attention]:
        """The key layers of the node itself: those of its children do not enter."""
        return members[own], {}

    def route(
        self, residuals: Sequence[Residual], children: Mapping[NodeId, Layers], base: Layers
    ) -> dict[NodeId, list[Residual]]:
        """No child receives residuals."""
        return {}

    def select_residuals(self, new: Layers, children: Mapping[NodeId, Layers], base: Layers) -> list[Residual]:
        """No layer is passed on."""
        return []


@METHODS.register("hierfavg")
class HierFAVG(Section):
    """HierFAVG (Liu et al., 2020): hierarchical averaging on a tree."""

    order: Order = Field(default="sequential", description=ORDER)
    filter: TrustFilter | None = Field(default=None, description=FILTER)

    def build(self) -> Method:
        """FedAvg at every node of a tree, without key layers."""
        return replace(fedavg(), name="hierfavg", hierarchy=BackboneAverage(0.0, self.order, self.filter))
