"""What a parent knows of a child besides its replies: its heartbeats, and whether it has left.

A child that cannot answer is not awaited: its clock is wrong (its envelopes, or those it receives, would be rejected),
it has given no sign of life for too long, or it has left the federation for good. In its heartbeats a child also
states, signed, the newest envelope that it accepted. A parent that was restored from a backup continues its sequence
numbers above that one. This opens no replay: only the parent's own counter rises, and the child still accepts nothing
older.
"""

import json
from dataclasses import dataclass
from time import time
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.messages import LEFT
from hansa.deploy.network.envelope import MAX_SKEW, Envelope, Identity
from hansa.deploy.network.journal import Journal

MAX_JUMP = 1 << 20  # sequence numbers that a parent skips at once: a child that lies cannot use them up
PURPOSE = b"hansa position 1\n"


@dataclass(frozen=True)
class Position:
    """The newest envelope that a child has accepted."""

    run: str
    sequence: int
    request: str

    def sign(self, key: Ed25519PrivateKey) -> dict[str, Any]:
        """The position for a heartbeat, signed by the child."""
        return {"position": [self.run, self.sequence, self.request], "signature": key.sign(self._statement).hex()}

    @property
    def _statement(self) -> bytes:
        return PURPOSE + json.dumps([self.run, self.sequence, self.request]).encode()

    @staticmethod
    def read(heartbeat: dict[str, Any], node: str, identity: Identity) -> "Position | None":
        """The position in a heartbeat; None if there is none, or the child has not signed it."""
        match heartbeat.get("position"):
            case [str(run), int(sequence), str(request)]:
                found = Position(run, sequence, request)
            case _:
                return None
        try:
            identity.public_key(node).verify(bytes.fromhex(str(heartbeat.get("signature", ""))), found._statement)
        except (InvalidSignature, ValueError, KeyError):
            return None
        return found


class Presence:
    """The children of a parent. ``max_absence``: seconds without a heartbeat; None: a child may be away."""

    def __init__(self, journal: Journal, identity: Identity) -> None:
        self._journal, self._identity = journal, identity
        self._began = time()  # heartbeats of an earlier process say nothing about who is away now
        self.max_absence: float | None = None

    def reason_not_to_wait(self, node: str) -> str:
        """Why a child's reply is not awaited any longer; empty if it is."""
        if not self._identity.trusts(node):
            return "it was revoked"
        if self._journal.has_left(node):
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
            return f"it has given no sign of life for {self.max_absence:g} s"
        return ""

    def overtaken(self, node: str, envelope: Envelope) -> int:
        """The sequence number that a child accepted instead of this envelope's; 0 if it can accept this envelope.

        A child is ahead of its parent only if the parent was restored from a backup.
        """
        position = Position.read(self._journal.heartbeat(node), node, self._identity)
        if position is None or position.run != envelope.run:
            return 0
        same = position.sequence == envelope.sequence and position.request == envelope.request
        ahead = position.sequence - envelope.sequence
        return position.sequence if not same and 0 <= ahead <= MAX_JUMP else 0
