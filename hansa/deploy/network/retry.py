"""Trying again: for ever or until a moment, at growing intervals, and never silently."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from hansa.deploy.network.connection import Broken, Refused

SHORTEST, LONGEST = 0.05, 3.0
REMIND_SECONDS = 60.0
PASSING = {408, 409, 429, 503, 10008, 10023, 10074, 10076, 10077, 10084}  # JetStream's ways to say "not now"

T = TypeVar("T")


class GaveUp(Exception):
    """Nobody waits for this any more."""


class Retry:
    """``stop`` says whether to give up; ``say`` hears of the first failure, of each new reason, and now and then."""

    def __init__(self, say: Callable[[str], None], stop: Callable[[], bool], until: float | None = None) -> None:
        self._say, self._stop, self._until = say, stop, until
        self._pause, self._reason, self._said = SHORTEST, "", -REMIND_SECONDS

    def keep_trying(self, attempt: Callable[[], T]) -> T:
        while True:
            if self._stop():
                raise GaveUp
            try:
                return attempt()
            except Broken as error:
                self._wait(str(error))
            except Refused as error:
                if error.code not in PASSING:
                    raise
                self._wait(str(error))

    def progress(self) -> None:
        """Something was achieved, though not all: the next pause is short again."""
        self._pause = SHORTEST

    def _wait(self, reason: str) -> None:
        now = monotonic()
        if self._until is not None and now >= self._until:
            raise GaveUp
        if reason != self._reason or now - self._said >= REMIND_SECONDS:
            self._say(f"{reason}; trying again")
            self._reason, self._said = reason, now
        end = now + self._pause
        if self._until is not None:
            end = min(end, self._until)
        while not self._stop() and (left := end - monotonic()) > 0:
            sleep(min(left, 0.2))
        self._pause = min(2 * self._pause, LONGEST)
