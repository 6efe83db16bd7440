"""A WebSocket to a NATS server, used like a socket: frames by wsproto, every wait bounded by the caller's timeout."""

import socket
from collections.abc import Mapping

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request
from wsproto.utilities import ProtocolError

PATH = "/nats"
BUFFER_BYTES = 64 << 10


class WebSocket:
    """The client's end of a WebSocket on an open connection to ``host``.

    ``headers`` are sent with the request for it. Raises `ConnectionError` if the server refuses, `TimeoutError` after
    the connection's timeout.
    """

    def __init__(self, connection: socket.socket, host: str, headers: Mapping[str, str]) -> None:
        self._socket, self._frames = connection, WSConnection(ConnectionType.CLIENT)
        self._arrived = bytearray()
        self._accepted = False
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._socket.sendall(self._frames.send(Request(host=host, target=PATH, extra_headers=extra)))
        while not self._accepted:
            self._receive()

    def settimeout(self, seconds: float) -> None:
        """Bound the next waits."""
        self._socket.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        """Send bytes as one message."""
        try:
            frame = self._frames.send(BytesMessage(data=data))
        except ProtocolError as error:
            raise ConnectionError(f"the WebSocket has ended ({str(error)[:100]})") from None
        self._socket.sendall(frame)

    def recv_into(self, target: memoryview) -> int:
        """Read what has arrived, at least one byte; 0 if the server closed the connection."""
        while not self._arrived:
            if not self._receive():
                return 0
        count = min(len(target), len(self._arrived))
        target[:count] = self._arrived[:count]
        del self._arrived[:count]
        return count

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> bool:
        """Read once; False if the connection has ended."""
        data = self._socket.recv(BUFFER_BYTES)
        if not data:
            if not self._accepted:
                raise ConnectionError("the server closed the connection")
            return False
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                if isinstance(event, AcceptConnection):
                    self._accepted = True
                elif isinstance(event, RejectConnection):
                    raise ConnectionError(f"the server refused the connection with status {event.status_code}")
                elif isinstance(event, BytesMessage):
                    self._arrived += event.data
                elif isinstance(event, Ping):
                    self._socket.sendall(self._frames.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return bool(self._arrived)
        except ProtocolError as error:
            raise ConnectionError(f"the server's answer is not a WebSocket ({str(error)[:100]})") from None
        return True
