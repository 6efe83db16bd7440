"""Audit logs of coordinators and regions: every request and reply that passes through them.

`AuditedLink` logs the messages between a node and its children; `AuditedNode` logs those between a region without a
policy and its parent.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hansa.core import wire
from hansa.core.link import Answer, Link
from hansa.core.messages import Failure, NodeId, Reply, Request
from hansa.privacy.policy.audit_log import AuditLog
from hansa.privacy.policy.guard import Answering, digest


class AuditedLink:
    """A link that logs requests before they are sent and replies before they are used."""

    def __init__(self, link: Link, log: AuditLog) -> None:
        self._link, self._log, self.size, self.remote = link, log, link.size, link.remote

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask as the link below does; log each request as ``sent``, each reply as ``received`` or ``failed``."""
        digests: dict[int, str] = {}  # a request that several nodes get is digested once
        for node, request in asks.items():
            if id(request) not in digests:
                digests[id(request)] = digest(request)
            self._log.add("sent", **_entry(request, _round(request)), to=node, digest=digests[id(request)])
        for answer in self._link.ask(asks, until):
            entry = _entry(answer.reply, _round(asks[answer.node]))
            if isinstance(answer.reply, Failure):
                self._log.add("failed", **entry, to=answer.node, reason=answer.reply.reason)
            else:
                self._log.add("received", **entry, to=answer.node, bytes=answer.received, digest=digest(answer.reply))
            yield answer


class AuditedNode:
    """A node's ``answer`` that logs every request and release; ``to``: the name of the node that asks."""

    def __init__(self, answer: Answering, log: AuditLog, to: NodeId) -> None:
        self._answer, self._log, self._to = answer, log, to

    def __call__(self, request: Request) -> Reply:
        """The node's reply, logged before it leaves."""
        round = _round(request)
        self._log.add("request", **_entry(request, round), to=self._to, bytes=wire.size(request))
        reply = self._answer(request)
        if isinstance(reply, Failure):
            self._log.add("failed", **_entry(request, round), to=self._to)
        else:
            size, hash = wire.size(reply), digest(reply)
            self._log.add("release", **_entry(reply, round), to=self._to, bytes=size, digest=hash)
        return reply


def _round(request: Request) -> int:
    """The round of a request; 0 for requests that belong to none."""
    return getattr(request, "round", 0)


def _entry(message: object, round: int) -> dict[str, Any]:
    return {"message": type(message).__name__, "round": round}
