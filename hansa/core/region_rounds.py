"""An asynchronous inner node below the root: what it keeps from one of its own rounds to the next.

Its children work all the time, so works are under way when it answers its parent. They count in a later round, by
their staleness. Works that have not begun start from the model that the parent sends next.

The node stores its state, with the order of arrivals, after each of its own rounds. A node that was killed repeats the
rounds of its request in the stored order: its requests are then the same, and so are the bits of its reply. The order
also goes up with the reply, into the ledger of the run (`BelowPart.arrivals`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hansa.core.arrivals import BufferState, PendingWork, in_use
from hansa.core.messages import NodeId
from hansa.core.round import Record
from hansa.core.state import PARTICIPATION, ServerState, StateStore

SLOT = "rounds"  # of the node's stored state


@dataclass(frozen=True)
class RegionState:
    """State after the node's own round ``number``. ``arrivals`` is empty if no update arrived in that round."""

    number: int
    arrivals: tuple[NodeId, ...] = ()
    buffer: BufferState = field(default_factory=BufferState)
    clock: float = 0.0


def recall(store: StateStore, state: ServerState, number: int) -> None:
    """Give ``state`` the works that are under way before the node's own round ``number``."""
    state.round = number - 1  # versions of the model are counted by the node's own rounds
    kept = store.recall(number).get(SLOT, RegionState)
    if kept is None:
        return
    begun = kept.buffer.versions
    works = tuple(w if w.version in begun else replace(w, version=state.round) for w in kept.buffer.pending)
    state.clock, state.slots[PARTICIPATION] = kept.clock, replace(kept.buffer, pending=works)


def recorded(store: StateStore, number: int) -> tuple[NodeId, ...]:
    """The order of arrivals of the node's own round ``number``, if that round was completed before; else empty."""
    kept = store.recall(number + 1).get(SLOT, RegionState)
    return kept.arrivals if kept is not None and kept.number == number else ()


def keep(store: StateStore, record: Record, state: ServerState, children: Iterable[NodeId], durable: int) -> None:
    """Store the state after a round. After a round without updates, its works are still under way."""
    buffer: BufferState = state.slots.get(PARTICIPATION) or BufferState()
    if record.failed:
        works = buffer.pending or tuple(PendingWork(node, state.round, 0.0, 1) for node in sorted(children))
        buffer = in_use(works, (), buffer.with_version(state))
    order = () if record.failed else tuple(record.arrivals)
    store.keep(record.round, {SLOT: RegionState(record.round, order, buffer, state.clock)}, durable)
