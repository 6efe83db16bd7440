"""What the attacks on keys and members share: waiting, and an agent that never releases anything."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from hansa.core.messages import Failure

WAIT_SECONDS = 60.0


def wait(what: str, condition: Callable[[], object]) -> None:
    """Wait until a condition is true; fails after `WAIT_SECONDS`."""
    until = monotonic() + WAIT_SECONDS
    while not condition():
        assert monotonic() < until, f"{what}: not within {WAIT_SECONDS:.0f} s"
        sleep(0.02)


class FailingService:
    """Answers every request with a failure that names the agent."""

    anchors = None

    def __init__(self, name: str = "agent") -> None:
        self.name, self.refusals = name, list[str]()

    def open_run(self, folder: Path, settings: bytes) -> Any:
        return lambda request: Failure(f"answer of {self.name}")

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        self.refusals.append(reason)


def no_log(text: str) -> None:
    """A log that keeps nothing."""
