"""A node's audit log: what it was asked, what it released, to whom, under which rule of its policy; hash-chained.

One JSON object per line. The last field of each is h_n = SHA-256(h_{n−1} ‖ the line up to that field), h_0 = 0: no
line can be changed, removed or moved without every later hash changing. What a chain cannot show is a missing tail, so
the number and hash of the last line are kept beside it, in an anchor (`audit.jsonl.head`). Note it elsewhere from time
to time: whoever may write both files can make both anew.

A line is on the disk before what it tells of leaves. A crash can tear the last line off midway: this is told apart
from damage, and the next writer replaces the rest by an entry that says so.
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

FIRST = "0" * 64
END = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')
LONGEST = 1 << 20  # bytes of a line: entries hold figures and reasons, never contents
NAME = "audit.jsonl"


class AuditError(RunFailed):
    """The log cannot be continued, so nothing may leave."""


@dataclass(frozen=True)
class Head:
    """The last entry's number and hash."""

    number: int
    hash: str


@dataclass(frozen=True)
class Finding:
    """What a verification found: how many entries are sound, and the first thing that is not."""

    file: Path
    entries: int
    head: Head
    line: int | None = None  # of the first bad entry
    damage: str = ""
    torn: int = 0  # bytes after the last whole line: a crash while writing

    @property
    def sound(self) -> bool:
        return not self.damage

    @property
    def text(self) -> str:
        if self.damage:
            place = f", line {self.line}" if self.line is not None else ""
            return f"{self.file}{place}: {self.damage}; {self.entries} entries before it are sound"
        torn = f", and {self.torn} bytes of one that a crash cut short" if self.torn else ""
        return f"{self.file}: {self.entries} entries, unbroken{torn}; the last is {self.head.number}:{self.head.hash}"


class AuditLog:
    """Appends entries. Several processes may: every append looks at the end of the file, under a lock."""

    def __init__(self, file: Path, node: str) -> None:
        self.file, self.node = file, node

    def add(self, event: str, **fields: Any) -> None:
        """Note one event; when this returns, it is on the disk."""
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
        """The last whole entry, and how many bytes of a torn one follow it; refuses to continue a log that was cut."""
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2 * LONGEST))
        *whole, rest = stream.read().split(b"\n")
        found = _entry(whole[-1]) if whole else Head(0, FIRST)
        if found is None or not _continues(found, read_anchor(self.file)):
            raise AuditError(
                f"nothing may leave, because the audit log {self.file} is not as it was left: look at it with 'hansa "
                "audit verify', keep it as evidence, and move it and its anchor away to begin a new one"
            )
        return found, len(rest)

    def _append(self, stream: BinaryIO, head: Head, event: str, fields: dict[str, Any]) -> Head:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"number": head.number + 1, "time": now, "node": self.node, "event": event} | fields
        line, hash = seal(entry, head.hash)
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())
        new = Head(head.number + 1, hash)
        draft = anchor_of(self.file).with_suffix(".draft")
        draft.write_text(f"{new.number}:{new.hash}\n")
        os.replace(draft, anchor_of(self.file))
        return new


def _continues(end: Head, anchor: Head | None) -> bool:
    """Whether a log that ends so may go on: a crash can leave the anchor behind the log, never before it."""
    if anchor is None:
        return end.number <= 1
    return end == anchor or 0 <= anchor.number < end.number


def seal(entry: dict[str, Any], before: str) -> tuple[bytes, str]:
    """An entry as a line of the log, and its hash."""
    body = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    hash = sha256(before.encode() + body).hexdigest()
    return body + f',"hash":"{hash}"}}\n'.encode(), hash


def anchor_of(file: Path) -> Path:
    return file.with_name(file.name + ".head")


def read_anchor(file: Path) -> Head | None:
    """The anchor beside a log; None where there is none. One that makes no sense anchors nothing that exists."""
    try:
        text = anchor_of(file).read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        return Head(-1, "")
    return _head(text.removesuffix("\n")) or Head(-1, "")


def parse_head(text: str) -> Head:
    """A number and hash as somebody noted them."""
    found = _head(text)
    if found is None:
        raise UserError(f"{text!r} is no entry's number and hash: write NUMBER:HASH, as 'hansa audit verify' prints it")
    return found


def _head(text: str) -> Head | None:
    found = re.fullmatch(r"(\d+):([0-9a-f]{64})", text, re.ASCII)
    return Head(int(found[1]), found[2]) if found else None


def _entry(line: bytes) -> Head | None:
    """A line's number and hash as they are written; None if it is no entry."""
    end = END.search(line)
    try:
        number = json.loads(line)["number"] if end else None
    except (ValueError, TypeError, KeyError):
        return None
    return Head(number, end[1].decode()) if end and isinstance(number, int) else None


def verify(file: Path, noted: Head | None = None) -> Finding:
    """Follow the chain from the first line; ``noted``: a number and hash that somebody wrote down earlier."""
    anchors = [a for a in (read_anchor(file), noted) if a is not None]
    expected = {a.number: a for a in anchors}
    head, torn = Head(0, FIRST), 0
    for index, line in enumerate(_lines(file), start=1):
        if not line.endswith(b"\n") and len(line) < LONGEST:
            torn = len(line)
            break
        problem, next_head = _follow(line.removesuffix(b"\n"), head, expected)
        if next_head is None:
            return Finding(file, head.number, head, index, problem)
        head = next_head
    if any(a.number > head.number for a in anchors):
        newest = max(a.number for a in anchors)
        missing = f"its end is missing: entry {newest} was written, and the log ends with {head.number}"
        return Finding(file, head.number, head, head.number + 1, missing)
    if any(a.number < 0 for a in anchors):
        return Finding(file, head.number, head, None, f"its anchor {anchor_of(file).name} is damaged")
    if head.number > 1 and read_anchor(file) is None:
        return Finding(file, head.number, head, None, f"its anchor {anchor_of(file).name} is missing")
    return Finding(file, head.number, head, torn=torn)


def _follow(line: bytes, head: Head, expected: dict[int, Head]) -> tuple[str, Head | None]:
    """The head after one more line, or what is wrong with the line."""
    found, end = _entry(line), END.search(line)
    if found is None or end is None:
        return "it is not an entry of an audit log", None
    if found.number != head.number + 1:
        return f"entry {found.number} stands where {head.number + 1} should: one was removed, added or moved", None
    if sha256(head.hash.encode() + line[: end.start()]).hexdigest() != found.hash:
        return "it was changed after it was written, or what stood before it was", None
    if expected.get(found.number, found) != found:
        return "it is not the entry that was noted in the anchor", None
    return "", found


def _lines(file: Path) -> Iterator[bytes]:
    if not file.exists():
        return
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST):
            yield line


def entries(file: Path) -> Iterator[dict[str, Any]]:
    """The entries as they stand there, sound or not; lines that are none are left out."""
    for line in _lines(file):
        if _entry(line.rstrip(b"\n")) is not None:
            yield json.loads(line)
