"""A link carries requests to nodes and replies back. Nothing above it knows whether that is a function call, shared
memory or a network."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # messages bring torch, which commands that only look at things here do not need
    from hansa.core.messages import NodeId, Reply, Request


@dataclass(frozen=True)
class Answer:
    """A reply and what it took. Its tensors may lie in the link's own memory: they are valid until the next answer is
    asked for; copy what you keep."""

    node: "NodeId"
    reply: "Reply"
    sent: int = 0  # bytes down
    received: int = 0  # bytes up


class Link(Protocol):
    def ask(self, asks: "Mapping[NodeId, Request]", until: float | None) -> Iterator[Answer]:
        """Ask all nodes at once and yield their answers *in the order of the asks*.

        Whoever is early waits in the link (in a worker's shared memory, in the broker's store), so the asker holds one
        model and one sum, and the sum does not depend on who was fast. Whoever has not answered ``until`` (on the
        `time.monotonic` clock), died, or failed twice is yielded as `Lost` with the reason.
        """
