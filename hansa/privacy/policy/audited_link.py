"""Audit logs of coordinators and regions: every request and reply that passes through them.

`AuditedLink` logs the messages between a node and its children; `AuditedNode` logs those between a region without a
policy and its parent.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hansa.core import wire
from hansa.core.link import Answer, Link, Posting
from hansa.core.messages import Failure, NodeId, Reply, Request
from hansa.privacy.policy.audit_log import AuditLog
from hansa.privacy.policy.guard import NO_RUN, Answering, RunContext
from hansa.privacy.policy.releases import digest


class AuditedLink:
    """A link that logs requests before they are sent and replies before they are used; ``context``: of which run."""

    def __init__(self, link: Link, log: AuditLog, context: RunContext = NO_RUN) -> None:
        self._link, self._log, self._context, self.size, self.remote = link, log, context, link.size, link.remote
        self._posted: dict[NodeId, dict[str, dict[str, Any]]] = {}  # posted requests: by digest, the logged entries

    @property
    def posting(self) -> Posting | None:
        """Requests that are sent ahead; they are logged as ``sent`` then."""
        return None if self._link.posting is None else self

    def post(self, asks: Mapping[NodeId, Request], arrival: bool = True) -> None:
        """Log requests as ``sent``, and send them; see `hansa.core.link.Posting`."""
        self._log_sent(asks, posted=True)
        self._below.post(asks, arrival)

    def next_arrival(self, nodes: Collection[NodeId], until: float | None) -> NodeId | None:
        """Wait as the link below does; the reply is logged when it is asked for."""
        return self._below.next_arrival(nodes, until)

    def posted_failure(self, node: NodeId) -> str:
        """Why a node has no result, logged as ``failed``; empty if it has one."""
        reason = self._below.posted_failure(node)
        if reason:
            entries = self._posted.pop(node, {})
            self._log.add("failed", **[*entries.values()][-1], to=node, reason=reason)
        return reason

    @property
    def _below(self) -> Posting:
        assert self._link.posting is not None
        return self._link.posting

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask as the link below does; log each request as ``sent``, each reply as ``received`` or ``failed``."""
        entries = self._log_sent(asks)
        for answer in self._link.ask(asks, until):
            entry = entries[id(asks[answer.node])] | {"message": type(answer.reply).__name__}
            if isinstance(answer.reply, Failure):
                self._log.add("failed", **entry, to=answer.node, reason=answer.reply.reason)
            else:
                self._log.add("received", **entry, to=answer.node, bytes=answer.received, digest=digest(answer.reply))
            yield answer

    def _log_sent(self, asks: Mapping[NodeId, Request], posted: bool = False) -> dict[int, dict[str, Any]]:
        """Log requests, unless they were logged when they were posted; return the entries by the requests' ``id``."""
        digests: dict[int, str] = {}  # a request that several nodes get is digested once
        entries: dict[int, dict[str, Any]] = {}
        for node, request in asks.items():
            if id(request) not in digests:
                digests[id(request)], entries[id(request)] = digest(request), self._context.entry(request)
            known, found = self._posted.setdefault(node, {}), digests[id(request)]
            if found not in known:
                self._log.add("sent", **entries[id(request)], to=node, digest=found)
            if posted:
                known[found] = entries[id(request)] | {"message": Failure.__name__}
            else:
                known.pop(found, None)
        return entries


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
