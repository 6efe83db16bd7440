"""State that lasts from round to round, by slot: the server's (`ServerState`) and what a node stores (`StateStore`).

A slot of a method that needs state declares a dataclass for it (see `hansa.core.codec` for what its fields may hold)
and gets it back as that type. A checkpoint is ``slot → state``; so is a silo's state on its own disk.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, TypeVar

from hansa.core.tensors import Tensors

T = TypeVar("T")

# The slots of a method that may keep state at the server.
SERVER, PARTICIPATION, HIERARCHY, DOWNLINK, SHARED = "server", "participation", "hierarchy", "downlink", "shared_state"
SENT = "sent_model"


@dataclass
class ServerState:
    """What a round moves: the shared model, the state of the method's slots, the rounds done, the virtual clock."""

    model: Tensors
    slots: dict[str, Any] = field(default_factory=dict)  # slot → its state, a dataclass; slots without state are absent
    round: int = 0
    clock: float = 0.0


class SlotStates(Protocol):
    """Stored states, each read as the type that its slot declares."""

    def get(self, slot: str, kind: type[T]) -> T | None:
        """The state of a slot; None if it has none. Raises `DecodingError` if the stored state is of another type."""


class StateStore(Protocol):
    """Where a node keeps its state between rounds."""

    def recall(self, round: int) -> SlotStates:
        """The newest state from before ``round``."""

    def newest(self) -> SlotStates:
        """The newest state of all."""

    def keep(self, round: int, states: Mapping[str, Any], durable: int) -> None:
        """Store the state after ``round``; states from before the ``durable`` round may be deleted."""


def tensors_in(state: object) -> Iterator[Tensors]:
    """Every `Tensors` that is a field of a state."""
    if is_dataclass(state):
        for one in fields(state):
            value = getattr(state, one.name)
            if isinstance(value, Tensors):
                yield value
