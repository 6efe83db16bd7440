"""Arrival order: which update ends up next in the buffer of an asynchronous method.

In a simulation the virtual clock decides (`VirtualClock`), so that the result does not depend on the machine. Between
organisations the updates themselves decide (`LinkArrivals`): children work all the time, and the server takes what
arrives. The ledger records that order. `RecordedArrivals` repeats a recorded order in a simulation, which then gives
the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

from hansa.core.errors import RunFailed
from hansa.core.link import Link, Posting
from hansa.core.messages import LEFT, NodeId, Request, Train
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors

RETRY_SECONDS = 30.0  # until a child whose work failed is asked again
TICK = 1e-6  # seconds between two arrivals at the least, so that no two have the same time


@dataclass(frozen=True)
class PendingWork:
    """A child at work: which version of the model it has, when it will be done, and how many such works there were.

    ``due`` is a time of the virtual clock. In `BufferState` of a run between organisations it has no meaning.
    """

    node: NodeId
    version: int
    due: float
    number: int


@dataclass(frozen=True)
class BufferState:
    """State of buffered asynchronous participation: the work under way, and every version of the model in use."""

    pending: tuple[PendingWork, ...] = ()
    versions: dict[int, Tensors] = field(default_factory=dict)

    def with_version(self, state: ServerState) -> dict[int, Tensors]:
        """All versions in use and the newest one; a version is copied once."""
        if state.round in self.versions:
            return self.versions
        return {**self.versions, state.round: state.model.copy()}


def in_use(
    pending: Sequence[PendingWork], arrived: Iterable[PendingWork], versions: Mapping[int, Tensors]
) -> BufferState:
    """The state with new pending work; versions of the model that no child works with any more are dropped."""
    needed = {work.version for work in (*pending, *arrived)}
    return BufferState(tuple(pending), {version: model for version, model in versions.items() if version in needed})


class Arrivals(Protocol):
    """Decides which pending work ends next."""

    failures: dict[NodeId, str]  # children that cannot work now, with the reason

    def begin(self, works: Iterable[PendingWork], versions: Mapping[int, Tensors]) -> None:
        """Start works, unless they are under way. A work whose version is not among ``versions`` starts later."""

    def next(self, pending: Sequence[PendingWork]) -> PendingWork | None:
        """The pending work that ends next, with the time of its end as ``due``; None: no further one in this round."""


class VirtualClock:
    """Works end at the time that `simulate.delay` gives them."""

    def __init__(self) -> None:
        self.failures: dict[NodeId, str] = {}

    def begin(self, works: Iterable[PendingWork], versions: Mapping[int, Tensors]) -> None:
        """Nothing is under way in a simulation: a child is asked when its work is due."""

    def next(self, pending: Sequence[PendingWork]) -> PendingWork | None:
        """The earliest work; ties by name."""
        return min(pending, key=lambda work: (work.due, work.node), default=None)


class RecordedArrivals(VirtualClock):
    """Works end in a recorded order: the names of the children whose updates arrived in a round."""

    def __init__(self, order: Sequence[NodeId], clock: float) -> None:
        super().__init__()
        self._order, self._clock = list(order), clock

    def next(self, pending: Sequence[PendingWork]) -> PendingWork | None:
        """The pending work of the next recorded child; raises `RunFailed` if that child has none."""
        if not self._order:
            return None
        node = self._order.pop(0)
        found = next((work for work in pending if work.node == node), None)
        if found is None:
            raise RunFailed(
                f"the recorded order of arrivals names '{node}', which has no work under way: use the federation file "
                "of the run that recorded it"
            )
        self._clock += 1.0
        return replace(found, due=self._clock)


class LinkArrivals:
    """Works end when their updates arrive over the link; see the module.

    ``deadline``: when the round ends with what is there, on the monotonic clock; None: it waits for a full buffer.
    ``clock``: the run's time at the start of the round. ``durable``: for a work's number, the newest work of that child
    that is part of a checkpoint.
    """

    def __init__(self, link: Posting, deadline: float | None, clock: float, durable: Callable[[int], int]) -> None:
        self.failures: dict[NodeId, str] = {}
        self._link, self._deadline, self._durable = link, deadline, durable
        self._clock, self._began = clock, monotonic()
        self._requests: dict[NodeId, Train] = {}  # open requests
        self._retries: dict[NodeId, float] = {}  # when a child whose work failed is asked again

    def begin(self, works: Iterable[PendingWork], versions: Mapping[int, Tensors]) -> None:
        """Send the requests of works that have not begun."""
        made: dict[tuple[int, int], Train] = {}  # works of one version and number share a request
        asks: dict[NodeId, Request] = {}
        for work in works:
            if work.version not in versions:
                continue
            key = (work.number, work.version)
            if key not in made:
                made[key] = Train(work.number, versions[work.version], self._durable(work.number))
            asks[work.node] = self._requests[work.node] = made[key]
        self._link.post(asks)

    def next(self, pending: Sequence[PendingWork]) -> PendingWork | None:
        """Wait for an update; None after the deadline, or when no child can work."""
        works = {work.node: work for work in pending if work.node in self._requests}
        while True:
            waiting = [node for node in works if node not in self._retries]
            if not waiting and not (self._deadline and self._retries):
                return None
            limits = [at for at in (self._deadline, *self._retries.values()) if at is not None]
            node = self._link.next_arrival(waiting, min(limits, default=None))
            if node is not None and not self._failed(node):
                self._requests.pop(node)
                self._clock = max(self._clock + TICK, self._clock + monotonic() - self._began)
                self._began = monotonic()
                return replace(works[node], due=self._clock)
            if self._deadline is not None and monotonic() >= self._deadline:
                return None
            if node is None and min(self._retries.values(), default=float("inf")) > monotonic():
                return None  # the link ended the wait, since the node's own parent has a deadline
            self._ask_again(works)

    def _failed(self, node: NodeId) -> bool:
        """Whether a child's reply is a failure; if so, its reason is noted, and the child is asked again later."""
        reason = self._link.posted_failure(node)
        if not reason:
            return False
        self.failures[node] = reason
        self._retries[node] = float("inf") if reason == LEFT else monotonic() + RETRY_SECONDS
        return True

    def _ask_again(self, works: Mapping[NodeId, PendingWork]) -> None:
        due = [node for node, at in self._retries.items() if at <= monotonic() and node in works]
        for node in due:
            del self._retries[node]
        self._link.post({node: self._requests[node] for node in due})


def arrivals_of(
    link: Link | None,
    recorded: Sequence[Sequence[NodeId]],
    number: int,
    clock: float,
    deadline: float | None,
    durable: Callable[[int], int],
) -> Arrivals:
    """What decides the order of updates in round ``number``: a recorded order, the link, or the virtual clock.

    ``recorded``: the order of arrivals by round, from `simulate.arrivals`; ``deadline``, ``clock``, ``durable``: see
    `LinkArrivals`.
    """
    if recorded:
        return RecordedArrivals(recorded[number - 1] if number <= len(recorded) else (), clock)
    if link is None or link.posting is None:
        return VirtualClock()
    return LinkArrivals(link.posting, deadline, clock, durable)
