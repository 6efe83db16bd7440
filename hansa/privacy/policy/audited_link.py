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
from hansa.privacy.policy.guard import NO_RUN, Answering, RunContext
from hansa.privacy.policy.releases import digest


class AuditedLink:
    """A link that logs requests before they are sent and replies before they are used; ``context``: of which run."""

    def __init__(self, link: Link, log: AuditLog, context: RunContext = NO_RUN) -> None:
        self._link, self._log, self._context, self.size, self.remote = link, log, context, link.size, link.remote

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask as the link below does; log each request as ``sent``, each reply as ``received`` or ``failed``."""
        digests: dict[int, str] = {}  # a request that several nodes get is digested once
        entries: dict[int, dict[str, Any]] = {}
        for node, request in asks.items():
            if id(request) not in digests:
                digests[id(request)], entries[id(request)] = digest(request), self._context.entry(request)
            self._log.add("sent", **entries[id(request)], to=node, digest=digests[id(request)])
        for answer in self._link.ask(asks, until):
            entry = entries[id(asks[answer.node])] | {"message": type(answer.reply).__name__}
            if isinstance(answer.reply, Failure):
                self._log.add("failed", **entry, to=answer.node, reason=answer.reply.reason)
            else:
                self._log.add("received", **entry, to=answer.node, bytes=answer.received, digest=digest(answer.reply))
            yield answer


class AuditedNode:
    """A node's ``answer`` that logs every request and release; ``to``: the name of the node that asks."""

    def __init__(self, answer: Answering, log: AuditLog, to: NodeId, context: RunContext = NO_RUN) -> None:
        self._answer, self._log, self._to, self._context = answer, log, to, context

    def __call__(self, request: Request) -> Reply:
        """The node's reply, logged before it leaves."""
        entry = self._context.entry(request)
        self._log.add("request", **entry, to=self._to, bytes=wire.size(request))
        reply = self._answer(request)
        if isinstance(reply, Failure):
            self._log.add("failed", **entry, to=self._to)
        else:
            size, hash = wire.size(reply), digest(reply)
            self._log.add("release", **entry | {"message": type(reply).__name__}, to=self._to, bytes=size, digest=hash)
        return reply
