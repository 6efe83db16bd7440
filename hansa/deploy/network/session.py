"""A connection to the broker that comes back: whatever breaks, it connects again, for ever, and says so."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TypeVar

from hansa.deploy.network.address import Address, Here, Proxy
from hansa.deploy.network.connection import Broken, Connection, Message
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.tls import Tls

T = TypeVar("T")


def unsaid(text: str) -> None:
    """For a second connection to the same place: it comes and goes with the first, which says so."""


class Session:
    """``listen`` are the subjects to be subscribed on every connection."""

    def __init__(
        self,
        address: Address,
        tls: Tls | None,
        inbox: str,
        listen: list[str],
        say: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
        proxy: Proxy | Here | None = None,
    ) -> None:
        self._address, self._tls, self._inbox, self._listen = address, tls, inbox, listen
        self._say, self._stop, self._proxy = say, stop, proxy
        self._connection: Connection | None = None
        self.connections = 0  # how often it was connected: whoever sees it grow looks again at what it may have missed

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def do(self, work: Callable[[Connection], T], until: float | None = None) -> T:
        """Work that may be repeated, on a connection; again on a new one until it succeeds."""
        return Retry(self._say, self._stop, until).keep_trying(lambda: self._attempt(work))

    def next(self, seconds: float, until: float | None = None) -> Message | None:
        """The next message of a subscription. A broken connection is nothing heard; it is made again ``until`` then,
        or for ever."""
        try:
            return self._attempt(lambda connection: connection.next(seconds))
        except Broken as error:
            self._say(str(error))
        with suppress(GaveUp) if until is not None else nullcontext():
            self.do(lambda connection: None, until)
        return None

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            connection = Connection(self._address, self._tls, self._inbox, proxy=self._proxy)
            try:
                for subject in self._listen:
                    connection.subscribe(subject)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.connections += 1
            self._say(f"connected to {self._address[0]}:{self._address[1]}")
        try:
            return work(self._connection)
        except Broken:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
