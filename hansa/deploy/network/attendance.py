"""Which children a parent waits for: those that are there, with a usable clock, and have not left.

A child that cannot answer is not awaited: its clock is wrong (its envelopes, or those it receives, would be rejected),
it has sent no heartbeat for too long, it is suspended, or it has left the federation for good. In its signed
heartbeats a child also states the newest envelope that it accepted. A parent that was restored from a backup continues
its sequence numbers above that one. This opens no replay: only the parent's own counter rises, and the child still
accepts nothing older.
"""

from time import time

from hansa.core.messages import LEFT
from hansa.core.participation import Participation
from hansa.deploy.network.envelope import MAX_SKEW, Envelope, Identity
from hansa.deploy.network.journal import Journal
from hansa.deploy.network.presence import Presence

ASYNCHRONOUS_ABSENCE = 15.0  # seconds, three heartbeats: with an asynchronous method no silo waits for one that stopped
MAX_JUMP = 1 << 20  # sequence numbers that a parent skips at once: a child that lies cannot use them up


def absence(participation: Participation, synchronous: bool) -> float | None:
    """Seconds without a heartbeat after which a child is not awaited in a round; None: until the deadline."""
    stated = participation.max_absence
    return stated if stated is not None or synchronous else ASYNCHRONOUS_ABSENCE


class Attendance:
    """The children of a parent, in one run. ``max_absence``: seconds without a heartbeat; None: a child may be away.

    ``journal`` has the heartbeats, which are those of all runs.
    """

    def __init__(self, journal: Journal, identity: Identity, presence: Presence) -> None:
        self._journal, self._identity, self._presence = journal, identity, presence
        self._began = time()  # heartbeats of an earlier process say nothing about who is away now
        self.max_absence: float | None = None

    def reason_not_to_wait(self, node: str) -> str:
        """Why a child's reply is not awaited any longer; empty if it is."""
        if not self._identity.trusts(node):
            return "it was revoked"
        if suspended := self._presence.suspended(node):
            return f"it is suspended: {suspended}"
        if self._has_left(node):
            return LEFT
        heartbeat = self._journal.heartbeat(node)
        if not heartbeat:
            return ""
        seen, skew = float(heartbeat["last_seen"]), float(heartbeat["skew"])
        if abs(skew) > MAX_SKEW and seen >= self._began:
            way = "ahead of" if skew > 0 else "behind"
            return (
                f"its clock is {abs(skew):.0f} s {way} this machine's, and at most {MAX_SKEW:.0f} s are allowed; "
                "synchronise the clocks"
            )
        silent = time() - max(seen, self._began)
        if self.max_absence is not None and silent > self.max_absence:
            return f"it has sent no heartbeat for {self.max_absence:g} s"
        return ""

    def is_gone(self, node: str) -> bool:
        """Whether a child has left for good or was revoked, so that its reply is never awaited again."""
        return not self._identity.trusts(node) or self._has_left(node)

    def _has_left(self, node: str) -> bool:
        return self._journal.has_left(node, self._identity.public_key(node).public_bytes_raw().hex())

    def overtaken(self, node: str, envelope: Envelope) -> int:
        """The sequence number that a child accepted instead of this envelope's; 0 if it can accept this envelope.

        A child is ahead of its parent only if the parent was restored from a backup.
        """
        for run, sequence, request in self._journal.heartbeat(node).get("positions", ()):
            if run == envelope.run:
                ahead = sequence - envelope.sequence
                same = (sequence, request) == (envelope.sequence, envelope.request)
                return int(sequence) if not same and 0 <= ahead <= MAX_JUMP else 0
        return 0
