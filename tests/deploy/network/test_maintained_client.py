"""Why Hansa has a NATS client of its own: two faults that nats-py, the maintained client for Python, does not survive.

It reaches the coordinator's port where nothing is in between (the positive control). It does not connect through an
HTTP proxy, which is the only way out of many hospitals, and over a WebSocket its `connect_timeout` does not bound the
wait for a server, or a proxy, that accepts the connection and stays silent. If a newer version passes, they fail.
"""

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network import address
from hansa.deploy.network.address import Proxy
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.nkey import answer
from hansa.deploy.network.route import Route
from hansa.deploy.server_session import server_session
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.tunnel import Tunnel

TIMEOUT, MUCH_LONGER = 1, 8.0  # seconds


def in_a_process(*arguments: str, **environment: str) -> Any:
    """What a function below returns, with nats-py in a process of its own: it leaves sockets open."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.deploy.network.test_maintained_client", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def reaches(kit_folder: str, port: str) -> bool:
    """Whether nats-py connects to the port by WebSocket, as the member with a kit, and gets an answer to a PING."""
    import nats.errors
    from nats.aio.client import Client

    kit, client = Kit(Path(kit_folder)), Client()
    context = ssl.create_default_context(cafile=kit.folder / "ca.pem")
    context.load_cert_chain(kit.folder / "cert.pem", kit.folder / "key.pem")
    client._public_nkey = answer(kit.key, "")["nkey"]  # its own option takes a seed, and needs a further library
    with suppress(nats.errors.Error, OSError, TimeoutError):
        await client.connect(
            f"wss://localhost:{port}/nats",
            tls=context,
            signature_cb=lambda nonce: answer(kit.key, nonce)["sig"].encode(),
            inbox_prefix=kit.parent_subjects.inbox(kit.name),
            connect_timeout=20,
            allow_reconnect=False,
        )
        await client.flush(20)
        return True
    return False


async def waits(url: str) -> float:
    """For how many seconds nats-py waits for a connection with a timeout of one; no longer than `MUCH_LONGER`."""
    import nats.errors
    from nats.aio.client import Client

    began = monotonic()
    with suppress(nats.errors.Error, OSError, TimeoutError):
        connecting = Client().connect(url, connect_timeout=TIMEOUT, allow_reconnect=False)
        await asyncio.wait_for(connecting, MUCH_LONGER)
    return monotonic() - began


def test_it_does_not_connect_through_a_proxy(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    kit, port = Kit(kits / "north"), Kit(kits / COORDINATOR).endpoint.port
    with Tunnel() as tunnel, server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, print):
        proxy = f"http://127.0.0.1:{tunnel.port}"
        assert in_a_process("reaches", str(kit.folder), str(port), HTTPS_PROXY=proxy, https_proxy=proxy)
        assert tunnel.passed == [], "it speaks with our port, and passes the proxy by"
        connection = Connection(kit.route(Proxy("127.0.0.1", tunnel.port)), kit.key, kit.parent_subjects.inbox("north"))
        connection.close()
        assert tunnel.passed == [f"localhost:{port}"], "ours goes through it"


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and never says anything."""
    held: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    held.append(server.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in held:
        one.close()


def test_its_wait_for_a_silent_server_has_no_bound(
    silent: int, federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_a_process("waits", f"nats://127.0.0.1:{silent}") < MUCH_LONGER, "over plain TCP it has one"
    assert in_a_process("waits", f"ws://127.0.0.1:{silent}/nats") >= MUCH_LONGER
    monkeypatch.setattr(address, "CONNECT_SECONDS", float(TIMEOUT))
    kit = Kit(make_kits(federation(), tmp_path / "kits") / "north")
    began = monotonic()
    with pytest.raises(OSError):
        Connection(
            Route(lambda: [("127.0.0.1", silent)], kit.client_tls()), kit.key, kit.parent_subjects.inbox("north")
        )
    assert monotonic() - began < MUCH_LONGER, "ours has one"


if __name__ == "__main__":
    asked, *rest = sys.argv[1:]
    print(json.dumps(asyncio.run(reaches(*rest) if asked == "reaches" else waits(*rest))))
