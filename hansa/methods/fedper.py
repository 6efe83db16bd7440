"""Arivazhagan et al. (2019), Federated Learning with Personalization Layers (FedPer), Algorithm 1; here on a tree.

    θ_i = (B, K_i)         B ← Σ_i γ_i·B_i;   K_i stays at i

B: base layers, shared and averaged; K_i: the last blocks, which never leave node i; γ_i: its share of the samples.
Every node of the tree, also an inner one, has key layers of its own, which only its own training changes.
Deviations: the tree (the paper has one server). The head and the final norm belong to the base, as in WorldLM.
"""

from dataclasses import replace

from pydantic import Field

from hansa.core.method import METHODS, Method
from hansa.core.settings import Section, Share
from hansa.methods.fedavg import fedavg
from hansa.methods.fltrust import TrustFilter
from hansa.methods.hierfavg import BackboneAverage
from hansa.methods.worldlm import FILTER, KEY_LAYERS, ORDER, Order


@METHODS.register("fedper")
class FedPer(Section):
    """FedPer (Arivazhagan et al., 2019) on a tree: key layers never leave their node."""

    key_layers: Share | tuple[str, ...] = Field(default=0.3, description=KEY_LAYERS)
    order: Order = Field(default="sequential", description=ORDER)
    filter: TrustFilter | None = Field(default=None, description=FILTER)

    def build(self) -> Method:
        """FedAvg on a tree in which each node keeps its key layers."""
        return replace(fedavg(), name="fedper", hierarchy=BackboneAverage(self.key_layers, self.order, self.filter))
