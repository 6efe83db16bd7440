"""A node's audit log: requests, releases and refusals, each with its recipient and the rule that decided; hash-chained.

The log has one JSON object per line. Its last field is h_n = SHA-256(h_{n−1} ‖ the line up to that field), h_0 = 0: a
changed, removed or moved line changes every later hash. A hash chain cannot show that its end was cut off, so the
number and hash of the last entry also stand in an anchor file beside the log (`audit.jsonl.head`). Anyone with write
access to both files can rewrite both: store the last number and hash in another place from time to time.

An entry is on the disk before the data it describes leaves. A crash may leave an incomplete last line; verification
tells this apart from damage, and the next append replaces it by an entry that says so.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from hansa.core.errors import RunFailed, UserError

FIRST_HASH = "0" * 64
END = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
MAX_LINE = 1 << 20  # bytes: entries hold figures and reasons, never contents
AUDIT_LOG = "audit.jsonl"


class AuditError(RunFailed):
    """The audit log cannot be continued, so the node must not release anything."""


@dataclass(frozen=True)
class Head:
    """The number and hash of an entry, usually the last."""

    number: int
    hash: str


@dataclass(frozen=True)
class Verification:
    """The result of verifying a log: how many entries are intact, and the first problem."""

    file: Path
    entries: int
    head: Head
    line: int | None = None  # of the first bad entry
    damage: str = ""
    torn: int = 0  # bytes of an incomplete last line, which a crash may leave

    @property
    def sound(self) -> bool:
        """Whether the log is intact."""
        return not self.damage

    @property
    def text(self) -> str:
        """The result in one sentence."""
        if self.damage:
            place = f", line {self.line}" if self.line is not None else ""
            return f"{self.file}{place}: {self.damage}; the {self.entries} entries before it are intact"
        torn = f", and {self.torn} bytes of an incomplete entry after a crash" if self.torn else ""
        return f"{self.file}: {self.entries} entries, intact{torn}; the last is {self.head.number}:{self.head.hash}"


class AuditLog:
    """Appends entries. Several processes may append: each reads the end of the file under a lock."""

    def __init__(self, file: Path, node: str) -> None:
        self.file, self.node = file, node

    def add(self, event: str, **fields: Any) -> None:
        """Append an entry; when this returns, the entry is on the disk.

        Raises `AuditError` if the entry cannot be written, or if the log was changed since the last entry.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                head, torn = self._end(stream)
                if torn:
                    stream.truncate(stream.seek(0, os.SEEK_END) - torn)
                    head = self._append(stream, head, "recovered", {"torn": torn})
                self._append(stream, head, event, fields)
        except OSError as error:
            raise AuditError(f"nothing may leave, because the audit log cannot be written ({error})") from None

    def _end(self, stream: BinaryIO) -> tuple[Head, int]:
        """The last complete entry, and the bytes of an incomplete one after it; raises `AuditError` for a cut log."""
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2 * MAX_LINE))
        *complete, rest = stream.read().split(b"\n")
        found = _entry(complete[-1]) if complete else Head(0, FIRST_HASH)
        if found is None or not _continues(found, read_anchor(self.file)):
            raise AuditError(
                f"nothing may leave, because the audit log {self.file} was changed since the last entry: inspect it "
                "with 'hansa audit verify', keep it as evidence, and move it and its anchor away to start a new one"
            )
        return found, len(rest)

    def _append(self, stream: BinaryIO, head: Head, event: str, fields: dict[str, Any]) -> Head:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"number": head.number + 1, "time": now, "node": self.node, "event": event} | fields
        line, hash = chained_line(entry, head.hash)
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
        new = Head(head.number + 1, hash)
        draft = anchor_file(self.file).with_suffix(".draft")
        draft.write_text(f"{new.number}:{new.hash}\n")
        os.replace(draft, anchor_file(self.file))
        return new


def _continues(end: Head, anchor: Head | None) -> bool:
    """Whether a log with this end may be continued: a crash can leave the anchor behind the log, never ahead of it."""
    if anchor is None:
        return end.number <= 1
    return end == anchor or 0 <= anchor.number < end.number


def chained_line(entry: dict[str, Any], previous: str) -> tuple[bytes, str]:
    """Return an entry as a line of the log, and its hash; ``previous``: the hash of the entry before it."""
    body = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    hash = sha256(previous.encode() + body).hexdigest()
    return body + f',"hash":"{hash}"}}\n'.encode(), hash


def anchor_file(file: Path) -> Path:
    """The path of a log's anchor."""
    return file.with_name(file.name + ".head")


def read_anchor(file: Path) -> Head | None:
    """The anchor of a log; None if there is none. A damaged anchor gives a `Head` that no log can have."""
    try:
        text = anchor_file(file).read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        return Head(-1, "")
    return _head(text.removesuffix("\n")) or Head(-1, "")


def parse_head(text: str) -> Head:
    """Parse ``NUMBER:HASH``, as `hansa audit verify` prints it; raises `UserError` for anything else."""
    found = _head(text)
    if found is None:
        raise UserError(
            f"{text!r} is not the number and hash of an entry: write NUMBER:HASH, as 'hansa audit verify' prints it"
        )
    return found


def _head(text: str) -> Head | None:
    found = re.fullmatch(r"(\d+):([0-9a-f]{64})", text, re.ASCII)
    return Head(int(found[1]), found[2]) if found else None


def _entry(line: bytes) -> Head | None:
    """The number and hash that a line states; None if the line is not an entry."""
    end = END.search(line)
    try:
        number = json.loads(line)["number"] if end else None
    except (ValueError, TypeError, KeyError):
        return None
    return Head(number, end[1].decode()) if end and isinstance(number, int) else None


def verify(file: Path, noted: Head | None = None) -> Verification:
    """Check the hash chain of a log from its first line; ``noted``: an entry's number and hash, stored elsewhere."""
    anchors = [a for a in (read_anchor(file), noted) if a is not None]
    expected = {a.number: a for a in anchors}
    head, torn = Head(0, FIRST_HASH), 0
    for index, line in enumerate(_lines(file), start=1):
        if not line.endswith(b"\n") and len(line) < MAX_LINE:
            torn = len(line)
            break
        problem, next_head = _follow(line.removesuffix(b"\n"), head, expected)
        if next_head is None:
            return Verification(file, head.number, head, index, problem)
        head = next_head
    if any(a.number > head.number for a in anchors):
        newest = max(a.number for a in anchors)
        missing = f"its end is missing: entry {newest} was written, and the log ends with entry {head.number}"
        return Verification(file, head.number, head, head.number + 1, missing)
    if any(a.number < 0 for a in anchors):
        return Verification(file, head.number, head, None, f"its anchor {anchor_file(file).name} is damaged")
    if head.number > 1 and read_anchor(file) is None:
        return Verification(file, head.number, head, None, f"its anchor {anchor_file(file).name} is missing")
    return Verification(file, head.number, head, torn=torn)


def _follow(line: bytes, head: Head, expected: dict[int, Head]) -> tuple[str, Head | None]:
    """The head after one more line, or what is wrong with the line."""
    found, end = _entry(line), END.search(line)
    if found is None or end is None:
        return "it is not an entry of an audit log", None
    if found.number != head.number + 1:
        return f"it is entry {found.number} instead of {head.number + 1}: one was removed, added or moved", None
    if sha256(head.hash.encode() + line[: end.start()]).hexdigest() != found.hash:
        return "it was changed after it was written, or an entry before it was", None
    if expected.get(found.number, found) != found:
        return "its hash is not the one in the anchor or in --noted", None
    return "", found


def _lines(file: Path) -> Iterator[bytes]:
    if not file.exists():
        return
    with file.open("rb") as stream:
        while line := stream.readline(MAX_LINE):
            yield line


def entries(file: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, without verification; lines that are not entries are left out."""
    for line in _lines(file):
        if _entry(line.rstrip(b"\n")) is not None:
            yield json.loads(line)
