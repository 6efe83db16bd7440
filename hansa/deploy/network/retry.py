"""Repeating an operation on the network with growing pauses, until it succeeds, a deadline passes or it is stopped."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.connection import JetStreamError

MIN_PAUSE, MAX_PAUSE = 0.05, 3.0
REMIND_SECONDS = 60.0
TEMPORARY = {408, 409, 429, 503, 10008, 10023, 10074, 10076, 10077, 10084}  # JetStream codes that may pass

T = TypeVar("T")


class GaveUp(Exception):
    """The operation was stopped, or its deadline passed."""


class Retry:
    """Repeats one operation.

    ``stop`` tells whether to give up; ``until`` is a deadline on the monotonic clock. ``log`` receives the first
    failure, every new reason, and a reminder once a minute.
    """

    def __init__(self, log: Callable[[str], None], stop: Callable[[], bool], until: float | None = None) -> None:
        self._log, self._stop, self._until = log, stop, until
        self._pause, self._reason, self._logged = MIN_PAUSE, "", -REMIND_SECONDS

    def keep_trying(self, attempt: Callable[[], T]) -> T:
        """Return the result of the first ``attempt`` that succeeds; raises `GaveUp` if none does in time."""
        while True:
            if self._stop():
                raise GaveUp
            try:
                return attempt()
            except ConnectionLost as error:
                self._wait(str(error))
            except JetStreamError as error:
                if error.code not in TEMPORARY:
                    raise
                self._wait(str(error))

    def progress(self) -> None:
        """Note that an attempt got further than the last one: the next pause is short again."""
        self._pause = MIN_PAUSE

    def _wait(self, reason: str) -> None:
        now = monotonic()
        if self._until is not None and now >= self._until:
            raise GaveUp
        if reason != self._reason or now - self._logged >= REMIND_SECONDS:
            self._log(f"{reason}; trying again")
            self._reason, self._logged = reason, now
        end = now + self._pause
        if self._until is not None:
            end = min(end, self._until)
        while not self._stop() and (left := end - monotonic()) > 0:
            sleep(min(left, 0.2))
        self._pause = min(2 * self._pause, MAX_PAUSE)
