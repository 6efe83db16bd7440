"""Notes from a parent to a child: the list of members, open runs, and whether the child's identity is suspended.

The broker stores the newest note to each child. The list of members carries the authority's signature, so a child can
use it before it knows its parent; the rest of the note carries the parent's.
"""

import json
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hansa.core.errors import parse_json, printable
from hansa.deploy.network.envelope import FORMATS, SIGNATURE_BYTES

PURPOSE = b"hansa note 1\n"
MAX_NOTE_BYTES = 60 << 10
MAX_LIST_BYTES = 1 << 20  # of a list of members, unpacked
MAX_RUNS = 64


@dataclass(frozen=True)
class Note:
    """A note; ``members`` is the packed text of a members.json, empty if it is too long for a note."""

    sender: str
    receiver: str
    at: float
    suspended: str  # why the child's identity is suspended; empty if it is not
    members: str
    runs: tuple[str, ...] = ()  # the ids of the runs that are open at the parent


def pack_list(text: str) -> str:
    """The text of a members.json, compressed for a note; empty if it is too long."""
    packed = b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= MAX_NOTE_BYTES - 4096 and len(text) <= MAX_LIST_BYTES else ""


def sign_note(note: Note, key: Ed25519PrivateKey) -> bytes:
    """A note as bytes: the signature, then the JSON text."""
    body = json.dumps(asdict(note)).encode()
    return key.sign(PURPOSE + body) + body


def list_in(data: bytes) -> bytes | None:
    """The list of members in a note, which is not verified; None if there is none. Raises `ValueError` if damaged."""
    packed = _body(data).members
    if not packed:
        return None
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(b64decode(packed, validate=True), MAX_LIST_BYTES)
    except (ValueError, zlib.error):
        raise ValueError("the list of members in a note is damaged") from None
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("the list of members in a note is too long")
    return text


def open_note(data: bytes, sender: str, receiver: str, key: Ed25519PublicKey) -> Note:
    """The note that ``sender`` has signed for ``receiver``; raises `ValueError` if it is anything else."""
    try:
        key.verify(data[:SIGNATURE_BYTES], PURPOSE + data[SIGNATURE_BYTES:])
    except InvalidSignature:
        raise ValueError("a note is not signed by the parent") from None
    note = _body(data)
    if (note.sender, note.receiver) != (sender, receiver):
        raise ValueError("a note is for another node")
    return note


def _body(data: bytes) -> Note:
    if not SIGNATURE_BYTES < len(data) <= MAX_NOTE_BYTES:
        raise ValueError("a note has the wrong size")
    match parse_json(data[SIGNATURE_BYTES:]):
        case {
            "sender": str(sender),
            "receiver": str(receiver),
            "at": float(at),
            "suspended": str(suspended),
            "members": str(members),
            "runs": list(runs),
        }:  # a newer version may say more
            return Note(sender, receiver, at, printable(suspended), members, _run_ids(runs))
    raise ValueError("a note does not have the fields of this version of Hansa")


def _run_ids(found: list[Any]) -> tuple[str, ...]:
    """Run ids, which become parts of subjects; raises `ValueError` if one is malformed."""
    if len(found) > MAX_RUNS or not all(isinstance(one, str) and re.fullmatch(FORMATS["run"], one) for one in found):
        raise ValueError("a note has an invalid list of runs")
    return tuple(found)
