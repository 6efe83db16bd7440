"""Arivazhagan et al. (2019), Federated Learning with Personalization Layers (FedPer), Algorithm 1; here on a tree.

    θ_i = (B, K_i)         B ← Σ_i γ_i·B_i;   K_i stays at i

B: base layers, shared and averaged; K_i: the last blocks, which never leave node i; γ_i: its share of the samples.
Every node of the tree, inner ones too, has key layers of its own, moved by its own steps alone.
Deviations: the tree (the paper has one server). The head and the final norm belong to the base, as in WorldLM.
"""

from dataclasses import replace
from typing import Literal

from hansa.core.method import METHODS, Method
from hansa.core.settings import Section, Share
from hansa.methods.fedavg import fedavg
from hansa.methods.fltrust import Trust
from hansa.methods.hierfavg import Averaged


@METHODS.register("fedper")
class FedPer(Section):
    key_layers: Share | tuple[str, ...] = 0.3  # a share of the blocks, the last ones; or their names (block.3)
    order: Literal["sequential", "parallel"] = "sequential"
    filter: Trust | None = None

    def build(self) -> Method:
        return replace(fedavg(), name="fedper", hierarchy=Averaged(self.key_layers, self.order, self.filter))
