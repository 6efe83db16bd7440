"""Which process of each child is served; two processes under one name suspend the name.

A kit that was copied works beside the original. The parent therefore remembers, in its journal, the process
(instance.py) from which it heard last. It suspends a child, which is then neither asked nor answered, if

- another installation sends while the known one was heard within `WINDOW_SECONDS`,
- an earlier process of the same installation sends after a later one has started, or
- the child itself says, in a signed heartbeat, that it has seen another process under its name.

A restart keeps the installation and has a later start, so it raises no alarm. The suspension ends when the authority
has listed a new key for the child, or when the operator states that the matter is resolved (`resolve`).
"""

from collections.abc import Callable
from time import time
from typing import Any

from hansa.deploy.network.envelope import Envelope, Identity
from hansa.deploy.network.heartbeat import Heartbeat
from hansa.deploy.network.instance import Instance
from hansa.deploy.network.journal import Journal

WINDOW_SECONDS = 60.0
INSTANCE, SUSPENDED = "instance:", "suspended:"  # prefixes of facts in the journal
TWO_AGENTS = "two agents use its identity: its key may be stolen"
EARLIER_PROCESS = "it comes from an earlier process of the node"


class Presence:
    """The processes of the children that ``identity`` lists, in ``journal``; ``log`` receives alarms."""

    def __init__(self, identity: Identity, journal: Journal, log: Callable[[str], None]) -> None:
        self._identity, self._journal, self._log = identity, journal, log

    def suspended(self, node: str) -> str:
        """Why a child is suspended; empty if it is not. A new key ends a suspension."""
        found = self._journal.fact(SUSPENDED + node)
        if found is None:
            return ""
        if self._key(node) not in ("", found["key"]):
            resolve(self._journal, node)
            self._log(f"{node} has a new key: it is no longer suspended")
            return ""
        return str(found["reason"])

    def all_suspended(self) -> dict[str, str]:
        """The suspended children, with the reasons."""
        found = {node: self.suspended(node) for node in self._journal.names(SUSPENDED)}
        return {node: reason for node, reason in found.items() if reason}

    def heard(self, heartbeat: Heartbeat) -> None:
        """Take note of a child's heartbeat."""
        self._observe(heartbeat.node, heartbeat.process, heartbeat.at, time())
        if heartbeat.alarm:
            self._suspend(heartbeat.node, "it has seen another agent under its name: its key may be stolen")

    def refusal(self, envelope: Envelope, stored: bool) -> str:
        """Why a child's reply is not used; empty if it is. ``stored``: the broker had stored it, perhaps long ago."""
        try:
            process = Instance.parse(envelope.instance)
        except ValueError:
            return "it names no process"
        if not stored:
            self._observe(envelope.sender, process, envelope.sent_at, time())
        if reason := self.suspended(envelope.sender):
            return reason
        known = self._journal.fact(INSTANCE + envelope.sender)
        if known is not None and (known["id"] != process.id or process.started < known["started"]):
            return EARLIER_PROCESS
        return ""

    def _observe(self, node: str, process: Instance, at: float, now: float) -> None:
        if self.suspended(node):
            return
        known = self._journal.fact(INSTANCE + node)
        if known is None:
            self._record(node, process, at, now)
        elif known["id"] != process.id:
            if now - known["last_seen"] < WINDOW_SECONDS:
                self._suspend(node, TWO_AGENTS)
            else:
                self._log(f"{node} is another installation than before")
                self._record(node, process, at, now)
        elif process.started == known["started"]:
            self._record(node, process, known["first_at"], now)
        elif process.started > known["started"]:
            self._record(node, process, at, now)
        elif at >= known["first_at"]:  # else it was sent before the later process started, and arrived late
            self._suspend(node, TWO_AGENTS)

    def _record(self, node: str, process: Instance, first_at: float, now: float) -> None:
        value = {"id": process.id, "started": process.started, "first_at": first_at, "last_seen": now}
        self._journal.set_fact(INSTANCE + node, value)

    def _suspend(self, node: str, reason: str) -> None:
        if not self.suspended(node):
            self._journal.set_fact(SUSPENDED + node, {"reason": reason, "key": self._key(node), "at": time()})
            self._log(
                f"ALARM: {node} is suspended: {reason}; ask its operator, then let the authority sign a new key for "
                f"it, or run 'hansa kit resolve RUN {node}'"
            )

    def _key(self, node: str) -> str:
        try:
            return self._identity.public_key(node).public_bytes_raw().hex()
        except KeyError:
            return ""


def resolve(journal: Journal, node: str) -> Any:
    """End the suspension of a child, and forget its processes; return what the journal had about it."""
    found = journal.fact(SUSPENDED + node)
    journal.delete_fact(SUSPENDED + node)
    journal.delete_fact(INSTANCE + node)
    return found
