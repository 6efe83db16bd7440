"""What a nats-server is told: TLS with the federation's certificates, JetStream, and who may speak and listen where.

Our own server is started from such a file in its run directory; `hansa kit create --nats` writes one for whoever runs
the server. Members are told apart by their certificates, so there are no passwords.
"""

import json
from pathlib import Path
from typing import Any

from hansa.deploy.kit import Kit, identity
from hansa.deploy.network.address import Address

LARGEST_MESSAGE = 64 << 10  # envelopes only: weights and texts do not pass through the broker
LARGEST_STORE = 1 << 30
FILES = {"cert_file": "cert.pem", "key_file": "key.pem", "ca_file": "ca.pem"}
NATS = "nats"  # the folder beside the kits
AUTHORIZATION = "authorization.conf"
PREFACE = """\
# The broker of federation {federation}. In this folder: nats-server -c nats.conf
# Members are admitted in {authorization}; after 'hansa kit renew' or 'revoke' put the new one here, then:
# nats-server --signal reload
"""


def authorization(*serving: Kit) -> str:
    """Everybody's rights, by certificate, on a server that these nodes use: also to be included by one of your own."""
    rights: dict[str, dict[str, list[str]]] = {}
    for kit in serving:
        subjects = kit.below
        for name in (kit.name, *kit.card.children):
            may = subjects.parent_may() if name == kit.name else subjects.child_may(name)
            known = rights.setdefault(name, {})
            for direction, allowed in may.items():  # a region has those of a child and those of a parent
                known[direction] = known.get(direction, []) + allowed
    members, federation = serving[0].members(), serving[0].card.federation
    users = [
        {
            "user": identity(name, generation, federation),
            "permissions": {direction: {"allow": allowed} for direction, allowed in may.items()},
        }
        for name, may in rights.items()
        for generation in members[name].generations
    ]
    return "authorization " + json.dumps({"timeout": 10, "users": users}, indent=1) + "\n"


def configuration(kit: Kit, store: Path) -> str:
    """Of a server of our own."""
    assert kit.card.serves is not None
    files = {name: str((kit.folder / file).resolve()) for name, file in FILES.items()}
    settings = _settings(kit.below.stream, kit.card.serves.letters, str(store.resolve()), files)
    return _lines(settings) + authorization(kit)


def foreign(federation: str, address: Address) -> str:
    """Of a server that somebody else runs, in the folder that the file lies in."""
    preface = PREFACE.format(federation=federation, authorization=AUTHORIZATION)
    return preface + _lines(_settings(f"hansa_{federation}", address, "store", FILES)) + f"include {AUTHORIZATION}\n"


def _settings(name: str, address: Address, store: str, files: dict[str, str]) -> dict[str, Any]:
    return {
        "server_name": name,
        "host": "127.0.0.1" if address[0] in ("localhost", "127.0.0.1") else "0.0.0.0",
        "port": address[1],
        "max_payload": LARGEST_MESSAGE,
        "max_control_line": 4096,
        "ping_interval": "20s",
        "ping_max": 3,
        "write_deadline": "10s",
        "jetstream": {"store_dir": store, "max_mem": 64 << 20, "max_file": LARGEST_STORE},
        "tls": {**files, "verify_and_map": True, "min_version": "1.3", "timeout": 10},
    }


def _lines(settings: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()) + "\n"
