"""The open connections of a server, with limits that keep strangers from turning members away.

A connection is pending until its TLS handshake has shown a member's certificate. Pending connections have a fixed
number of places in all and per address. When there is no place, the oldest pending connection of the address that holds
most of them is closed, and the new one gets its place: a member needs its place for some milliseconds, and a stranger
with idle sockets loses its own. Connections of members have places of their own, so many per member, which no stranger
can take. A handshake that takes too long ends by a deadline for the whole of it, not for one packet.
"""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections a server holds open."""

    pending: int = 128  # before the handshake, in all
    pending_per_address: int = 64  # several members may share the address of a gateway
    per_member: int = 3
    handshake_seconds: float = 10.0


class ConnectionTable:
    """The open connections: pending ones by address and age, and those of members."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float] = monotonic) -> None:
        self.limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._pending: dict[socket.socket, tuple[str, float]] = {}  # in order of arrival: address and time
        self._members: dict[socket.socket, str] = {}

    def add(self, connection: socket.socket, address: str) -> None:
        """Give a new connection a place; if there is none, close the oldest pending one of the busiest address."""
        with self._lock:
            held = Counter(place for place, _ in self._pending.values())
            if held[address] >= self.limits.pending_per_address:
                self._close_oldest(address)
            elif len(self._pending) >= self.limits.pending:
                self._close_oldest(held.most_common(1)[0][0])
            self._pending[connection] = (address, self._clock())

    def admit(self, connection: socket.socket, member: str) -> bool:
        """Move a connection to a member's places; False if the member has taken all of them.

        Raises `ConnectionError` if the connection has lost its place during the handshake.
        """
        with self._lock:
            if connection not in self._pending:
                raise ConnectionError("the connection was closed in favour of a newer one")
            del self._pending[connection]
            if list(self._members.values()).count(member) >= self.limits.per_member:
                return False
            self._members[connection] = member
            return True

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._pending.pop(connection, None)
            self._members.pop(connection, None)

    def close_overdue(self) -> None:
        """Close pending connections whose handshake takes too long."""
        with self._lock:
            end = self._clock() - self.limits.handshake_seconds
            for connection in [one for one, (_, since) in self._pending.items() if since < end]:
                self._close(connection)

    def make_room(self) -> None:
        """Close the older half of the pending connections: the process has no file descriptors left."""
        with self._lock:
            for connection in list(self._pending)[: (len(self._pending) + 1) // 2]:
                self._close(connection)

    def members(self) -> list[socket.socket]:
        """The connections of members."""
        with self._lock:
            return list(self._members)

    def close_all(self) -> None:
        """Close every connection."""
        with self._lock:
            for connection in (*self._pending, *self._members):
                shut_down(connection)

    def _close_oldest(self, address: str) -> None:
        self._close(next(one for one, (place, _) in self._pending.items() if place == address))

    def _close(self, connection: socket.socket) -> None:
        del self._pending[connection]
        shut_down(connection)


def shut_down(connection: socket.socket) -> None:
    """End a connection that another thread may be reading; that thread closes it.

    The plain socket's method is called: that of a TLS socket would first take its TLS state away from the other thread.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
