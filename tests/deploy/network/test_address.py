"""Connections through a proxy and through an existing NATS server give the same bits; renewed certificates."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hansa.config.nodes import Node
from hansa.core.errors import UserError
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.broker import binary
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import Proxy, choose_proxy, open_connection, parse_address, show_address
from hansa.deploy.network.nkey import nkey
from hansa.runs.run import run
from tests.cli.test_cli import ok
from tests.conftest import Build, same, weights
from tests.deploy.conftest import free_ports, joined, make_kits, regions
from tests.deploy.tunnel import Tunnel

WAIT_SECONDS = 300.0  # for a loaded machine


@contextmanager
def running(agent: Agent) -> Iterator[Any]:
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        agent.stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = monotonic() + WAIT_SECONDS
    while not condition():
        assert monotonic() < end, f"{what}: not within {WAIT_SECONDS:.0f} s"
        sleep(0.02)


def silo(settings: Any, kits: Any, home: Any, name: str, log: Any, proxy: Proxy | None = None) -> Agent:
    kit = Kit(kits / name)
    return Agent(kit, home / name, SiloService(kit, settings.silos[name].sources, settings.plugins), log, proxy)


def test_all_connections_go_through_the_proxy_and_the_bits_are_the_same(
    federation: Build, tmp_path: Path, log: Any
) -> None:
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    endpoint = Kit(kits / COORDINATOR).endpoint
    rest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "north"}})
    with Tunnel("name:secret") as tunnel, joined(rest, kits, tmp_path / "silos", log.say):
        proxy = Proxy.parse(f"http://name:secret@127.0.0.1:{tunnel.port}")
        with running(silo(settings, kits, tmp_path / "silos", "north", log.say, proxy)):
            there = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
        assert set(tunnel.passed) == {f"localhost:{endpoint.port}"}, "one port for everything"
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert "secret" not in "".join(log.lines)


def test_failures_of_a_proxy_are_reported(tmp_path: Path) -> None:
    [unused] = free_ports(1)
    with Tunnel("name:secret") as tunnel:
        with pytest.raises(OSError, match="refused the connection: 407 Proxy Authentication Required"):
            open_connection(("localhost", unused), Proxy("127.0.0.1", tunnel.port))
        with pytest.raises(OSError, match="refused the connection: 502 Bad Gateway"):
            open_connection(("localhost", unused), Proxy("127.0.0.1", tunnel.port, "name:secret"))
    with pytest.raises(OSError, match=f"the proxy 127.0.0.1:{unused} cannot be reached"):
        open_connection(("localhost", 1), Proxy("127.0.0.1", unused))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def not_http() -> None:
            one, _ = server.accept()
            one.sendall(b"220 mail.example.org ESMTP\r\n\r\n")
            one.close()

        threading.Thread(target=not_http, daemon=True).start()
        with pytest.raises(OSError, match="refused the connection"):
            open_connection(("localhost", unused), Proxy("127.0.0.1", server.getsockname()[1]))


@pytest.mark.parametrize("url", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:x", "http://:3128"])
def test_the_url_of_a_proxy_is_checked(url: Any) -> None:
    with pytest.raises(UserError, match="write it as http://HOST:PORT"):
        Proxy.parse(url)
    with pytest.raises(UserError) as refused:
        Proxy.parse("https://name:secret@proxy:3128")
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(Proxy.parse("http://name:secret@proxy:3128"))


def test_the_proxy_of_the_environment_is_used_unless_the_host_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert choose_proxy(None, "hansa.example") == Proxy("proxy.example", 3128)
    assert choose_proxy(None, "inside.example") is None
    assert choose_proxy("http://other.example:8080", "inside.example") == Proxy("other.example", 8080)
    monkeypatch.setenv("HTTPS_PROXY", "https://proxy.example")
    with pytest.raises(UserError, match=r"HTTPS_PROXY 'https://proxy.example': write it as"):
        choose_proxy(None, "hansa.example")


@pytest.mark.parametrize(("text", "found"), [("a:5", ("a", 5)), ("a", ("a", 443)), ("[::1]:5", ("::1", 5))])
def test_addresses_are_read_and_written(text: Any, found: Any) -> None:
    assert parse_address(text, 443) == found
    assert parse_address(show_address(found)) == found


@pytest.mark.parametrize("text", ["", ":5", "a:", "a:0", "a:65536", "a:x", "a/b:5", "::1:5", "a:5+6", "u@a:5"])
def test_malformed_addresses_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"it is not HOST:PORT|the port is not a number"):
        parse_address(text)


def test_a_stopped_agent_finishes_the_reply_that_it_sends(federation: Build, tmp_path: Path, log: Any) -> None:
    """The proxy stops forwarding while a reply is sent; the agent is stopped; then the proxy forwards again."""
    settings = federation(rounds=1, evaluate={"every": 9, "share": 1.0})
    kits = make_kits(settings, tmp_path / "kits")
    rest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "north"}})
    with Tunnel() as tunnel, joined(rest, kits, tmp_path / "silos", log.say):
        lines: list[str] = []

        def watch(text: str) -> None:
            lines.append(text)
            if text == "Train of round 1: started":
                tunnel.free.clear()

        agent = silo(settings, kits, tmp_path / "silos", "north", watch, Proxy("127.0.0.1", tunnel.port))
        with running(agent) as thread:
            run_there = threading.Thread(
                target=serve, args=(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log]), daemon=True
            )
            run_there.start()
            wait_until(lambda: agent.phase == "sending" and not tunnel.free.is_set(), "the upload of the reply")
            agent.stop()
            assert thread.is_alive()
            tunnel.free.set()
            thread.join(WAIT_SECONDS)
            assert not agent.busy
            assert "Train of round 1: reply sent" in lines
        with running(silo(settings, kits, tmp_path / "silos", "north", log.say)):  # for the final evaluation
            run_there.join(WAIT_SECONDS)
            assert not run_there.is_alive()
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(tmp_path / "run" / "model"))


def test_a_renewed_kit_is_used_without_a_restart(federation: Build, tmp_path: Path, log: Any) -> None:
    """A revoked agent is disconnected; with the renewed kit, which has another key, the same agent works again."""
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    with joined(settings, kits, tmp_path / "silos", log.say):
        serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])
        authority.revoke(kits, "north")
        assert authority.renew(kits, "north", 30) == 2
        authority.renew(kits, COORDINATOR, 30)
        again = serve(settings, Kit(kits / COORDINATOR), tmp_path / "again", None, [log])
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(again.folder / "model"))


def test_an_incomplete_certificate_leaves_the_previous_one_in_use(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    kit = Kit(kits / "north")
    tls, key = kit.client_tls(), kit.key
    for name in ("cert.pem", "key.pem"):
        (kits / "north" / name).write_text("half of")
    assert kit.key is key
    assert tls._newest() is tls._context
    with pytest.raises(UserError, match="the certificate cannot be used"):
        kit.client_tls()


# ── an existing NATS server ───────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def existing_broker(folder: Any, port: int) -> Iterator[Any]:
    """Start a NATS server in its folder, as its operator does."""
    with (folder / "nats.log").open("wb") as log:
        process = subprocess.Popen([binary(), "-c", "nats.conf"], cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or _listens(port), "a listening broker")
        assert process.poll() is None, (folder / "nats.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("localhost", port), timeout=1.0):
        return True
    return False


@pytest.mark.parametrize("tree", [False, True])
def test_a_run_with_an_existing_nats_server(federation: Build, tmp_path: Path, log: Any, tree: Any) -> None:
    """One server for the coordinator and its regions, with the configuration that came with the kits."""
    settings = federation(rounds=1)
    if tree:
        region = Node(silos={n: settings.silos[n] for n in ("north", "south")})
        settings = settings.model_copy(update={"silos": {"west": region, "east": settings.silos["east"]}})
    port, own, west = free_ports(3)
    addresses = {COORDINATOR: f"localhost:{own}"} | ({"west": f"localhost:{west}"} if tree else {})
    authority.create(settings, tmp_path / "kits", addresses, 30, f"localhost:{port}")
    with (
        existing_broker(tmp_path / "kits" / "nats", port),
        regions(settings, tmp_path / "kits", tmp_path / "regions", log.say),
        joined(settings, tmp_path / "kits", tmp_path / "silos", log.say),
    ):
        url = None if tree else f"wss://localhost:{port}"  # the kit has it too
        outcome = serve(settings, Kit(tmp_path / "kits" / COORDINATOR), tmp_path / "run", url, [log])
    assert not (tmp_path / "run" / "server" / "broker").exists(), "the coordinator started no server"
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(outcome.folder / "model"))


def test_the_configuration_of_an_existing_nats_server(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    (tmp_path / "fed.yaml").write_text(json.dumps(settings.model_dump(mode="json")))
    out = ("--out", str(tmp_path / "kits"))
    assert "nats-server -c" in ok("kit", "create", str(tmp_path / "fed.yaml"), *out, "--nats", "nats.example:4333")
    folder = tmp_path / "kits" / "nats"
    rules = json.loads((folder / "authorization.conf").read_text().removeprefix("authorization "))
    members = Kit(tmp_path / "kits" / COORDINATOR).members()
    assert {user["nkey"] for user in rules["users"]} == {nkey(bytes.fromhex(one.key)) for one in members.values()}
    checked = subprocess.run([binary(), "-t", "-c", "nats.conf"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert Kit(tmp_path / "kits" / COORDINATOR).endpoint.nats == ("nats.example:4333",)
    assert Kit(tmp_path / "kits" / "north").parent.nats == (), "silos reach it through the coordinator"
    assert "authorization.conf to the NATS server, and reload it" in ok(
        "kit", "revoke", str(tmp_path / "kits"), "north"
    )
    assert nkey(bytes.fromhex(members["north"].key)) not in (folder / "authorization.conf").read_text()
    before = (folder / "cert.pem").read_bytes()
    ok("kit", "renew", str(tmp_path / "kits"), "nats")
    assert (folder / "cert.pem").read_bytes() != before
