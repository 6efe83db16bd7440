"""Sealed sessions: requests signed and bodies encrypted between the two nodes, where a proxy in between ends TLS.

A hospital that inspects TLS ends it at its proxy: the proxy would read the weights, and the member's certificate does
not reach the coordinator. In a sealed session the two ends agree on keys of their own. The server's challenge, its
ephemeral X25519 key and its signature come first; the member answers with its own ephemeral key and a signature over
both, its name, the receiver's and the federation's. Long-lived keys only sign: what was recorded stays secret if they
are stolen later.

Every request then carries a number that only rises, and a tag over its method, path and length, so that it can be
neither changed nor repeated. Bodies are AES-256-GCM in chunks; the nonce is the request's number and the chunk's, and
the associated data is the request, so that chunks cannot be exchanged, reordered or left out.
"""

import hashlib
import hmac
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hansa.deploy.network.envelope import Identity

PATH = "/session"
SCHEME = "Hansa-Sealed"
CHUNK_BYTES = 1 << 20
TAG_BYTES = 16
NO_CHUNK = (1 << 32) - 1  # the chunk number of the tag over a request
CHALLENGE_SECONDS = 60.0
SESSION_SECONDS = 3600.0  # without a request
SESSIONS_PER_MEMBER = 16
COVERED = ("content-length", "content-range", "range", "upload-length", "upgrade")  # headers under a request's tag


class SealError(Exception):
    """A request or a body is not what the other end sealed, with the reason."""


def sealed_size(size: int) -> int:
    """The bytes of a sealed body of ``size`` bytes."""
    return size + TAG_BYTES * -(-size // CHUNK_BYTES)


def covered(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """What the tag of a request covers; names of headers are in lower case."""
    found = {name: headers.get(name, "").lower() for name in COVERED}
    found["content-length"] = found["content-length"].removeprefix("0")  # a proxy may add that there is no body
    return "\n".join([method, target, *found.values()]).encode()


class Seal:
    """The keys of one session, at one end: ``out`` seals what this end sends, ``into`` opens what it receives."""

    def __init__(self, id: str, out: bytes, into: bytes) -> None:
        self.id, self._out, self._into = id, AESGCM(out), AESGCM(into)

    def tag(self, number: int, request: bytes) -> str:
        """The tag of a request."""
        return self._out.encrypt(_nonce(number, NO_CHUNK), b"", request).hex()

    def check(self, number: int, request: bytes, tag: str) -> None:
        """Raise `SealError` if a tag is not that of a request."""
        self._open(_nonce(number, NO_CHUNK), bytes.fromhex(tag), request)

    def close_chunk(self, number: int, chunk: int, data: memoryview, request: bytes) -> bytes:
        """A sealed chunk of a body."""
        return self._out.encrypt(_nonce(number, chunk), data, request)

    def open_chunk(self, number: int, chunk: int, data: memoryview, request: bytes) -> bytes:
        """The content of a sealed chunk; raises `SealError` if it is not the other end's."""
        return self._open(_nonce(number, chunk), data, request)

    def _open(self, nonce: bytes, data: bytes | memoryview, request: bytes) -> bytes:
        try:
            return self._into.decrypt(nonce, data, request)
        except InvalidTag:
            raise SealError("what arrived was changed on its way, or sealed by another node") from None


def _nonce(number: int, chunk: int) -> bytes:
    return number.to_bytes(8, "big") + chunk.to_bytes(4, "big")


def _keys(shared: bytes, transcript: bytes) -> tuple[str, bytes, bytes]:
    """The id of a session, the member's key and the server's key."""
    material = HKDF(SHA256(), 80, hashlib.sha256(transcript).digest(), b"hansa sealed session").derive(shared)
    return material[:16].hex(), material[16:48], material[48:]


def _transcript(*parts: str) -> bytes:
    return b"hansa sealed session 1" + b"".join(len(p.encode()).to_bytes(4, "big") + p.encode() for p in parts)


# ── the member's end ──────────────────────────────────────────────────────────────────────────────────────────────────


class MemberSession:
    """A member's end of a session: it numbers and tags requests."""

    def __init__(self, seal: Seal) -> None:
        self.seal, self._number = seal, 0

    def authorize(self, method: str, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        """The number of the next request, and its header Authorization; names of ``headers`` are in lower case."""
        self._number += 1
        tag = self.seal.tag(self._number, covered(method, target, headers))
        return self._number, {"authorization": f"{SCHEME} {self.seal.id} {self._number} {tag}"}


def answer_challenge(
    key: Ed25519PrivateKey,
    federation: str,
    node: str,
    parent: str,
    parent_key: Ed25519PublicKey,
    found: Mapping[str, Any],
) -> tuple[dict[str, str], MemberSession]:
    """The answer to a server's challenge, and the session; raises `SealError` if the parent did not sign it."""
    try:
        challenge, public, signature = (str(found[name]) for name in ("challenge", "key", "signature"))
        parent_key.verify(bytes.fromhex(signature), _transcript("server", federation, parent, challenge, public))
        theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(public))
    except (KeyError, ValueError, InvalidSignature):
        raise SealError(f"the other end of the connection is not '{parent}'") from None
    own = X25519PrivateKey.generate()
    shown = own.public_key().public_bytes_raw().hex()
    transcript = _transcript("member", federation, parent, node, challenge, public, shown)
    id, up, down = _keys(own.exchange(theirs), transcript)
    answer = {"node": node, "challenge": challenge, "key": shown, "signature": key.sign(transcript).hex()}
    return answer, MemberSession(Seal(id, up, down))


# ── the server's end ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class ServerSession:
    """The server's end of a session of ``member``, whose public key was ``key``; ``number``: its newest request."""

    member: str
    key: bytes
    seal: Seal
    used: float
    number: int = 0


class SessionTable:
    """The sealed sessions of a server, at most `SESSIONS_PER_MEMBER` for each member, and its open challenges.

    A challenge needs no memory: it carries its time and the server's own authentication code. It is used once.
    """

    def __init__(self, identity: Identity, federation: str, clock: Callable[[], float] = monotonic) -> None:
        self._identity, self._federation, self._clock = identity, federation, clock
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._keys: list[tuple[float, X25519PrivateKey]] = []  # the newest first; a new one every minute
        self._answered: OrderedDict[str, float] = OrderedDict()  # challenges, with the time of their answer
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()

    def challenge(self) -> dict[str, str]:
        """A challenge, an ephemeral key, and this node's signature over both."""
        now = self._clock()
        with self._lock:
            if not self._keys or now - self._keys[0][0] > CHALLENGE_SECONDS:
                self._keys = [(now, X25519PrivateKey.generate()), *self._keys[:1]]
            public = self._keys[0][1].public_key().public_bytes_raw().hex()
        body = secrets.token_hex(16) + f"{int(now * 1000):016x}" + public
        text = body + self._code(body)
        signed = _transcript("server", self._federation, self._identity.name, text, public)
        return {"challenge": text, "key": public, "signature": self._identity.key.sign(signed).hex()}

    def _code(self, body: str) -> str:
        return hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()[:32]

    def open(self, answer: Mapping[str, Any]) -> ServerSession:
        """The session that an answer to a challenge opens; raises `SealError` if no member gave it, or it is late."""
        try:
            node, challenge, public, signature = (str(answer[n]) for n in ("node", "challenge", "key", "signature"))
            if not re.fullmatch(r"[0-9a-f]{144}", challenge):
                raise ValueError
            theirs, signed = X25519PublicKey.from_public_bytes(bytes.fromhex(public)), bytes.fromhex(signature)
        except (KeyError, ValueError):
            raise SealError("the answer to the challenge is malformed") from None
        now, body = self._clock(), challenge[:-32]
        if not hmac.compare_digest(challenge[-32:], self._code(body)):
            raise SealError("the challenge is not this server's")
        if now - int(body[32:48], 16) / 1000 > CHALLENGE_SECONDS:
            raise SealError("the challenge is too old")
        if not self._identity.trusts(node):
            raise SealError("it is not a member")
        member_key = self._identity.public_key(node)
        transcript = _transcript("member", self._federation, self._identity.name, node, challenge, body[48:], public)
        try:
            member_key.verify(signed, transcript)
        except InvalidSignature:
            raise SealError("the signature is not the member's") from None
        with self._lock:
            self._forget(now)
            if challenge in self._answered:
                raise SealError("the challenge was answered before")
            self._answered[challenge] = now
            own = next((k for _, k in self._keys if k.public_key().public_bytes_raw().hex() == body[48:]), None)
            if own is None:
                raise SealError("the challenge is too old")
            id, up, down = _keys(own.exchange(theirs), transcript)
            session = ServerSession(node, member_key.public_bytes_raw(), Seal(id, down, up), now)
            self._sessions[id] = session
            same = [one for one, known in self._sessions.items() if known.member == node]
            for old in same[:-SESSIONS_PER_MEMBER]:
                del self._sessions[old]
        return session

    def _forget(self, now: float) -> None:
        while self._answered and now - next(iter(self._answered.values())) > 2 * CHALLENGE_SECONDS:
            self._answered.popitem(last=False)
        for old in [id for id, one in self._sessions.items() if now - one.used > SESSION_SECONDS]:
            del self._sessions[old]

    def check(self, authorization: str, request: bytes) -> tuple[ServerSession, int]:
        """The session and the number of a request with a header Authorization; raises `SealError` if it is not valid.

        A number that is not higher than the session's last one is refused: it was used before.
        """
        found = re.fullmatch(rf"{SCHEME} ([0-9a-f]{{32}}) ([0-9]{{1,15}}) ([0-9a-f]{{32}})", authorization)
        if found is None:
            raise SealError("the header Authorization is malformed")
        with self._lock:
            session, number = self._sessions.get(found[1]), int(found[2])
            if session is None or not self._is_member(session):
                raise SealError("there is no such session")
            session.seal.check(number, request, found[3])
            if number <= session.number:
                raise SealError("the request was sent before")
            session.number, session.used = number, self._clock()
            return session, number

    def _is_member(self, session: ServerSession) -> bool:
        try:
            key = self._identity.public_key(session.member).public_bytes_raw()
        except KeyError:
            return False
        return self._identity.trusts(session.member) and key == session.key
