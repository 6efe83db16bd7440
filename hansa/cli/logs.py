"""What long-running processes tell their operators: lines for people, or one JSON object per line for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from hansa.core.errors import printable

QUIET = ("asyncio", "urllib3", "transformers", "torch")  # what libraries say below a warning helps nobody here
LONGEST = 10_000  # characters of a line
OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How log lines are written."""

    text = "text"
    json = "json"


class LogLevel(StrEnum):
    """The least important lines that are written."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="text for people, json for machines")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="how much is told on standard error")]


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


def configure(level: LogLevel, format: LogFormat) -> None:
    """Everything goes to standard error, for whatever collects it there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Objects() if format is LogFormat.json else Lines())
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
