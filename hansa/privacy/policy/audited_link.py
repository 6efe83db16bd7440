"""What a coordinator or a region sends to the nodes below it and gets from them, and what a region without a policy of
its own tells its parent: in its audit log."""

from collections.abc import Iterator, Mapping
from typing import Any

from hansa.core import wire
from hansa.core.link import Answer, Link
from hansa.core.messages import Failure, NodeId, Reply, Request
from hansa.privacy.policy.audit_log import AuditLog
from hansa.privacy.policy.guard import Answer as Answering
from hansa.privacy.policy.guard import digest


class AuditedLink:
    """A link that writes everything down: questions before they go, answers before they are used."""

    def __init__(self, link: Link, log: AuditLog) -> None:
        self._link, self._log, self.size, self.remote = link, log, link.size, link.remote

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        digests: dict[int, str] = {}  # what many are asked is digested once
        for node, request in asks.items():
            if id(request) not in digests:
                digests[id(request)] = digest(request)
            about = _about(request, getattr(request, "round", 0))
            self._log.add("asked", **about, to=node, digest=digests[id(request)])
        for answer in self._link.ask(asks, until):
            about = _about(answer.reply, getattr(asks[answer.node], "round", 0))
            if isinstance(answer.reply, Failure):
                self._log.add("lost", **about, to=answer.node, reason=answer.reply.reason)
            else:
                self._log.add("answer", **about, to=answer.node, bytes=answer.received, digest=digest(answer.reply))
            yield answer


class AuditedNode:
    """A node's answer, with every request and release written down; ``to``: who asks."""

    def __init__(self, answer: Answering, log: AuditLog, to: NodeId) -> None:
        self._answer, self._log, self._to = answer, log, to

    def __call__(self, request: Request) -> Reply:
        round = getattr(request, "round", 0)
        self._log.add("request", **_about(request, round), to=self._to, bytes=wire.size(request))
        reply = self._answer(request)
        if isinstance(reply, Failure):
            self._log.add("failed", **_about(request, round), to=self._to)
        else:
            told = {"bytes": wire.size(reply), "digest": digest(reply)}
            self._log.add("release", **_about(reply, round), to=self._to, **told)
        return reply


def _about(message: object, round: int) -> dict[str, Any]:
    return {"message": type(message).__name__, "round": round}
