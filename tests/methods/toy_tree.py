"""A tree of nodes small enough to check by hand: inner nodes and silos are the real ones, training is a formula."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from numpy.typing import NDArray

from hansa.client.silo import Silo
from hansa.client.state import StateFolder
from hansa.core.hierarchy import SLOT, KeyLayers, OwnModel
from hansa.core.inner_node import InnerNode, OwnTree
from hansa.core.link import Answer, Link
from hansa.core.messages import NodeId, Reply, Request, Train, Update
from hansa.core.method import Method
from hansa.core.participation import Child, RoundSettings
from hansa.core.round import Record, Server
from hansa.core.seeds import stream
from hansa.core.simulation import Simulation
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.links.tree import TreeLink
from hansa.methods.worldlm import WorldLM

Vector = NDArray[Any]

PARTS = {"emb": "embeddings", "h0": "block.0", "h1.w": "block.1", "h1.b": "block.1", "h2": "block.2"}
LAYOUT = Layout(tuple(PARTS), ((3,), (4,), (2, 2), (3,), (5,)))
BACKBONE, KEYS = slice(0, 7), {"block.1": slice(7, 14), "block.2": slice(14, 19)}
TREE = {"root": ["west", "east"], "west": ["a", "b"], "east": ["c", "d"]}
START = stream(7, "start").normal(size=19)


def pushed(name: str, model: Vector, round: int) -> Vector:
    """The stand-in for training: each node pulls its model towards a point of its own."""
    return 0.8 * model + 0.6 * stream(7, name).normal(size=19) + 0.05 * stream(7, name, round).normal(size=19)


def tensors(values: Any) -> Tensors:
    """Values as the toy model."""
    return Tensors(LAYOUT, torch.tensor(values, dtype=torch.float32))


class ToySilo(Silo):
    """A silo whose training is `pushed`; everything else is the real silo's."""

    def train(self, request: Train, received: Tensors, own: Any = None) -> Reply:
        model = tensors(pushed(self.name, request.model.flat.double().numpy(), request.round))
        if own is not None:
            self.resident.store.keep(request.round, {SLOT: own(model)}, request.durable)
        sent = received.layout
        return Update(Tensors(sent, received.flat - model.only(sent.names).flat), 1, 1, 1, 0.0, 0.0)


class Fleeting:
    """A link whose answers lose their tensors when the next one is asked for, as in the shared memory of a pool."""

    size, remote, posting = 1, False, None

    def __init__(self, link: Link) -> None:
        self.link = link

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        for answer in self.link.ask(asks, until):
            yield answer
            assert isinstance(answer.reply, Update), answer.reply
            answer.reply.gradient.flat.fill_(torch.nan)


class ToyTree:
    """Rounds of a method on a tree; ``data``: inner nodes hold data of their own."""

    def __init__(
        self,
        folder: Path,
        method: Method | None = None,
        tree: Mapping[str, list[str]] = TREE,
        data: bool = True,
        simulate: Simulation | None = None,
    ) -> None:
        self.method = method or WorldLM(key_layers=("block.1", "block.2")).build()
        assert self.method.hierarchy is not None
        self.hierarchy = self.method.hierarchy
        self.keys = KeyLayers(LAYOUT, self.hierarchy.keys(PARTS))
        self.folder, self.tree, self.data = folder, tree, data
        self.settings = RoundSettings(rounds=9, simulate=simulate or Simulation())
        self.leaves = Fleeting(LocalLink(lambda name: lambda request: self.leaf(name, request)))
        self.root = self.node("root")
        self.state = self.root.begin(tensors(START))

    def leaf(self, name: str, request: Request) -> Reply:
        """The reply of a node with data."""
        federation = SimpleNamespace(secure_aggregation=None)
        runtime = SimpleNamespace(keys=self.keys, start_of=lambda _: tensors(START), private={}, federation=federation)
        store = StateFolder(self.folder / name / "silo")
        return ToySilo(SimpleNamespace(name=name, method=self.method, runtime=runtime, store=store)).answer(request)  # type: ignore[arg-type]

    def node(self, name: str) -> InnerNode:
        """An inner node with everything below it."""
        inner = {c: self.node(c) for c in self.tree[name] if c in self.tree}
        children = {c: Child(1, 1, inner[c].steps if c in inner else 1) for c in self.tree[name]}
        link: Link = self.leaves
        if inner:
            link = TreeLink(self.leaves, {c: one.answer for c, one in inner.items()})
        store = StateFolder(self.folder / name / "region")
        own = OwnTree(self.keys, tensors(START), store, Child(1, 1, 1) if self.data else None)
        return InnerNode(Server(name, children, link, self.method, self.settings), 1, own)

    def round(self) -> Record:
        """The next round of the root."""
        return self.root.root_round(self.state, 0)

    def model(self, name: str) -> torch.Tensor:
        """A node's model after the last round."""
        if name == "root":
            return self.state.model.flat
        kind = "region" if name in self.tree else "silo"
        stored = StateFolder(self.folder / name / kind).newest().get(SLOT, OwnModel)
        assert stored is not None
        return stored.model.flat
