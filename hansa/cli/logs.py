"""What long-running processes tell their operators: lines for people, or one JSON object per line for machines."""

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hansa.deploy.log_files import Lines, Objects, RotatingLog

QUIET = ("asyncio", "urllib3", "transformers", "torch")  # what libraries say below a warning helps nobody here


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
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="how much is logged to standard error")]


LogFileOption = Annotated[
    Path | None,
    typer.Option(
        "--log-file", metavar="FILE", help="also write JSON lines there; 10 MB per file, five older ones kept"
    ),
]


def configure(level: LogLevel, format: LogFormat, file: Path | None = None) -> None:
    """Everything goes to standard error, for whatever collects it there, and to a rotating file if one is given."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Objects() if format is LogFormat.json else Lines())
    handlers: list[logging.Handler] = [handler, *([RotatingLog(file)] if file is not None else [])]
    logging.basicConfig(level=level.value.upper(), handlers=handlers, force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def log_files() -> list[logging.Handler]:
    """The rotating files that the process logs to."""
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, RotatingLog)]
