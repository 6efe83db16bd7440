"""The configuration of a NATS server: TLS with the federation's certificates, JetStream, permissions by certificate.

The coordinator starts its own server from such a file in its run directory; `hansa kit create --nats` writes one for an
existing server. Members authenticate with their certificates, so there are no passwords.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hansa.deploy.kit import Kit, identity
from hansa.deploy.membership import Member
from hansa.deploy.network.address import Address
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


def authorization(
    federation: str, members: Mapping[str, Member], serving: Iterable[str], excluded: Collection[str] = ()
) -> str:
    """The permissions of all members, by certificate, on the server that the ``serving`` nodes use.

    ``excluded``: identities that may not connect for some time.
    """
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
            "user": identity(name, generation, federation),
            "permissions": {direction: {"allow": allowed} for direction, allowed in may.items()},
        }
        for name, may in permissions.items()
        if name in members
        for generation in members[name].generations
        if identity(name, generation, federation) not in excluded
    ]
    return "authorization " + json.dumps({"timeout": HANDSHAKE_SECONDS, "users": users}, indent=1) + "\n"


def own_server(kit: Kit, store: Path, monitor_port: int | None = None, excluded: Collection[str] = ()) -> str:
    """The configuration of the server that a coordinator or a region starts itself.

    ``monitor_port``: where the server tells this machine who is connected.
    """
    files = {name: str((kit.folder / file).resolve()) for name, file in FILES.items()}
    settings = _settings(kit.child_subjects.stream, kit.endpoint.broker_address, str(store.resolve()), files)
    if monitor_port is not None:
        settings["http"] = f"127.0.0.1:{monitor_port}"
    return _lines(settings) + authorization(kit.info.federation, kit.members(), [kit.name], excluded)


def existing_server(federation: str, address: Address) -> str:
    """The configuration of a server that another operator runs; its files lie in the same folder."""
    preface = PREFACE.format(federation=federation, authorization=AUTHORIZATION)
    return preface + _lines(_settings(f"hansa_{federation}", address, "store", FILES)) + f"include {AUTHORIZATION}\n"


def _settings(name: str, address: Address, store: str, files: dict[str, str]) -> dict[str, Any]:
    return {
        "server_name": name,
        "host": "127.0.0.1" if address[0] in ("localhost", "127.0.0.1") else "0.0.0.0",
        "port": address[1],
        "max_payload": MAX_MESSAGE_BYTES,
        "max_pending": MAX_PENDING_BYTES,
        "max_subscriptions": MAX_SUBSCRIPTIONS,
        "max_connections": MAX_CONNECTIONS,
        "max_control_line": 4096,
        "ping_interval": "20s",
        "ping_max": 3,
        "write_deadline": "10s",
        "jetstream": {"store_dir": store, "max_mem": 64 << 20, "max_file": MAX_STORE_BYTES},
        "tls": {**files, "verify_and_map": True, "min_version": "1.3", "timeout": HANDSHAKE_SECONDS},
    }


def _lines(settings: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()) + "\n"
