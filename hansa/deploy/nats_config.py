"""The configuration of a NATS server: JetStream, WebSockets, permissions by the members' keys.

The coordinator starts its own server from such a file in its run directory, on the loopback interface alone; `hansa kit
create --nats` writes one for existing servers, with TLS of the federation's certificates. Members reach either through
the coordinator's HTTPS port. They authenticate with their keys (nkey.py), so there are no passwords.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hansa.deploy.kit import Kit
from hansa.deploy.membership import Member
from hansa.deploy.network.address import parse_address
from hansa.deploy.network.nkey import nkey
from hansa.deploy.network.subjects import Subjects

MAX_MESSAGE_BYTES = 64 << 10  # envelopes only: weights and texts do not pass through the broker
MAX_STORE_BYTES = 1 << 30
MAX_SUBSCRIPTIONS = 32  # of one connection: a node has at most four
MAX_PENDING_BYTES = 8 << 20  # that wait for a slow reader, before it is disconnected
MAX_CONNECTIONS = 8192  # many more than members need, so that a stranger's idle sockets do not take all of them
HANDSHAKE_SECONDS = 5  # for TLS and for CONNECT, each
FILES = {"cert_file": "cert.pem", "key_file": "key.pem", "ca_file": "ca.pem"}
NATS = "nats"  # the broker's folder beside the kits
AUTHORIZATION = "authorization.conf"
PREFACE = """\
# The broker of federation {federation}. Start it in this folder: nats-server -c nats.conf
# {authorization} lists the members. After every change of members, replace it by the new one and run:
# nats-server --signal reload
"""


def authorization(federation: str, members: Mapping[str, Member], serving: Iterable[str]) -> str:
    """The permissions of all members that were not revoked, by key, on the server that the ``serving`` nodes use."""
    permissions: dict[str, dict[str, list[str]]] = {}
    for parent in serving:
        subjects = Subjects(federation, parent)
        for name in (parent, *(name for name, member in members.items() if member.parent == parent)):
            may = subjects.parent_permissions() if name == parent else subjects.child_permissions(name)
            known = permissions.setdefault(name, {})
            for direction, allowed in may.items():  # a region has those of a child and those of a parent
                known[direction] = known.get(direction, []) + allowed
    users = [
        {
            "nkey": nkey(bytes.fromhex(members[name].key)),
            "permissions": {direction: {"allow": allowed} for direction, allowed in may.items()},
        }
        for name, may in permissions.items()
        if name in members and members[name].generations
    ]
    return "authorization " + json.dumps({"timeout": HANDSHAKE_SECONDS, "users": users}, indent=1) + "\n"


def own_server(kit: Kit, store: Path, port: int) -> str:
    """The configuration of the server that a coordinator or a region starts itself, for WebSockets at ``port``."""
    settings = _settings(kit.child_subjects.stream, str(store.resolve()))
    settings["websocket"] = {"host": "127.0.0.1", "port": port, "no_tls": True, **_websocket()}
    return _lines(settings) + authorization(kit.info.federation, kit.members(), [kit.name])


def existing_server(federation: str, addresses: Sequence[str]) -> str:
    """The configuration of a server that another operator runs; its files lie in the same folder."""
    preface = PREFACE.format(federation=federation, authorization=AUTHORIZATION)
    settings = _settings(f"hansa_{federation}", "store")
    host, port = parse_address(addresses[0])
    listen = "127.0.0.1" if host in ("localhost", "127.0.0.1") else "0.0.0.0"
    tls = {**FILES, "verify": True, "min_version": "1.3", "timeout": HANDSHAKE_SECONDS}
    settings["websocket"] = {"host": listen, "port": port, "tls": tls, **_websocket()}
    return preface + _lines(settings) + f"include {AUTHORIZATION}\n"


def _websocket() -> dict[str, Any]:
    return {"compression": False, "handshake_timeout": f"{HANDSHAKE_SECONDS}s"}


def _settings(name: str, store: str) -> dict[str, Any]:
    return {
        "server_name": name,
        "host": "127.0.0.1",  # members use WebSockets, and nothing else
        "port": -1,
        "max_payload": MAX_MESSAGE_BYTES,
        "max_pending": MAX_PENDING_BYTES,
        "max_subscriptions": MAX_SUBSCRIPTIONS,
        "max_connections": MAX_CONNECTIONS,
        "max_control_line": 4096,
        "ping_interval": "20s",
        "ping_max": 3,
        "write_deadline": "10s",
        "jetstream": {"store_dir": store, "max_mem": 64 << 20, "max_file": MAX_STORE_BYTES},
    }


def _lines(settings: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()) + "\n"
