"""Heartbeats: every agent says each few seconds that it is there, signed with its key.

A heartbeat names the process that sends it (instance.py), its phase, version and clock, and the serial number and
digest of its list of members, so that both ends notice when their lists differ.
"""

import json
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import isfinite
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hansa.core.errors import parse_json, printable
from hansa.deploy.network.envelope import SIGNATURE_BYTES
from hansa.deploy.network.instance import Instance

PURPOSE = b"hansa heartbeat 1\n"
MAX_HEARTBEAT_BYTES = 4096
MAX_RUNS = 16  # of which a heartbeat states the position
PHASES = ("idle", "fetching", "working", "sending", "paused")


@dataclass(frozen=True)
class Heartbeat:
    """One heartbeat; ``at`` is the sender's clock. ``alarm``: the sender has seen another process under its name."""

    node: str
    parent: str
    instance: str
    phase: str
    version: str
    at: float
    serial: int
    digest: str
    alarm: bool
    positions: tuple[tuple[str, int, str], ...] = ()  # of each run: its id, number and request of the newest envelope
    runs: tuple[str, ...] = ()  # the ids of the runs that it works on now

    @property
    def process(self) -> Instance:
        """The process that has sent it."""
        return Instance.parse(self.instance)


KINDS: dict[str, tuple[type, ...]] = {
    "node": (str,),
    "parent": (str,),
    "instance": (str,),
    "phase": (str,),
    "version": (str,),
    "at": (int, float),
    "serial": (int,),
    "digest": (str,),
    "alarm": (bool,),
    "positions": (list,),
    "runs": (list,),
}
assert set(KINDS) == {field.name for field in fields(Heartbeat)}
NEEDED = {field.name for field in fields(Heartbeat) if field.default is MISSING}


def sign_heartbeat(heartbeat: Heartbeat, key: Ed25519PrivateKey) -> bytes:
    """A heartbeat as bytes: the signature, then the JSON text."""
    body = json.dumps(asdict(heartbeat)).encode()
    return key.sign(PURPOSE + body) + body


def open_heartbeat(data: bytes, node: str, parent: str, key: Ed25519PublicKey) -> Heartbeat:
    """The heartbeat that ``node`` has signed for ``parent``; raises `ValueError` if it is anything else."""
    if not SIGNATURE_BYTES < len(data) <= MAX_HEARTBEAT_BYTES:
        raise ValueError("a heartbeat has the wrong size")
    try:
        key.verify(data[:SIGNATURE_BYTES], PURPOSE + data[SIGNATURE_BYTES:])
    except InvalidSignature:
        raise ValueError("a heartbeat is not signed by its sender") from None
    raw: Any = parse_json(data[SIGNATURE_BYTES:])
    if not isinstance(raw, dict) or not set(raw) >= NEEDED:
        raise ValueError("a heartbeat does not have the fields of this version of Hansa")
    raw = {name: value for name, value in raw.items() if name in KINDS}  # a newer version may say more
    if any(type(value) not in KINDS[name] for name, value in raw.items()):
        raise ValueError("a field of a heartbeat has the wrong type")
    found = Heartbeat(**raw)
    if (found.node, found.parent) != (node, parent) or found.phase not in PHASES or not isfinite(found.at):
        raise ValueError("a heartbeat has invalid values")
    Instance.parse(found.instance)
    if len(found.runs) > MAX_RUNS or not all(isinstance(run, str) for run in found.runs):
        raise ValueError("a heartbeat has an invalid list of runs")
    return replace(found, positions=tuple(map(_position, found.positions[:MAX_RUNS])), runs=tuple(found.runs))


def _position(value: Any) -> tuple[str, int, str]:
    match value:
        case [str(run), int(sequence), str(request)] if type(sequence) is int:
            return run, sequence, request
    raise ValueError("a heartbeat has an invalid position")


def describe(heartbeat: Heartbeat, now: float) -> dict[str, Any]:
    """What the journal keeps of a heartbeat that arrived at ``now``."""
    return {
        "phase": heartbeat.phase,
        "version": printable(heartbeat.version, 40),
        "last_seen": now,
        "skew": heartbeat.at - now,
        "serial": heartbeat.serial,
        "positions": heartbeat.positions,
        "runs": heartbeat.runs,
    }
