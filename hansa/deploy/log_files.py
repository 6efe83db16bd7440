"""Log lines for people or as JSON objects, and files of them that rotate.

A file that reaches `MAX_BYTES` is renamed to FILE.1, FILE.1 to FILE.2, and so on; the oldest is deleted. A disk that
takes no more loses log lines and ends nothing.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from hansa.core.errors import printable

LONGEST = 10_000  # characters of a line
MAX_BYTES, KEPT = 10_000_000, 5  # of a file, and how many older ones are kept
OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
TAIL = 256 << 10  # bytes of a file that are read for a page


class Lines(logging.Formatter):
    """Log lines for people, such as `12:30:59 warning hansa.policy: …`."""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as a line for people."""
        at = datetime.fromtimestamp(record.created, UTC)
        return f"{at:%H:%M:%S} {record.levelname.lower()} {record.name}: {told(record)}"


class Objects(logging.Formatter):
    """What was said, by whom and when, and whatever was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as a JSON object."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "by": record.name, "text": told(record)}
        entry |= {key: value for key, value in vars(record).items() if key not in OWN}
        return json.dumps(entry, ensure_ascii=False, default=str)


def told(record: logging.LogRecord) -> str:
    """One line. Of an exception its type alone: what it says, and where, may quote data."""
    text = printable(record.getMessage(), LONGEST)
    kind = record.exc_info[0] if record.exc_info else None
    return f"{text} ({kind.__name__})" if kind else text


class RotatingLog(RotatingFileHandler):
    """JSON lines in a file that rotates; it is made with the first line."""

    def __init__(self, file: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        super().__init__(file, maxBytes=max_bytes, backupCount=kept, encoding="utf-8", delay=True)
        self.setFormatter(Objects())
        self._failing = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; rotate the file before it, if it is full."""
        try:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            self.handleError(record)
            return
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say once, in one sentence, that lines are lost; a log never ends what it describes."""
        if not self._failing:
            self._failing = True
            error = sys.exc_info()[1]
            reason = getattr(error, "strerror", None) or type(error).__name__
            sys.stderr.write(f"log lines are lost: {self.baseFilename} cannot be written ({reason})\n")


def read_log(file: Path, last: int) -> list[Mapping[str, Any]]:
    """The newest lines of a log of JSON lines, the newest first; none if there is no file."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - TAIL))
            lines = stream.read(TAIL).split(b"\n")
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:  # cut off at the beginning of what was read, or by a crash
            continue
        if isinstance(entry, dict):
            found.append(entry)
        if len(found) >= last:
            break
    return found
