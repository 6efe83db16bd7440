"""Whether a TLS client knows Ed25519, by its first message, which is read before it is answered.

Members have certificates with Ed25519 keys. Browsers, and many proxies that inspect TLS, do not know this kind of key:
their handshake would fail. They are shown another certificate (tls.py). RFC 8446, sections 4.1.2, 4.2.3 and 5.1.
"""

import socket

HANDSHAKE, CLIENT_HELLO = 22, 1  # type of the record, type of the message in it
RECORD_HEAD, MESSAGE_HEAD = 5, 4  # bytes before a record's and a message's content
MAX_RECORD = RECORD_HEAD + (1 << 14)
SIGNATURE_ALGORITHMS = 13  # the extension
ED25519 = 0x0807


def first_record(connection: socket.socket, seen: int) -> tuple[bytes, bool]:
    """What has arrived of a client's first record, which stays in the socket, and whether it is complete.

    If it is not, the socket is readable only when the rest has arrived. ``seen``: how many bytes there were the last
    time; raises `ConnectionError` if there are no more now, because the client has ended, and `BlockingIOError` if
    nothing has arrived.
    """
    begin = connection.recv(MAX_RECORD, socket.MSG_PEEK)
    wanted = record_length(begin)
    complete = len(begin) >= wanted
    if not complete and len(begin) <= seen:
        raise ConnectionError("the client has ended in the middle of its first message")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if complete else wanted)
    return begin, complete


def record_length(begin: bytes) -> int:
    """How many bytes the first record has, by its first bytes; 0 if they are none of a TLS handshake."""
    if len(begin) < RECORD_HEAD:
        return RECORD_HEAD if begin[:1] in (b"", bytes([HANDSHAKE])) else 0
    length = RECORD_HEAD + int.from_bytes(begin[3:5], "big")
    return length if begin[0] == HANDSHAKE and length <= MAX_RECORD else 0


def knows_ed25519(record: bytes) -> bool:
    """Whether a client can verify a certificate with an Ed25519 key; True for what is no complete first message."""
    fields = _Fields(record[RECORD_HEAD:])
    try:
        if fields.number(1) != CLIENT_HELLO:
            return True
        fields.skip(MESSAGE_HEAD - 1 + 2 + 32)  # the length, the version, the random value
        for width in (1, 2, 1):  # the session, the cipher suites, the compression methods
            fields.block(width)
        extensions = fields.block(2)
        while extensions.left:
            kind, content = extensions.number(2), extensions.block(2)
            if kind == SIGNATURE_ALGORITHMS:
                offered = content.block(2)
                return any(offered.number(2) == ED25519 for _ in range(offered.left // 2))
    except _TooShort:
        return True
    return False


class _TooShort(Exception):
    """The message ends before its fields do."""


class _Fields:
    """Reads the fields of a message, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self._at

    def skip(self, count: int) -> bytes:
        """The next ``count`` bytes; raises `_TooShort` if fewer are left."""
        if count > self.left:
            raise _TooShort
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        """The next ``width`` bytes as an unsigned number in network byte order."""
        return int.from_bytes(self.skip(width), "big")

    def block(self, width: int) -> "_Fields":
        """A field that begins with its length, which has ``width`` bytes."""
        return _Fields(self.skip(self.number(width)))
