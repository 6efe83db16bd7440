"""Links carry requests to nodes and replies back.

Nothing above a link knows whether that is a function call, shared memory or a network.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from hansa.core.messages import NodeId, Reply, Request


@dataclass(frozen=True)
class Answer:
    """A reply and what it took.

    Its tensors may lie in the link's own memory: they are valid until the next answer is asked for; copy what you keep.
    """

    node: NodeId
    reply: Reply
    sent: int = 0  # bytes down
    received: int = 0  # bytes up


class Link(Protocol):
    """The way to other nodes."""

    @property
    def size(self) -> int:
        """How many nodes it has at work at the same time."""

    @property
    def remote(self) -> bool:
        """Whether the nodes are in other organisations: they keep what is their own, and may be missing."""

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask all nodes at once and yield their answers *in the order of the asks*.

        An early answer waits in the link (in a worker's shared memory, in the broker's store), so the asker holds one
        model and one sum, and the sum does not depend on which node was fast. A node that has not answered ``until``
        (on the `time.monotonic` clock), died, or failed twice is yielded as a `Failure` with the reason.
        """
