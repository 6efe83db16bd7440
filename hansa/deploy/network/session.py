"""A connection to the NATS broker that is opened again, with its subscriptions, whenever it breaks."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.connection import Connection, Message
from hansa.deploy.network.retry import GaveUp, Retry
from hansa.deploy.network.route import Route

T = TypeVar("T")


def no_log(text: str) -> None:
    """Log nothing: for a second session to the same broker, whose failures the first one logs."""


class Session:
    """A lasting connection to the broker. ``subscriptions`` are made on every new connection.

    ``key`` returns the node's private key, which may be renewed.
    """

    def __init__(
        self,
        route: Route,
        key: Callable[[], Ed25519PrivateKey],
        inbox: str,
        subscriptions: list[str],
        log: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._route, self._key, self._inbox, self._subscriptions = route, key, inbox, subscriptions
        self._log, self._stop = log, stop
        self._connection: Connection | None = None
        self.connections = 0  # connections so far; when it grows, messages may have been missed in between

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def do(self, work: Callable[[Connection], T], until: float | None = None) -> T:
        """Run ``work`` on the connection; if it breaks, run it again on a new one. ``work`` must be repeatable."""
        return Retry(self._log, self._stop, until).keep_trying(lambda: self._attempt(work))

    def next(self, seconds: float, until: float | None = None) -> Message | None:
        """Return the next message of a subscription, or None if none came within ``seconds``.

        If the connection breaks, None is returned after it was opened again; ``until`` bounds the attempts.
        """
        try:
            return self._attempt(lambda connection: connection.next(seconds))
        except ConnectionLost as error:
            self._log(str(error))
        with suppress(GaveUp) if until is not None else nullcontext():
            self.do(lambda connection: None, until)
        return None

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        if self._connection is None:
            connection = Connection(self._route, self._key(), self._inbox)
            try:
                for subject in self._subscriptions:
                    connection.subscribe(subject)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.connections += 1
            self._log(f"connected to {self._route}")
        try:
            return work(self._connection)
        except ConnectionLost:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
