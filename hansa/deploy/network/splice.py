"""Forwards bytes between pairs of sockets, all pairs in one thread: WebSockets of members to the NATS server behind.

A pair holds at most `BUFFER_BYTES` in each direction; a side that does not read stops the other side, and nothing else.
"""

import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

BUFFER_BYTES = 256 << 10
READ_BYTES = 64 << 10

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Pair:
    """Two sockets and what waits to be sent to each; ``ended`` is called when the pair is closed."""

    def __init__(self, near: socket.socket, far: socket.socket, ended: Callable[[], None]) -> None:
        self.sockets, self.ended = (near, far), ended
        self.waiting = (bytearray(), bytearray())  # for near, for far
        self.watched = [0, 0]  # what the selector watches at each side

    def pump(self) -> None:
        """Move bytes until nothing moves; raises `OSError` when a side has ended."""
        moved = True
        while moved:
            moved = False
            for source, sink in ((0, 1), (1, 0)):
                moved |= self._read(source, sink)
                moved |= self._write(sink)

    def _read(self, source: int, sink: int) -> bool:
        waiting = self.waiting[sink]
        if len(waiting) >= BUFFER_BYTES:
            return False
        try:
            data = self.sockets[source].recv(READ_BYTES)
        except WOULD_BLOCK:
            return False
        if not data:
            self._write(sink)
            raise ConnectionError("one side has ended")
        waiting += data
        return True

    def _write(self, sink: int) -> bool:
        waiting = self.waiting[sink]
        if not waiting:
            return False
        try:
            count = self.sockets[sink].send(waiting[:READ_BYTES])
        except WOULD_BLOCK:
            return False
        del waiting[:count]
        return count > 0

    def interest(self, side: int) -> int:
        """What the selector should watch at one side."""
        wanted = selectors.EVENT_WRITE if self.waiting[side] else 0
        return wanted | (selectors.EVENT_READ if len(self.waiting[1 - side]) < BUFFER_BYTES else 0)


class Splicer:
    """Forwards between pairs of sockets until one side of each ends."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._new: deque[tuple[_Pair, bytes]] = deque()
        self._wake, woken = socket.socketpair()
        woken.setblocking(False)
        self._woken = woken
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hansa-splicer", daemon=True)
        self._thread.start()

    def add(self, near: socket.socket, far: socket.socket, early: bytes, ended: Callable[[], None]) -> None:
        """Forward between two open sockets, which belong to the splicer from now on; ``early`` goes to far first."""
        self._new.append((_Pair(near, far, ended), early))
        self._wake.send(b"x")

    def close(self) -> None:
        """End all pairs."""
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join()
        self._wake.close()

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._take_new()
                elif key.data[0].sockets[key.data[1]].fileno() >= 0:  # not closed by an earlier event of this batch
                    self._serve(key.data[0])
        self._take_new()
        for pair in {key.data[0] for key in self._selector.get_map().values() if key.data}:
            self._end(pair)
        self._selector.close()
        self._woken.close()

    def _take_new(self) -> None:
        with suppress(*WOULD_BLOCK):
            self._woken.recv(4096)
        while self._new:
            pair, early = self._new.popleft()
            pair.waiting[1].extend(early)
            try:
                for one in pair.sockets:
                    one.setblocking(False)
            except OSError:  # it was closed in the meantime
                self._end(pair)
                continue
            self._serve(pair)

    def _serve(self, pair: _Pair) -> None:
        try:
            pair.pump()
            for side in (0, 1):
                self._watch(pair, side, pair.interest(side))
        except (OSError, ValueError, KeyError):
            self._end(pair)

    def _watch(self, pair: _Pair, side: int, wanted: int) -> None:
        """Watch one side for ``wanted``; a side with nothing to watch would otherwise wake the thread all the time."""
        one, before = pair.sockets[side], pair.watched[side]
        pair.watched[side] = wanted
        if wanted and not before:
            self._selector.register(one, wanted, (pair, side))
        elif before and not wanted:
            self._selector.unregister(one)
        elif wanted != before:
            self._selector.modify(one, wanted, (pair, side))

    def _end(self, pair: _Pair) -> None:
        for one in pair.sockets:
            with suppress(KeyError, ValueError):
                self._selector.unregister(one)
            with suppress(OSError):
                one.close()
        pair.ended()
