"""Adapters of several silos as numbers, and one round of the part that combines their products."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from hansa.core.factors import FactorNames, FactorPart
from hansa.core.link import Answer
from hansa.core.messages import Update
from hansa.core.method import FactorRule
from hansa.core.participation import Child, Participation, RoundSettings
from hansa.core.round import Server, Turn, federated_round
from hansa.core.schedules import Schedule
from hansa.core.simulation import Simulation
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import fedavg

NAMES = FactorNames("A", "B", "RA", "RB")
Silo = tuple[int, Tensor, Tensor]  # its samples, and A and B after its training


@st.composite
def silos(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[Silo]]:
    """A and B where a round begins, and several silos."""
    out, inner, rank = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    found = [(draw(st.integers(1, 9)), some(rank, inner), some(out, rank)) for _ in range(draw(st.integers(1, 5)))]
    return some(rank, inner), some(out, rank), found


def dense(given: Sequence[Silo]) -> Tensor:
    """The oracle: the weighted average of the products, written as dense matrices."""
    total = sum(samples for samples, _, _ in given)
    return sum((samples / total * (b.double() @ a.double()) for samples, a, b in given), torch.zeros(()))


class Silos:
    """A link to silos that answer with factors that are known."""

    remote, size, posting = False, 1, None

    def __init__(self, given: Sequence[Silo]) -> None:
        self.given = dict(zip("abcdefgh", given, strict=False))

    def ask(self, requests, deadline):  # type: ignore[no-untyped-def]
        for name, request in requests.items():
            samples, a, b = self.given[name]
            start = request.model
            moved = Tensors.of({"A": start["A"][: len(a)] - a, "B": start["B"][:, : b.shape[1]] - b})
            yield Answer(name, Update(moved, samples, samples, 1, 0.0, 0.0), 0, 0)


def one_round(state: ServerState, given: Sequence[Silo], rule: FactorRule | None) -> ServerState:
    """The state after a round; without a rule, A and B are averaged each by itself."""
    children = {name: Child(samples, samples) for name, (samples, _, _) in zip("abcdefgh", given, strict=False)}
    settings = RoundSettings("run", 0, 9, Participation(), Simulation(), Schedule())
    server = Server("root", children, Silos(given), fedavg(), settings)
    parts = [FactorPart(rule, [NAMES])] if rule is not None else []
    record = federated_round(server, state, Turn(state.round + 1), parts)
    assert not record.failed, record.failed
    return state


def start(a: Tensor, b: Tensor, residual: int) -> ServerState:
    """The state before the first round."""
    zeros = {"RA": torch.zeros(residual, a.shape[1]), "RB": torch.zeros(len(b), residual)} if residual else {}
    return ServerState(Tensors.of({"A": a, "B": b} | zeros))


def effective(state: ServerState) -> Tensor:
    """The product that the model computes with, residual included."""
    model = state.model.named()
    whole = model["B"].double() @ model["A"].double()
    return whole + model["RB"].double() @ model["RA"].double() if "RA" in model else whole
