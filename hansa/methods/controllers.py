"""Roosta et al. (2021), Communication-Efficient Federated Learning for Neural Machine Translation.

Only some layers, the *controllers*, are shared; all other tensors are personal to a silo. Controllers are existing
layers (6E6D (0-3): layers 0 and 3 of each side of a 6+6 model), or added ones: 8E8D (0-6) is a 6+6 model with two more
layers per side, at positions 0 and 6 of the grown stack, which `model.added` inserts (models/grow.py).

    θ_i = (c, p_i):  c ← FedAvg of the silos' c;  p_i stays and is trained by silo i alone

As a method it is a scope. Deviations: none; the shared layers are fixed for a run, as in the paper.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field

from hansa.core.errors import ConfigError
from hansa.core.method import METHODS, Method
from hansa.core.settings import Section
from hansa.core.tensors import Layout
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class SharedLayers:
    """The given layers, counted from 0, of each side; an empty tuple stands for those that `model.added` inserts."""

    layers: tuple[int, ...]
    shares_nothing: ClassVar[bool] = False

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        """The tensors of the given blocks; raises `ConfigError` if the model has no trained block of that number."""
        found = {name: int(m[1]) for name in layout.names if (m := re.search(r"\bblock\.(\d+)$", parts[name]))}
        missing = set(self.layers) - set(found.values())
        if missing:
            raise ConfigError(
                f"method.layers names layer {min(missing)}, but the trained layers of the model are 0 to "
                f"{max(found.values(), default=-1)}: name some of these"
            )
        return [name for name, index in found.items() if index in self.layers]


def added_layers(added: tuple[int, ...]) -> SharedLayers:
    """The scope of the layers that `model.added` inserts; raises `ConfigError` if it inserts none."""
    if not added:
        raise ConfigError(
            "method 'controllers' shares only some layers, and none is named: name them (method.layers: [0, 3]), "
            "or add layers (model.added: [0, 6])"
        )
    return SharedLayers(added)


@METHODS.register("controllers")
class Controllers(Section):
    """Controllers (Roosta et al., 2021): only some layers are shared."""

    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="Layers of each side to share, counted from 0; default: those of `model.added`."
    )

    def build(self) -> Method:
        """FedAvg whose scope is the given layers."""
        return replace(fedavg(), name="controllers", scope=SharedLayers(self.layers))
