"""Envelopes: small signed letters about requests and replies. Weights and texts are named in them by digest.

An envelope is JSON with the sender's Ed25519 signature over its exact bytes. It says from whom, to whom, in which run,
about which request; a rising ``sequence`` makes an old one recognisable. The broker that carries it is not trusted.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hansa.core.errors import parse_json, printable

PROTOCOL = 2
LARGEST = 48 << 10
SKEW = 600.0  # seconds: a letter from further in the future comes from a wrong clock
SIGNATURE = 64
LAST = 1e11  # seconds since 1970: no date is later, nor is it NaN
HIGHEST = 1 << 53

Ref = tuple[str, int]  # digest and size in bytes


class Identity(Protocol):
    """Who a node is, and whose letters it takes."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> Ed25519PrivateKey: ...

    def public(self, node: str) -> Ed25519PublicKey: ...

    def trusts(self, node: str) -> bool: ...


class EnvelopeError(Exception):
    """A letter that must not be believed, and why."""


@dataclass(frozen=True)
class Envelope:
    sender: str
    receiver: str
    run: str
    begun: float  # when the run was begun: an older run's letters are stale
    request: str  # its id: the same question has the same id, also when it is asked again after a crash
    sequence: int
    kind: str  # the message's type, for logs
    round: int
    text: Ref
    vectors: dict[str, Ref] = field(default_factory=dict)
    settings: Ref | None = None  # of a request: the federation file
    start: Ref | None = None  # of a request: tokeniser, labels and first weights
    until: float | None = None  # of a request: when nobody will wait any more, by the sender's clock
    at: float = field(default_factory=time)
    protocol: int = PROTOCOL

    @property
    def mark(self) -> tuple[str, int]:
        """Which letter this is."""
        return self.run, self.sequence


FIELDS: Mapping[str, tuple[type, ...]] = {
    "sender": (str,),
    "receiver": (str,),
    "run": (str,),
    "begun": (int, float),
    "request": (str,),
    "sequence": (int,),
    "kind": (str,),
    "round": (int,),
    "text": (list,),
    "vectors": (dict,),
    "settings": (list, type(None)),
    "start": (list, type(None)),
    "until": (int, float, type(None)),
    "at": (int, float),
    "protocol": (int,),
}
# Runs and requests become names of folders, kinds and vectors words in logs: nothing in them leads anywhere.
WORDS = {"run": r"[0-9a-f]{16}", "request": r"[0-9a-f]{32}", "kind": r"[A-Za-z]{1,40}"}
VECTOR = r"[a-z_][a-z0-9_.]{0,99}"


def seal(envelope: Envelope, key: Ed25519PrivateKey) -> bytes:
    body = json.dumps(asdict(envelope), ensure_ascii=False).encode()
    return key.sign(body) + body


def unseal(data: bytes, sender: str, receiver: str, key: Ed25519PublicKey) -> Envelope:
    """The letter, if it is whole, from ``sender``, to ``receiver``, of our version and of our time."""
    if not SIGNATURE < len(data) <= LARGEST:
        raise EnvelopeError(f"a letter of {len(data)} bytes")
    try:
        key.verify(data[:SIGNATURE], data[SIGNATURE:])
    except InvalidSignature:
        raise EnvelopeError("its signature is not the sender's") from None
    envelope = _parsed(data[SIGNATURE:])
    if envelope.protocol != PROTOCOL:
        raise EnvelopeError(
            f"it speaks protocol version {envelope.protocol}, and we speak {PROTOCOL}: use the same Hansa"
        )
    if (envelope.sender, envelope.receiver) != (sender, receiver):
        raise EnvelopeError(f"it is from '{printable(envelope.sender, 60)}' to '{printable(envelope.receiver, 60)}'")
    if max(envelope.at, envelope.begun) > time() + SKEW:
        raise EnvelopeError(f"it comes from more than {SKEW:.0f} s in the future: set the clocks")
    return envelope


def _parsed(body: bytes) -> Envelope:
    try:
        raw = parse_json(body)
    except ValueError:
        raise EnvelopeError("it is not JSON") from None
    if not isinstance(raw, dict):
        raise EnvelopeError("it is not an envelope")
    protocol = raw.get("protocol")
    if protocol == PROTOCOL and set(raw) != set(FIELDS):
        raise EnvelopeError(f"it has fields {printable(', '.join(sorted(raw)))}")
    for name, kinds in FIELDS.items():
        if name in raw and (type(raw[name]) not in kinds):
            raise EnvelopeError(f"its field '{name}' is a {type(raw[name]).__name__}")
    _check_values(raw)
    try:
        refs = {name: _ref(raw[name]) for name in ("settings", "start")}
        vectors = {str(name): _needed(ref) for name, ref in raw["vectors"].items()}
        return Envelope(**{**raw, **refs, "vectors": vectors, "text": _needed(raw["text"])})
    except (KeyError, TypeError) as error:
        raise EnvelopeError(f"it is not an envelope ({printable(str(error))})") from None


def _check_values(raw: Mapping[str, Any]) -> None:
    for name, words in WORDS.items():
        if name in raw and not re.fullmatch(words, raw[name]):
            raise EnvelopeError(f"its field '{name}' is not a name that is given here")
    for name in raw.get("vectors", {}):
        if not re.fullmatch(VECTOR, name):
            raise EnvelopeError("it has a vector whose name is not one that is given here")
    for name in ("begun", "until", "at"):
        if raw.get(name) is not None and not 0 <= raw[name] <= LAST:
            raise EnvelopeError(f"its field '{name}' is no time")
    for name in ("sequence", "round"):
        if name in raw and not 0 <= raw[name] < HIGHEST:
            raise EnvelopeError(f"its field '{name}' is beyond any that is given here")


def _ref(value: Any) -> Ref | None:
    return None if value is None else _needed(value)


def _needed(value: Any) -> Ref:
    match value:
        case [str(digest), int(size)] if is_digest(digest) and type(size) is int and 0 <= size < HIGHEST:
            return digest, size
    raise EnvelopeError("it names something that is no digest and size")


def is_digest(text: str) -> bool:
    return len(text) == 32 and all(c in "0123456789abcdef" for c in text)
