"""The open connections of a server, with limits that keep strangers from turning members away.

A connection is pending until a member's request has arrived on it. Pending connections have a fixed number of places in
all and per address. When there is no place, the oldest pending connection of the address that holds most of them is
closed, and the new one gets its place: a member needs its place for some milliseconds, and a stranger with idle sockets
loses its own. Pending connections that send nothing cost a file descriptor and no thread. Connections of members have
places of their own, which no stranger can take; a member that opens more than its places loses its oldest ones. What
takes too long before the first request ends by a deadline for all of it, not for one packet.
"""

import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

MAX_PENDING = 16_384


def pending_places() -> int:
    """How many pending connections fit: half of the file descriptors that this process may have."""
    return max(64, min(MAX_PENDING, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server holds open; 0 pending ones: what the process's file descriptors allow."""

    pending: int = 0  # before the first request of a member, in all
    pending_share: float = 0.75  # of them from one address: several members may share the address of a gateway
    transfers: int = 3  # of weights, for each member
    brokers: int = 16  # to the NATS server, for each member: it needs two, and old ones live for a minute
    pages: int = 32  # of people at the pages, for each address
    all_pages: int = 256
    guests: int = 64  # requests of strangers that are being answered at a time
    guests_per_address: int = 32
    first_request_seconds: float = 10.0


TRANSFER, BROKER, PAGE = "transfer", "broker", "page"  # kinds of connections that were admitted


class ConnectionTable:
    """The open connections: pending ones by address and age, and those that were admitted."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._places = limits.pending or pending_places()
        self._per_address = max(1, int(self._places * limits.pending_share))
        self._most = {TRANSFER: limits.transfers, BROKER: limits.brokers, PAGE: limits.pages}
        self._lock = threading.Lock()
        self._pending: dict[socket.socket, tuple[str, float]] = {}  # in order of arrival: address and time
        self._held: Counter[str] = Counter()  # pending connections by address
        self._guests: Counter[str] = Counter()  # strangers' requests by address
        self._admitted: dict[socket.socket, tuple[str, str]] = {}  # in order of arrival: owner and kind

    def add(self, connection: socket.socket, address: str) -> None:
        """Give a new connection a place; if there is none, close the oldest pending one of the busiest address."""
        with self._lock:
            if self._held[address] >= self._per_address:
                self._close_oldest(address)
            elif len(self._pending) >= self._places:
                self._close_oldest(self._held.most_common(1)[0][0])
            self._pending[connection] = (address, self._clock())
            self._held[address] += 1

    def replace(self, connection: socket.socket, secured: socket.socket) -> None:
        """Note that a pending connection goes on as its TLS socket; raises `ConnectionError` if it lost its place."""
        with self._lock:
            if connection not in self._pending:
                raise ConnectionError("the connection was closed in favour of a newer one")
            self._pending[secured] = self._pending.pop(connection)

    def admit(self, connection: socket.socket, owner: str, kind: str) -> bool:
        """Give a connection one of its owner's places of a kind; the owner's oldest connection of that kind may end.

        False if there is no place in all. Raises `ConnectionError` if the connection has lost its pending place.
        """
        with self._lock:
            if connection not in self._pending and connection not in self._admitted:
                raise ConnectionError("the connection was closed in favour of a newer one")
            if kind == PAGE and sum(one == PAGE for _, one in self._admitted.values()) >= self.limits.all_pages:
                return False
            self._forget(connection)
            own = [one for one, place in self._admitted.items() if place == (owner, kind)]
            if len(own) >= self._most[kind]:
                del self._admitted[own[0]]
                shut_down(own[0])
            self._admitted[connection] = owner, kind
            return True

    def enter(self, address: str) -> bool:
        """Take a place for answering a stranger's request; False if there is none."""
        with self._lock:
            if self._guests.total() >= self.limits.guests or self._guests[address] >= self.limits.guests_per_address:
                return False
            self._guests[address] += 1
            return True

    def leave(self, address: str) -> None:
        """Give the place of `enter` back."""
        with self._lock:
            self._guests[address] -= 1
            if not self._guests[address]:
                del self._guests[address]

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._admitted.pop(connection, None)
        if (place := self._pending.pop(connection, None)) is not None:
            self._held[place[0]] -= 1
            if not self._held[place[0]]:
                del self._held[place[0]]

    def close_overdue(self) -> None:
        """Close pending connections whose first request takes too long."""
        with self._lock:
            end = self._clock() - self.limits.first_request_seconds
            overdue = [one for one, (_, since) in self._pending.items() if since < end]
            for connection in overdue:
                self._close(connection)

    def make_room(self) -> None:
        """Close the older half of the pending connections: the process has no file descriptors left."""
        with self._lock:
            for connection in list(self._pending)[: (len(self._pending) + 1) // 2]:
                self._close(connection)

    def admitted(self) -> list[tuple[socket.socket, str]]:
        """The admitted connections, each with its owner."""
        with self._lock:
            return [(connection, owner) for connection, (owner, _) in self._admitted.items()]

    def close_all(self) -> None:
        """Close every connection."""
        with self._lock:
            for connection in (*self._pending, *self._admitted):
                shut_down(connection)

    def _close_oldest(self, address: str) -> None:
        self._close(next(one for one, (place, _) in self._pending.items() if place == address))

    def _close(self, connection: socket.socket) -> None:
        self._forget(connection)
        shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """End a connection that another thread may be reading; that thread closes it.

    The plain socket's method is called: that of a TLS socket would first take its TLS state away from the other thread.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
