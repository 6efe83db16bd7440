"""Everything that can go wrong on purpose.

HansaError
├── UserError          the user's input is wrong: one sentence, exit code 2, nothing written
│   ├── ConfigError    … in a federation file
│   └── DataError      … in a data file
└── RunFailed          the run could not go on: one sentence, exit code 1, resumable

A silo that drops out is not an error but a value: `messages.Failure`.
"""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from typing import Any


class HansaError(Exception):
    """Base of all errors that are raised on purpose; ``exit_code`` is the command line's."""

    exit_code = 1


class UserError(HansaError):
    """The user's input is wrong."""

    exit_code = 2


class ConfigError(UserError):
    """The federation file is wrong."""


class DataError(UserError):
    """A data file is wrong."""


class RunFailed(HansaError):
    """The run could not go on; it can be resumed."""


def place(error: BaseException) -> str:
    """Where an error arose, as FILE:LINE; unlike a traceback it quotes nothing."""
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '').name}:{error.lineno}"
    frames = extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"


def did_you_mean(seen: str, known: Iterable[str]) -> str:
    """A clause that names the closest known word, or lists them all when nothing is close."""
    known = sorted(known)
    close = get_close_matches(seen, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known are: {', '.join(known)}"


def parse_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON from another party; every defect is a `ValueError`, also endless nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def printable(text: str, longest: int = 300) -> str:
    """Text from another party made fit for a log or a screen: one line, no control characters, bounded length."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return shown if len(shown) <= longest else f"{shown[:longest]} …"
