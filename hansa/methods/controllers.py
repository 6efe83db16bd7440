"""Roosta et al. (2021), Communication-Efficient Federated Learning for Neural Machine Translation.

Some layers, the *controllers*, travel in both directions; everything else is each silo's own. Controllers are existing
layers (6E6D (0-3): layers 0 and 3 of each side of a 6+6 model), or added ones: 8E8D (0-6) is a 6+6 model with two more
layers per side, at the places 0 and 6 of the grown stack, which `model.added` puts in (models/grow.py).

    θ_i = (c, p_i):  c ← FedAvg of the silos' c;  p_i stays and is trained by silo i alone

As a method it is a scope. Deviations: which layers travel is a setting and does not change during a run, as theirs.
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
class Layers:
    """The given layers, counted from 0, of each side; none given: those that `model.added` put in."""

    layers: tuple[int, ...]
    shares_nothing: ClassVar[bool] = False

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        found = {name: int(m[1]) for name in layout.names if (m := re.search(r"\bblock\.(\d+)$", parts[name]))}
        missing = set(self.layers) - set(found.values())
        if missing:
            raise ConfigError(
                f"method.layers names layer {min(missing)}, but the model has layers 0 to "
                f"{max(found.values(), default=-1)} that are trained"
            )
        return [name for name, index in found.items() if index in self.layers]


def of_added(added: tuple[int, ...]) -> Layers:
    """The layers that `model.added` put in; raises `ConfigError` if there are none."""
    if not added:
        raise ConfigError(
            "method 'controllers' exchanges some layers alone: name them (method.layers: [0, 3]), "
            "or add layers for it (model.added: [0, 6])"
        )
    return Layers(added)


@METHODS.register("controllers")
class Settings(Section):
    layers: tuple[Annotated[int, Field(ge=0)], ...] = ()

    def build(self) -> Method:
        return replace(fedavg(), name="controllers", scope=Layers(self.layers))
