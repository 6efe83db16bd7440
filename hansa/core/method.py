"""A method is a value with slots; most papers fill one or two and take the rest from FedAvg.

    fedavg()                                                   every slot at its plainest
    replace(fedavg(), objective=Proximal(mu=0.1))              FedProx
    replace(fedprox(mu=0.1), server=ServerAdam(lr=0.01))       FedProx with a server Adam: compose, never inherit

`hansa/core/round.py` shows when each slot is used. A slot declares what it needs and what it supports
(`Aggregator.linear`, `Weighting.known_before_training`, `Exchange.release`, …). Refusals of combinations, secure
aggregation, the disclosure preview and policies read these declarations and nothing else, so that a method of your own
gets the same treatment as ours.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from hansa.core.compression import Compression, Compressor
from hansa.core.knowledge import Samples, SharedKnowledge, Sizes
from hansa.core.learner import Work
from hansa.core.link import Answer
from hansa.core.mechanism import Mechanism
from hansa.core.messages import Knowledge, NodeId, Update
from hansa.core.participation import ParticipationRule
from hansa.core.registry import Registry
from hansa.core.tensors import NOTHING, Layout, Tensors

TaskLoss = Callable[[], Tensor]
Layers = Mapping[str, Tensor]  # key layers: `block.3` → all of its values, flat
WeightedFactors = Sequence[tuple[float, Tensor, Tensor]]  # of each silo: its weight, A and B; the weights sum to one
Attention = dict[str, dict[str, float]]  # layer → member → its weight


class Scope(Protocol):
    """Which tensors are shared; the others are personal: they stay in the silo and are kept there between rounds."""

    @property
    def shares_nothing(self) -> bool:
        """Whether no tensor ever leaves, so that silos train on their own."""

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        """The names of the shared tensors; ``parts`` names the part of the model that each tensor belongs to."""


class Exchange(Protocol):
    """What silos share with one another before they train; `Method.exchange` is None where they share nothing."""

    @property
    def description(self) -> str:
        """What leaves a silo, in words."""

    @property
    def release(self) -> Mechanism | None:
        """The privacy mechanism on what is shared; None: it is shared as it is."""

    @property
    def min_samples(self) -> int:
        """The least number of samples behind each row that is shared."""

    @property
    def needs_text_vectors(self) -> bool:
        """Whether it looks at one vector for a whole text, which only classifiers have."""

    def numbers(self, sizes: Sizes) -> int:
        """How many numbers a silo shares in a round, at most."""

    def share(self, work: Work, samples: Samples) -> SharedKnowledge:
        """At the silo: what it shares of its data, seen with the model it received."""

    def check(self, knowledge: Knowledge, sizes: Sizes) -> str:
        """At the server: why the other silos must not get this; empty if they may."""


class Objective(Protocol):
    """What a silo minimises.

    An objective may declare ``task_loss_only: ClassVar[bool] = True``: its `loss` is the task's, and its `gradient`
    looks at no data. Privacy of single patients needs that (`privacy: {unit: patient}`), so that the gradient of each
    can be bounded by itself. One whose `gradient` does nothing may also declare ``adds_no_gradient``: a full model in
    parts needs that (`train.shard`), since no process has the whole gradient, and so does `train.overlap`.
    """

    @property
    def needs_text_vectors(self) -> bool:
        """Whether it looks at one vector for a whole text, which only classifiers have."""

    @property
    def state(self) -> type | None:
        """The dataclass that a silo keeps for it between rounds, found in ``work.state``; None: nothing."""

    def loss(self, work: Work, task_loss: TaskLoss) -> Tensor:
        """The loss to differentiate: the task's, with a term beside it, or something in its place.

        Calling ``task_loss`` runs the model on ``work.batch``; an objective with a loss of its own does not call it.
        """

    def gradient(self, work: Work) -> None:
        """Add a term whose gradient is known in closed form to ``work.learner.grad``."""

    def finish(self, work: Work) -> Any:
        """After the last step: the state to keep for the next round, of type `state`, or None.

        It may also set ``work.contribution``, which travels to the server's `SharedState`.
        """


class SharedState(Protocol):
    """State that flows between the server and the silos beside the model, such as SCAFFOLD's control variate.

    The server's value travels to each silo with its `Train` (``work.shared_state``); what the objective leaves in
    ``work.contribution`` travels back with the update.
    """

    def begin(self, layout: Layout) -> Tensors:
        """The server's value before the first round."""

    def merge(self, value: Tensors, mean: Tensors, participation: float) -> Tensors:
        """The value after a round.

        ``mean``: of the silos' contributions; ``participation``: the fraction of silos that sent one.
        """


class Weighting(Protocol):
    """The weight of an update, relative to the others of its round."""

    @property
    def known_before_training(self) -> bool:
        """Whether the weight follows from the number of samples alone; secure aggregation needs that."""

    @property
    def replaceable(self) -> bool:
        """Whether `aggregate.weights` in a federation file may take its place."""

    def weight(self, update: Update) -> float:
        """The weight of an update; its tensors must not be read."""


def weighs_equally(weighting: Weighting) -> bool:
    """Whether every update has the same weight, whatever the number of samples behind it."""
    given = {weighting.weight(Update(NOTHING, samples, 0, 0, 0.0, 0.0)) for samples in (1, 1000)}
    return weighting.known_before_training and len(given) == 1


class Aggregator(Protocol):
    """How the updates of a round become one pseudo-gradient."""

    @property
    def linear(self) -> bool:
        """Whether it is the weighted mean, which follows from the weighted sum alone; secure aggregation needs that."""

    @property
    def per_tensor(self) -> bool:
        """Whether every tensor is combined by itself, so that silos may leave different tensors out."""

    @property
    def min_cohort(self) -> int:
        """How many updates it needs at least."""

    @property
    def replaceable(self) -> bool:
        """Whether `aggregate` in a federation file may take its place."""

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors:
        """The pseudo-gradient from updates and their weights. An update's tensors are valid until the next one."""


class ServerOptimizer(Protocol):
    """How the pseudo-gradient moves the model."""

    def begin(self, layout: Layout) -> Any:
        """The state before the first round: a dataclass of `Tensors`, or None."""

    def step(self, model: Tensors, gradient: Tensors, state: Any, round: int, scale: float) -> None:
        """Move ``model`` and change ``state``, both in place; ``scale``: the schedule's factor on the learning rate."""


class FactorRule(Protocol):
    """How products B·A of adapters become one; `hansa/core/factors.py` shows when it is asked."""

    @property
    def restarts(self) -> bool:
        """Whether B begins at zero again after each round, because the residual has taken the products in."""

    def residual(self, silos: WeightedFactors) -> tuple[Tensor, Tensor]:
        """What a round adds to the residual of a layer, as a left and a right factor of one product."""


def steps_to_the_mean(server: ServerOptimizer) -> bool:
    """Whether a server optimizer sets the model to the mean of the silos' models, as FedAvg does."""
    layout = Layout(("x",), ((2,),))
    model, gradient = Tensors(layout, torch.tensor([1.0, -2.0])), Tensors(layout, torch.tensor([0.5, 3.0]))
    wanted, state = model.flat - gradient.flat, server.begin(layout)
    server.step(model, gradient, state, 1, 1.0)
    return torch.equal(model.flat, wanted)


@dataclass(frozen=True)
class Residual:
    """A layer that fits badly at its node, on its way to a node where it may fit better."""

    layer: str
    origin: NodeId  # the node it comes from, as a path
    values: Tensor


class Filter(Protocol):
    """Which children of an inner node are trusted."""

    @property
    def needs_key_layers(self) -> bool:
        """Whether it judges by the key layers that children send."""

    def sift(self, answers: Iterator[Answer], name: NodeId, counts: bool, keys: Sequence[str]) -> Iterator[Answer]:
        """The answers, with a `Failure` in the place of those that are not trusted.

        Under its ``name`` the asking node's own work from the same start may be among them: something to compare with,
        and unless it ``counts`` not passed on. ``keys``: the tensors of key layers.
        """


class Hierarchy(Protocol):
    """How the nodes of a tree combine their models; `hansa/core/hierarchy.py` shows when each question is asked.

    Key layers are the blocks that each node personalises, by attention over its own, its parent's and its children's
    versions (the *members*); all other tensors are the backbone, which comes from the parent and moves by the
    ``aggregator`` and ``server`` slots. A *residual* is a child's key layer that fits badly and is passed on to another
    node. ``base``: the layers that all members once had in common, from which moves are measured. See docs/trees.md.
    """

    @property
    def order(self) -> Literal["sequential", "parallel"]:
        """Whether a node trains on its own data before its children do, or beside them as one more child."""

    @property
    def key_layers(self) -> float | tuple[str, ...]:
        """A share of the blocks, the last ones, or their names."""

    @property
    def filter(self) -> Filter | None:
        """Which children are trusted; None: all."""

    @property
    def keys_travel(self) -> bool:
        """Whether key layers leave their node at all."""

    @property
    def forwards_layers(self) -> bool:
        """Whether layers of one node may reach others, and nodes report their attention weights."""

    @property
    def compares_moves(self) -> bool:
        """Whether layers are compared by how far they moved: then a node remembers what its parent's were."""

    def keys(self, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Key layers, each with its tensors; ``parts`` names the part of the model that each tensor belongs to."""

    def adopt(self, own: Layers, others: Mapping[str, Layers], base: Layers) -> tuple[Layers, Attention]:
        """A node's key layers after attention to itself, its parent and residuals; an other may lack layers."""

    def merge(self, own: str, members: Mapping[str, Layers], base: Layers) -> tuple[Layers, Attention]:
        """An inner node's key layers from its members', its own among them."""

    def route(
        self, residuals: Sequence[Residual], children: Mapping[NodeId, Layers], base: Layers
    ) -> dict[NodeId, list[Residual]]:
        """Which child each residual goes to."""

    def select_residuals(self, new: Layers, children: Mapping[NodeId, Layers], base: Layers) -> list[Residual]:
        """Which children's layers are passed on, because they fit badly here."""


@dataclass(frozen=True)
class Method:
    """A federated learning method: one value for each slot. Change a slot with `dataclasses.replace`."""

    name: str
    participation: ParticipationRule
    exchange: Exchange | None
    scope: Scope
    objective: Objective
    upload: Compression
    weighting: Weighting
    aggregator: Aggregator
    server: ServerOptimizer
    hierarchy: Hierarchy | None = None  # none: inner nodes average what their children send
    shared_state: SharedState | None = None
    factors: FactorRule | None = None  # none: the matrices of adapters are combined like all other tensors
    download: tuple[Compressor, ...] = ()  # how differences between models are encoded on their way to silos
    overlaps: bool = False  # silos train on while an update travels (`hansa.client.overlap`)
    keeps_optimizer: bool = False  # silos keep their optimizer's state between rounds, whatever `train` says

    @property
    def needs_text_vectors(self) -> bool:
        """Whether some slot looks at one vector for a whole text, which only classifiers have."""
        return self.objective.needs_text_vectors or (self.exchange is not None and self.exchange.needs_text_vectors)


METHODS: Registry[Method] = Registry("method")
AGGREGATORS: Registry[Aggregator] = Registry("aggregate")
