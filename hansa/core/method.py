"""A method is a value with slots; most papers fill one or two and take the rest from FedAvg.

    fedavg()                                                   every slot at its plainest
    replace(fedavg(), objective=Proximal(mu=0.1))              FedProx
    replace(fedprox(mu=0.1), server=Adam(lr=0.01))             FedProx with a server Adam: compose, never inherit

`round.py` shows when each slot is asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from hansa.core.compression import Compression
from hansa.core.link import Answer
from hansa.core.messages import Knowledge, NodeId, Update
from hansa.core.participation import Ask, Asker, BufferedRegions, ServerState
from hansa.core.registry import Registry
from hansa.core.tensors import Layout, Tensors

if TYPE_CHECKING:
    from hansa.core.exchange import Samples, SharedKnowledge, Sizes
    from hansa.core.learner import Work


class Scope(Protocol):
    """Which tensors travel; the others are personal: they stay in the silo and are kept there between rounds."""

    def shared(self, layout: Layout, parts: Mapping[str, str]) -> Sequence[str]:
        """``parts``: which part of the model each tensor belongs to (models/parts.py)."""


class Exchange(Protocol):
    """What silos tell one another before they train; `Method.exchange` is None where they tell nothing."""

    @property
    def says(self) -> str:
        """What leaves a silo with an offer, in words."""

    def numbers(self, sizes: "Sizes") -> int:
        """How many numbers a silo tells in a round, at most."""

    def offer(self, work: "Work", samples: "Samples") -> "SharedKnowledge":
        """At the silo: what it tells of its data, seen with the model it received."""

    def flaw(self, offer: Knowledge, sizes: "Sizes") -> str:
        """At the federation: why the others must not get this offer; empty if they may."""


TaskLoss = Callable[[], Tensor]


class Objective(Protocol):
    """What a silo minimises."""

    def loss(self, work: "Work", task_loss: TaskLoss) -> Tensor:
        """What to differentiate: the task's loss, with a term beside it or something in its place. Calling
        ``task_loss`` runs the model on ``work.batch``; who puts something else in its place does not call it."""

    def gradient(self, work: "Work") -> None:
        """A term whose gradient is known in closed form: add it to ``work.learner.grad``."""

    def keep(self, work: "Work") -> dict[str, Tensor]:
        """After the last step: what the silo keeps, to find it in ``work.memory`` in its next round."""


class Weighting(Protocol):
    """The weight of an update, relative to the others of its round."""

    def weight(self, update: Update) -> float: ...


class Aggregator(Protocol):
    """How updates become one pseudo-gradient. ``needs`` says whether a running sum is enough or whether the rule
    must see each update on its own (then secure aggregation cannot be used)."""

    @property
    def needs(self) -> Literal["sum", "each"]: ...

    def combine(self, layout: Layout, updates: Iterable[tuple[Update, float]]) -> Tensors: ...


class ServerOptimizer(Protocol):
    """How the pseudo-gradient moves the model; ``state`` persists over rounds and in checkpoints."""

    def begin(self, layout: Layout) -> dict[str, Tensors]: ...

    def step(self, model: Tensors, gradient: Tensors, state: dict[str, Tensors], round: int, scale: float) -> None: ...


class ParticipationRule(Protocol):
    """Who takes part in a round, and whose answers end it."""

    def gather(self, asker: Asker, moving: ServerState) -> tuple[list[NodeId], Ask]:
        """The cohort, and how to ask it once it is known what each member hears from the others."""


Layers = Mapping[str, Tensor]  # key layers: `block.3` → all of its values, flat


@dataclass(frozen=True)
class Residual:
    """A layer that fits badly where it stands, on its way to a node where it may fit better."""

    layer: str
    origin: NodeId  # whose it is, as a path of nodes
    values: Tensor


Weights = dict[str, dict[str, float]]  # layer → member → how much it was listened to


class Filter(Protocol):
    """Which children are believed."""

    def sift(self, answers: Iterator[Answer], name: NodeId, counts: bool, keys: Sequence[str]) -> Iterator[Answer]:
        """The answers, with those that are not believed as `Lost`. Under its ``name`` the asking node's own work from
        the same start may be among them: something to compare with, and unless it ``counts`` not handed on. ``keys``:
        the tensors of key layers."""


class Hierarchy(Protocol):
    """How the nodes of a tree combine their models; `fit.py` shows when each question is asked. What is not a key
    layer is the backbone: it comes from the parent, and moves by the ``aggregate`` and ``server`` slots.
    ``base``: the layers that all of those compared once had in common."""

    @property
    def order(self) -> Literal["sequential", "parallel"]:
        """Whether a node trains on its own data before its children do, or beside them as one more child."""

    @property
    def key_layers(self) -> float | tuple[str, ...]:
        """A share of the blocks, the last ones, or their names."""

    @property
    def filter(self) -> Filter | None: ...

    @property
    def keys_travel(self) -> bool:
        """Whether key layers leave their node at all."""

    @property
    def hands_on(self) -> bool:
        """Whether layers of one node may reach others, and nodes tell whom they listen to."""

    @property
    def compares_moves(self) -> bool:
        """Whether layers are compared by what they moved: then a node remembers what its parent's were."""

    def keys(self, parts: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Key layers, each with its tensors; ``parts`` names the part of the model each tensor belongs to."""

    def adopt(self, own: Layers, others: Mapping[str, Layers], base: Layers) -> tuple[Layers, Weights]:
        """A node's key layers after listening to itself, its parent and residuals; an other may lack layers."""

    def meet(self, own: str, members: Mapping[str, Layers], base: Layers) -> tuple[Layers, Weights]:
        """A federation's key layers from its members', its own among them."""

    def route(
        self, residuals: Sequence[Residual], children: Mapping[NodeId, Layers], base: Layers
    ) -> dict[NodeId, list[Residual]]:
        """Which child each residual goes to."""

    def part(self, new: Layers, children: Mapping[NodeId, Layers], base: Layers) -> list[Residual]:
        """Which children's layers are handed on, because they fit badly here."""


@dataclass(frozen=True)
class Method:
    name: str
    participation: ParticipationRule | BufferedRegions  # the latter on trees alone, whose rounds are in fit.py
    exchange: Exchange | None
    scope: Scope
    objective: Objective
    upload: Compression
    weighting: Weighting
    aggregate: Aggregator
    server: ServerOptimizer
    tree: Hierarchy | None = None  # none: inner federations average what their silos send
    whole_texts: bool = False  # it looks at the representation of a whole text: of classifiers alone


METHODS: Registry[Method] = Registry("method")
