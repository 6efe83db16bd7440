"""Links carry requests to nodes and replies back.

Nothing above a link knows whether that is a function call, shared memory or a network.
"""

from collections.abc import Collection, Iterator, Mapping
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


class Posting(Protocol):
    """Requests that are sent long before their replies are asked for, as asynchronous methods do."""

    def post(self, asks: Mapping[NodeId, Request], arrival: bool = True) -> None:
        """Send requests and return at once; `Link.ask` with the same request then yields the reply.

        A request that is open already is not sent again. ``arrival``: `next_arrival` reports the reply. A request with
        ``arrival=False``, or `Link.ask` with another request, comes before the posted work of the same node.
        """

    def next_arrival(self, nodes: Collection[NodeId], until: float | None) -> NodeId | None:
        """Wait for the next reply to a posted request of one of ``nodes``; None after ``until``.

        A node that cannot answer any more, such as one that has left, counts as arrived: see `posted_failure`.
        """

    def posted_failure(self, node: NodeId) -> str:
        """Why a node that has arrived has no result; the request is closed then. Empty if it has one."""


class Link(Protocol):
    """The way to other nodes."""

    @property
    def size(self) -> int:
        """How many nodes it has at work at the same time."""

    @property
    def remote(self) -> bool:
        """Whether the nodes are in other organisations: they keep what is their own, and may be missing."""

    @property
    def posting(self) -> Posting | None:
        """The way to send requests ahead; None where nodes work only when they are asked."""

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask all nodes at once and yield their answers *in the order of the asks*.

        An early answer waits in the link (in a worker's shared memory, in the broker's store), so the asker holds one
        model and one sum, and the sum does not depend on which node was fast. A node that has not answered ``until``
        (on the `time.monotonic` clock), died, or failed twice is yielded as a `Failure` with the reason.
        """
