"""The requests of a parent that are not closed yet, and the replies to them that have arrived.

A request is *asked* if the parent waits for its reply, and *posted* if the parent collects the reply later, as
asynchronous methods do. A node works on one request at a time, and the broker stores only the newest request to a node.
So a request to a node pauses an earlier one that is not answered; the link sends it again when the node is free. A
request that is posted *behind* another waits for the other's reply instead.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from hansa.core import wire
from hansa.core.messages import NodeId, Request, Train
from hansa.deploy.network.envelope import Envelope, Ref


@dataclass(frozen=True)
class PendingRequest:
    """A request that waits for its reply.

    ``sent``: its size in bytes; ``offered``: the blobs that its node fetches; ``update``: the size of the update that
    it asks for, if that is larger.
    """

    node: NodeId
    envelope: Envelope
    sent: int
    offered: frozenset[str]
    update: int = 0


class OpenRequests:
    """Open requests by their ids; see the module."""

    def __init__(self) -> None:
        self.pending: dict[str, PendingRequest] = {}
        self.replies: dict[str, Envelope] = {}  # in the order of arrival
        self._posted: dict[str, bool] = {}  # id → whether its arrival is yet to be reported
        self._reported: dict[NodeId, str] = {}  # the request of a node whose arrival was reported last
        self._paused: list[str] = []

    def add(self, id: str, request: PendingRequest) -> None:
        """Open a request."""
        self.pending[id] = request

    def ask(self, ids: Collection[str]) -> list[str]:
        """The requests to send, of those that somebody waits for now: those that are not posted."""
        new = [id for id in ids if id not in self._posted]
        for id in new:
            self._pause(id)
        return new

    def post(self, ids: Collection[str], arrival: bool) -> list[str]:
        """Post requests; return those to send. ``arrival``: their replies are reported; they wait behind others."""
        new = [id for id in ids if id not in self._posted]
        sent = []
        for id in new:
            self._posted[id] = arrival
            if arrival and any(not self._posted.get(other, True) for other in self._active(self.pending[id].node)):
                self._paused.append(id)
            else:
                self._pause(id)
                sent.append(id)
        return sent

    def is_posted(self, id: str) -> bool:
        """Whether a request is posted."""
        return id in self._posted

    def unreported(self, nodes: Collection[NodeId]) -> list[str]:
        """The posted requests to ``nodes`` whose arrival is yet to be reported; answered ones first, in order."""
        open = [id for id, arrival in self._posted.items() if arrival and self.pending[id].node in nodes]
        return [*(id for id in self.replies if id in open), *(id for id in open if id not in self.replies)]

    def report(self, id: str) -> NodeId:
        """Mark the arrival of a posted request as reported; return its node."""
        self._posted[id] = False
        self._reported[self.pending[id].node] = id
        return self.pending[id].node

    def reported(self, node: NodeId) -> str:
        """The posted request to a node whose arrival was reported last."""
        return self._reported[node]

    def resumed(self) -> list[str]:
        """Paused requests whose nodes are free, one for each node, the newest first; they are not paused any longer."""
        free: dict[NodeId, str] = {}
        for id in self._paused:
            if id in self.pending and id not in self.replies and not self._active(self.pending[id].node):
                free[self.pending[id].node] = id
        self._paused = [id for id in self._paused if id in self.pending and id not in free.values()]
        return list(free.values())

    def _pause(self, id: str) -> None:
        """Pause what the node of a request works on."""
        self._paused += [other for other in self._active(self.pending[id].node) if other != id]

    def _active(self, node: NodeId) -> list[str]:
        """The requests to a node that were sent, are not answered and not paused."""
        return [
            id
            for id, request in self.pending.items()
            if request.node == node and id not in self.replies and id not in self._paused
        ]

    def close(self, id: str) -> tuple[PendingRequest, set[str], bool] | None:
        """Close a request; None if it is closed already.

        Returns it, its blobs that no other open request needs, and whether it was the last one of its node.
        """
        closed = self.pending.pop(id, None)
        if closed is None:
            return None
        self.replies.pop(id, None)
        self._posted.pop(id, None)
        if id in self._paused:
            self._paused.remove(id)
        needed = {name for other in self.pending.values() for name in other.offered}
        return closed, set(closed.offered - needed), all(other.node != closed.node for other in self.pending.values())


def request_id(
    run: str, parent: NodeId, node: NodeId, request: Request, vectors: Mapping[str, Ref], start: Ref | None
) -> str:
    """The id of a request, which a restarted parent computes again: it depends on what is asked and on nothing else."""
    text, _ = wire.split(_repeatable(request))
    parts = [run, parent, node, text, repr(sorted(vectors.items())), repr(start)]
    return sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def _repeatable(request: Request) -> Request:
    """A request without what may differ when it is repeated after a restart: the newest checkpoint, the time left."""
    if not isinstance(request, Train):
        return request
    subtree = replace(request.subtree, time_limit=0.0) if request.subtree is not None else None
    return replace(request, durable=0, subtree=subtree)
