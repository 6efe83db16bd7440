"""Local training only: every silo trains a model of its own from the common start (the `per-silo` baseline).

Manoel et al. (2023), Section 2.2 and Table 3, columns of the single silos. As a method it is the limit of partial
sharing: no tensor is in scope, all tensors are personal.
Deviations: none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hansa.core.method import METHODS, Method
from hansa.core.settings import Section
from hansa.core.tensors import Layout
from hansa.methods.fedavg import fedavg


@dataclass(frozen=True)
class ShareNothing:
    """No tensor is shared."""

    shares_nothing: ClassVar[bool] = True

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        """An empty sequence: every tensor is personal."""
        return ()


@METHODS.register("alone")
class Alone(Section):
    """Local training only (Manoel et al., 2023): no tensor leaves a silo."""

    def build(self) -> Method:
        """FedAvg with the scope `ShareNothing`."""
        return replace(fedavg(), name="alone", scope=ShareNothing())
