"""Envelopes: small signed messages that announce requests and replies and name their parts by digest.

An envelope is JSON with the sender's Ed25519 signature over its exact bytes. It names the sender, the receiver, the run
and the request; a rising ``sequence`` identifies replays. The broker that carries envelopes is not trusted.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from time import monotonic, time
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hansa.core.errors import parse_json, printable
from hansa.deploy.network.instance import FORMAT
from hansa.privacy.policy.audit_heads import HEAD_FORMAT

PROTOCOL = 6  # raised when a message gets a new field or a new meaning
FIRST = 6  # the oldest version whose messages leave out fields at their defaults (core/codec.py)
MAX_BYTES = 48 << 10
MAX_SKEW = 600.0  # seconds: an envelope from further in the future comes from a wrong clock
SIGNATURE_BYTES = 64
MAX_TIME = 1e11  # seconds since 1970
MAX_INTEGER = 1 << 53
LEAVE = "Leave"  # the kind of the envelope by which a child leaves for good
NO_RUN = "0" * 16  # the run of such an envelope: it counts for all runs

Ref = tuple[str, int]  # a blob: its digest and its size in bytes


class Identity(Protocol):
    """A node's name and key, and the public keys of the other members."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def key(self) -> Ed25519PrivateKey:
        """The node's private key."""

    def public_key(self, node: str) -> Ed25519PublicKey:
        """The public key of a member."""

    def trusts(self, node: str) -> bool:
        """Whether a node is a member that was not revoked."""

    @property
    def serial(self) -> int:
        """The serial number of the list of members."""


class EnvelopeError(Exception):
    """An envelope is rejected, with the reason."""


@dataclass(frozen=True)
class Envelope:
    """The announcement of one request or reply."""

    sender: str
    receiver: str
    run: str
    run_started: float  # seconds since 1970; envelopes of an older run are rejected
    request: str  # the request's id, the same when the request is repeated after a crash
    sequence: int
    kind: str  # the type of the message, for logs
    round: int
    text: Ref
    vectors: dict[str, Ref] = field(default_factory=dict)
    settings: Ref | None = None  # of a request: the federation file
    start: Ref | None = None  # of a request: tokenizer, labels and initial weights
    deadline: float | None = None  # of a request: when the sender stops waiting, by the sender's clock
    sent_at: float = field(default_factory=time)
    members: int = 0  # the serial number of the sender's list of members
    instance: str = ""  # of a reply: the process that sends it (instance.py)
    audit: str = ""  # the head of the sender's audit log (hansa.privacy.policy.audit_heads)
    protocol: int = PROTOCOL

    @property
    def position(self) -> tuple[str, int]:
        """The run and the sequence number, which identify the envelope."""
        return self.run, self.sequence


FIELDS: Mapping[str, tuple[type, ...]] = {
    "sender": (str,),
    "receiver": (str,),
    "run": (str,),
    "run_started": (int, float),
    "request": (str,),
    "sequence": (int,),
    "kind": (str,),
    "round": (int,),
    "text": (list,),
    "vectors": (dict,),
    "settings": (list, type(None)),
    "start": (list, type(None)),
    "deadline": (int, float, type(None)),
    "sent_at": (int, float),
    "members": (int,),
    "instance": (str,),
    "audit": (str,),
    "protocol": (int,),
}
NEEDED = {"protocol", "sent_at"} | {
    one.name for one in fields(Envelope) if one.default is MISSING and one.default_factory is MISSING
}
# Runs and requests become names of folders, kinds and vectors appear in logs: only these forms are accepted.
FORMATS = {
    "run": r"[0-9a-f]{16}",
    "request": r"[0-9a-f]{32}",
    "kind": r"[A-Za-z]{1,40}",
    "instance": f"({FORMAT})?",
    "audit": f"({HEAD_FORMAT})?",
}
VECTOR_FORMAT = r"[a-z_][a-z0-9_.]{0,99}"


def understood(protocol: Any) -> bool:
    """Whether this version of Hansa understands messages of a protocol version: its own, the one before and the next.

    What an older node cannot understand is a field or message type that it does not know, which it refuses by name.
    """
    return type(protocol) is int and max(FIRST, PROTOCOL - 1) <= protocol <= PROTOCOL + 1


def sign_envelope(envelope: Envelope, key: Ed25519PrivateKey) -> bytes:
    """Return an envelope as bytes: the signature, then the JSON text, without fields at their defaults."""
    values = asdict(envelope)
    left_out = {name for name, value in values.items() if name not in NEEDED and value in (None, {}, "", 0)}
    body = json.dumps({name: value for name, value in values.items() if name not in left_out}, ensure_ascii=False)
    return key.sign(body.encode()) + body.encode()


def open_envelope(data: bytes, sender: str, receiver: str, key: Ed25519PublicKey) -> Envelope:
    """Return the envelope in ``data`` if ``sender``, whose public key is ``key``, has signed it for ``receiver``.

    Raises `EnvelopeError` for any other bytes, a protocol version that is not `understood`, and dates in the future.
    """
    if not SIGNATURE_BYTES < len(data) <= MAX_BYTES:
        raise EnvelopeError(f"the envelope has {len(data)} bytes; {SIGNATURE_BYTES + 1} to {MAX_BYTES} are allowed")
    try:
        key.verify(data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:])
    except InvalidSignature:
        raise EnvelopeError("the signature is not the sender's") from None
    envelope = _parsed(data[SIGNATURE_BYTES:])
    if not understood(envelope.protocol):
        raise EnvelopeError(
            f"the envelope has protocol version {envelope.protocol}, and this node has version {PROTOCOL}: use "
            "versions of Hansa that are at most one protocol version apart"
        )
    if (envelope.sender, envelope.receiver) != (sender, receiver):
        raise EnvelopeError(
            f"the envelope is from '{printable(envelope.sender, 60)}' to '{printable(envelope.receiver, 60)}'"
        )
    if max(envelope.sent_at, envelope.run_started) > time() + MAX_SKEW:
        raise EnvelopeError(f"the envelope is dated more than {MAX_SKEW:.0f} s in the future: synchronise the clocks")
    return envelope


def _parsed(body: bytes) -> Envelope:
    try:
        raw = parse_json(body)
    except ValueError:
        raise EnvelopeError("the envelope is not JSON") from None
    if not isinstance(raw, dict):
        raise EnvelopeError("the envelope is not a JSON object")
    if understood(raw.get("protocol")) and not NEEDED <= set(raw) <= set(FIELDS):
        shown = printable(", ".join(sorted(raw)))
        raise EnvelopeError(f"the envelope does not have the fields of protocol version {PROTOCOL}, but {shown}")
    for name, kinds in FIELDS.items():
        if name in raw and (type(raw[name]) not in kinds):
            raise EnvelopeError(f"the field '{name}' is a {type(raw[name]).__name__}")
    _check_values(raw)
    try:
        refs = {name: _optional_ref(raw.get(name)) for name in ("settings", "start")}
        vectors = {str(name): _ref(ref) for name, ref in raw.get("vectors", {}).items()}
        return Envelope(**{**raw, **refs, "vectors": vectors, "text": _ref(raw["text"])})
    except (KeyError, TypeError) as error:
        raise EnvelopeError(f"the envelope is malformed ({printable(str(error))})") from None


def _check_values(raw: Mapping[str, Any]) -> None:
    for name, pattern in FORMATS.items():
        if name in raw and not re.fullmatch(pattern, raw[name]):
            raise EnvelopeError(f"the field '{name}' is not a valid name")
    for name in raw.get("vectors", {}):
        if not re.fullmatch(VECTOR_FORMAT, name):
            raise EnvelopeError("the name of a vector is not valid")
    for name in ("run_started", "deadline", "sent_at"):
        if raw.get(name) is not None and not 0 <= raw[name] <= MAX_TIME:  # nor NaN
            raise EnvelopeError(f"the field '{name}' is not a valid time")
    for name in ("sequence", "round", "members"):
        if name in raw and not 0 <= raw[name] < MAX_INTEGER:
            raise EnvelopeError(f"the field '{name}' is out of range")


def _optional_ref(value: Any) -> Ref | None:
    return None if value is None else _ref(value)


def _ref(value: Any) -> Ref:
    match value:
        case [str(digest), int(size)] if is_digest(digest) and type(size) is int and 0 <= size < MAX_INTEGER:
            return digest, size
    raise EnvelopeError("a reference is not a digest and a size")


def is_digest(text: str) -> bool:
    """Whether a text has the form of a blob's digest."""
    return len(text) == 32 and all(c in "0123456789abcdef" for c in text)


def local_deadline(envelope: Envelope) -> float | None:
    """The parent's deadline on this node's monotonic clock.

    Clocks differ: a request is not older than its date, and one that seems overdue may come from a clock that is behind
    this one, so it gets all of its time.
    """
    if envelope.deadline is None:
        return None
    whole, left = envelope.deadline - envelope.sent_at, envelope.deadline - time()
    return monotonic() + (min(whole, left) if left > 0 else whole)
