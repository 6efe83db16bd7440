"""Each side keeps the heads of the other side's audit log, so that a log that was rewritten as a whole is found.

A hash chain shows that an entry was changed, and its anchor that the end was cut off; a user who can write both files
can rewrite both. Every signed message between two nodes therefore carries the head of its sender's log (the number and
hash of the last entry), and the receiver keeps it, with the signed message as proof. `hansa audit compare LOG HEADS`
looks for every kept head in the log: a rewritten log lacks them.
"""

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hansa.core.errors import UserError
from hansa.privacy.policy.audit_log import AuditLog, Head, entries, parse_head, read_anchor, verify

HEADS = "heads.jsonl"
HEAD_FORMAT = r"\d{1,15}:[0-9a-f]{64}"  # NUMBER:HASH


@dataclass(frozen=True)
class NotedHead:
    """The head of a node's log as a message of that node stated it; ``proof``: the signed message, in base64.

    ``log``: the run whose log it is, since a coordinator has a log for each run; empty for a node with one log.
    """

    node: str
    head: Head
    time: str
    proof: str
    log: str = ""


class HeadBook:
    """The heads that other nodes stated, in ``file``."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._last: dict[tuple[str, str], str] = {}

    def note(self, node: str, head: str, proof: bytes, run: str = "", log: str = "") -> None:
        """Keep a head; the same head twice is kept once.

        ``run``: of the message. Agents read the stored requests of open runs again and again: the heads of two runs
        take turns, and must not be kept each time. ``log``: see `NotedHead`.
        """
        if not head or self._last.get((node, run)) == head:
            return
        line = {"node": node, "log": log, "head": head, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line | {"proof": b64encode(proof).decode()}, ensure_ascii=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._last[node, run] = head

    def heads(self) -> Iterator[NotedHead]:
        """All heads; lines that a crash cut off are left out."""
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                raw: dict[str, Any] = json.loads(line)
                yield NotedHead(raw["node"], parse_head(raw["head"]), raw["time"], raw["proof"], raw.get("log", ""))
            except (ValueError, KeyError, TypeError, UserError):
                continue


@dataclass(frozen=True)
class Anchors:
    """A node's own log, whose head goes into its messages, and the heads of those it talks to."""

    log: AuditLog
    book: HeadBook

    @staticmethod
    def beside(log: AuditLog) -> "Anchors":
        """The anchors of a log, with the book in the same folder."""
        return Anchors(log, HeadBook(log.file.parent / HEADS))

    def head(self) -> str:
        """The head of the node's own log, as messages carry it; empty before the first entry."""
        found = read_anchor(self.log.file)
        return f"{found.number}:{found.hash}" if found is not None and found.number > 0 else ""


@dataclass(frozen=True)
class Comparison:
    """A log against the heads that another node kept of it. ``others``: runs of which it has no head at all."""

    log: Path
    node: str
    noted: int
    damage: str = ""
    others: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether the log has every kept head."""
        return not self.damage

    @property
    def text(self) -> str:
        """The result in one sentence."""
        if self.damage:
            return f"{self.log}: {self.damage}"
        text = f"{self.log}: it has all {self.noted} heads of '{self.node}' that the other side kept"
        if self.others:
            text += f"; the heads of other runs ({', '.join(self.others)}) belong to the logs of these runs"
        return text


def compare(log: Path, heads: Path) -> Comparison:
    """Look for the heads that another node kept in ``heads`` in a node's log.

    A coordinator has a log for each run. Where this one has a head of its run, the heads of its other logs are only
    named. Raises `UserError` if there is no log, or no head of its node.
    """
    node = next((str(entry["node"]) for entry in entries(log)), "")
    if not node:
        raise UserError(f"{log} has no entries of an audit log")
    if not heads.is_file():
        raise UserError(f"{heads}: there is no such file; it is {HEADS} in the run directory or in the silo's home")
    noted = [one for one in HeadBook(heads).heads() if one.node == node]
    if not noted:
        raise UserError(f"{heads} has no head of the log of '{node}'")
    found = verify(log)
    if not found.sound:
        return Comparison(log, node, len(noted), found.damage)
    hashes = {int(entry["number"]): str(entry["hash"]) for entry in entries(log)}
    of_this_log = {one.log for one in noted if one.log and hashes.get(one.head.number) == one.head.hash}
    others = tuple(sorted({one.log for one in noted if one.log} - of_this_log)) if of_this_log else ()
    noted = [one for one in noted if one.log not in others]
    for one in noted:
        if one.head.number not in hashes:
            damage = f"entry {one.head.number}, which '{node}' stated on {one.time}, is missing"
            return Comparison(log, node, len(noted), f"{damage}: the log was cut or replaced")
        if hashes[one.head.number] != one.head.hash:
            damage = f"entry {one.head.number} is not the one that '{node}' stated on {one.time}"
            return Comparison(log, node, len(noted), f"{damage}: the log was rewritten")
    return Comparison(log, node, len(noted), others=others)
