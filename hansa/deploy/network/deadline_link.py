"""A region's link to those below it: it waits for nobody longer than its own parent waits for the region."""

from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from hansa.core.link import Answer, Link
from hansa.core.messages import NodeId, Request, Train

SHARE = 0.9  # of the time that is left; the rest is for the sum, and for bringing it


class DeadlineLink:
    """``due``: when the parent gives up, on the monotonic clock; ``rounds``: how many of them share that time."""

    def __init__(self, link: Link, rounds: int, due: Callable[[], float | None]) -> None:
        self._link, self._rounds, self._due = link, rounds, due
        self.size, self.remote = link.size, link.remote

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        return self._link.ask(asks, self._sooner(asks, until))

    def _sooner(self, asks: Mapping[NodeId, Request], until: float | None) -> float | None:
        due, now = self._due(), monotonic()
        if due is None:
            return until
        ours = now + SHARE * (due - now) / max((self._left(request) for request in asks.values()), default=1)
        return ours if until is None else min(until, ours)

    def _left(self, request: Request) -> int:
        """Rounds that are still to come, this one included: each has its part of the time."""
        if not isinstance(request, Train):
            return 1
        return self._rounds - (request.round - 1) % self._rounds
