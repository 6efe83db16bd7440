"""No federation at all: every silo trains a model of its own, from the common start (the `per-silo` baseline).

Manoel et al. (2023), Section 2.2 and Table 3, columns of the single silos. As a method it is the limit of partial
sharing: nothing is in scope, everything is personal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hansa.config import Section
from hansa.method import Method
from hansa.methods import METHODS
from hansa.methods.fedavg import fedavg
from hansa.tensors import Layout


@dataclass(frozen=True)
class Nothing:
    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        return ()


@METHODS.register("alone")
class Alone(Section):
    def build(self) -> Method:
        return replace(fedavg(), name="alone", scope=Nothing())
