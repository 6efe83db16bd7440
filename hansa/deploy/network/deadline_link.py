"""A region's link to the nodes below it, with deadlines that end before the deadline of the region's parent."""

from collections.abc import Callable, Collection, Iterator, Mapping
from time import monotonic

from hansa.core.link import Answer, Link, Posting
from hansa.core.messages import NodeId, Request, Train

FRACTION = 0.9  # of the time that is left; the rest is for the aggregation and for the upload of the reply


class DeadlineLink:
    """A link whose deadlines are bounded by the parent's.

    ``deadline`` returns when the parent stops waiting, on the monotonic clock; the region's ``rounds`` for one request
    of the parent share that time.
    """

    def __init__(self, link: Link, rounds: int, deadline: Callable[[], float | None]) -> None:
        self._link, self._rounds, self._deadline = link, rounds, deadline
        self.size, self.remote = link.size, link.remote
        self._share: tuple[float | None, float | None] = (None, None)  # a deadline of the parent, and the region's own

    @property
    def posting(self) -> Posting | None:
        """Requests that are sent ahead, as an asynchronous region does."""
        return None if self._link.posting is None else self

    def post(self, asks: Mapping[NodeId, Request], arrival: bool = True) -> None:
        """Send requests; see `hansa.core.link.Posting`. They stay open when the parent stops waiting."""
        self._below.post(asks, arrival)

    def next_arrival(self, nodes: Collection[NodeId], until: float | None) -> NodeId | None:
        """Wait for the next reply; None after ``until``, or when the region's share of the parent's time has passed.

        An asynchronous region ends a round with the updates that are there, so its rounds share the time as needed.
        """
        deadline, now = self._deadline(), monotonic()
        if deadline != self._share[0]:
            self._share = (deadline, None if deadline is None else now + FRACTION * (deadline - now))
        limits = [at for at in (until, self._share[1]) if at is not None]
        return self._below.next_arrival(nodes, min(limits, default=None))

    def posted_failure(self, node: NodeId) -> str:
        """Why a node has no result; see `hansa.core.link.Posting`."""
        return self._below.posted_failure(node)

    @property
    def _below(self) -> Posting:
        assert self._link.posting is not None
        return self._link.posting

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask the nodes below; the deadline is ``until`` or the region's share of the parent's, whichever is first."""
        return self._link.ask(asks, self._earlier(asks, until))

    def _earlier(self, asks: Mapping[NodeId, Request], until: float | None) -> float | None:
        deadline, now = self._deadline(), monotonic()
        if deadline is None:
            return until
        left = max((self._rounds_left(request) for request in asks.values()), default=1)
        own = now + FRACTION * (deadline - now) / left
        return own if until is None else min(until, own)

    def _rounds_left(self, request: Request) -> int:
        """The region's rounds that are left for this request of the parent, including the current one."""
        if not isinstance(request, Train):
            return 1
        return self._rounds - (request.round - 1) % self._rounds
