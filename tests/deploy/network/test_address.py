"""Ways that are not straight: through a hospital's proxy, and by a NATS that somebody else runs. The same bits."""

import json
import socket
import subprocess
import threading
from contextlib import closing, contextmanager, suppress
from time import monotonic, sleep

import pytest

from hansa.config.nodes import Node
from hansa.core.errors import UserError
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.broker import binary
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.address import Proxy, open_connection
from hansa.runs.run import run
from tests.cli.test_cli import ok
from tests.conftest import same, weights
from tests.deploy.conftest import free_ports, joined, make_kits, regions
from tests.deploy.tunnel import Tunnel

PATIENCE = 300.0  # seconds: a loaded machine is no fault


@contextmanager
def running(agent: Agent):
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        agent.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def until(come, what: str) -> None:
    end = monotonic() + PATIENCE
    while not come():
        assert monotonic() < end, f"{what} did not come"
        sleep(0.02)


def silo(settings, kits, home, name: str, say, proxy: Proxy | None = None) -> Agent:
    kit = Kit(kits / name)
    return Agent(kit, home / name, SiloService(kit, settings.silos[name].sources, settings.plugins), say, proxy)


def test_behind_a_proxy_all_goes_through_it_and_the_bits_are_the_same(federation, tmp_path, log):
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    place = Kit(kits / COORDINATOR).endpoint
    rest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "north"}})
    with Tunnel("name:secret") as tunnel, joined(rest, kits, tmp_path / "silos", log.say):
        proxy = Proxy.parse(f"http://name:secret@127.0.0.1:{tunnel.port}")
        with running(silo(settings, kits, tmp_path / "silos", "north", log.say, proxy)):
            there = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log)
        ports = {int(target.rpartition(":")[2]) for target in tunnel.passed}
    assert ports == {place.port, place.blob_port}, "letters and weights alike"
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(there.folder / "model"))
    assert "secret" not in "".join(log.lines)


def test_a_proxy_that_does_not_let_us_pass_is_told_apart(tmp_path):
    [nobody] = free_ports(1)
    with Tunnel("name:secret") as tunnel:
        with pytest.raises(OSError, match="does not let us pass: it said 407 Proxy Authentication Required"):
            open_connection(("localhost", nobody), Proxy("127.0.0.1", tunnel.port))
        with pytest.raises(OSError, match="it said 502 Bad Gateway"):
            open_connection(("localhost", nobody), Proxy("127.0.0.1", tunnel.port, "name:secret"))
    with pytest.raises(OSError, match=f"the proxy 127.0.0.1:{nobody} is not there"):
        open_connection(("localhost", 1), Proxy("127.0.0.1", nobody))
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def nonsense() -> None:
            one, _ = server.accept()
            one.sendall(b"220 mail.example.org ESMTP\r\n\r\n")
            one.close()

        threading.Thread(target=nonsense, daemon=True).start()
        with pytest.raises(OSError, match="does not let us pass"):
            open_connection(("localhost", nobody), Proxy("127.0.0.1", server.getsockname()[1]))


@pytest.mark.parametrize("url", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://proxy:x", "http://:3128"])
def test_a_proxy_is_written_as_a_url(url):
    with pytest.raises(UserError, match="write it as http://HOST:PORT"):
        Proxy.parse(url)
    with pytest.raises(UserError) as refused:
        Proxy.parse("https://name:secret@proxy:3128")
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(Proxy.parse("http://name:secret@proxy:3128"))


def test_an_agent_that_is_stopped_finishes_what_it_sends(federation, tmp_path, log):
    """The tunnel stands still when the answer is on its way; then the agent is told to stop, and the tunnel goes on."""
    settings = federation(rounds=1, evaluate={"every": 9, "share": 1.0})
    kits = make_kits(settings, tmp_path / "kits")
    rest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != "north"}})
    with Tunnel() as tunnel, joined(rest, kits, tmp_path / "silos", log.say):
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if text == "Train of round 1":
                tunnel.free.clear()

        agent = silo(settings, kits, tmp_path / "silos", "north", say, Proxy("127.0.0.1", tunnel.port))
        with running(agent) as thread:
            run_there = threading.Thread(
                target=serve, args=(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log), daemon=True
            )
            run_there.start()
            until(lambda: agent.phase == "sending" and not tunnel.free.is_set(), "the answer on its way")
            agent.stop()
            assert thread.is_alive()
            tunnel.free.set()
            thread.join(PATIENCE)
            assert not agent.busy
            assert "Train of round 1 is answered" in said
        with running(silo(settings, kits, tmp_path / "silos", "north", log.say)):  # for the final evaluation
            run_there.join(PATIENCE)
            assert not run_there.is_alive()
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(tmp_path / "run" / "model"))


def test_a_renewed_kit_is_used_without_a_restart(federation, tmp_path, log):
    """Revoked, an agent is cut off; with the renewed kit, which has another key, the same agent is there again."""
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    with joined(settings, kits, tmp_path / "silos", log.say):
        serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log)
        authority.revoke(kits, "north")
        assert authority.renew(kits, "north", 30) == 2
        authority.renew(kits, COORDINATOR, 30)
        again = serve(settings, Kit(kits / COORDINATOR), tmp_path / "again", None, log)
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(again.folder / "model"))


def test_a_certificate_that_is_being_copied_does_not_end_anything(federation, tmp_path):
    kits = make_kits(federation(), tmp_path / "kits")
    kit = Kit(kits / "north")
    tls, key = kit.client_tls(), kit.key
    for name in ("cert.pem", "key.pem"):
        (kits / "north" / name).write_text("half of")
    assert kit.key is key
    assert tls._newest() is tls._context
    with pytest.raises(UserError, match="its certificate cannot be used"):
        kit.client_tls()


# ── a broker that somebody else runs ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def foreign_broker(folder, port: int):
    """As its operator starts it: in the folder that was handed over."""
    with (folder / "said.log").open("wb") as said:
        process = subprocess.Popen([binary(), "-c", "nats.conf"], cwd=folder, stdout=said, stderr=said)
    try:
        until(lambda: process.poll() is not None or _listens(port), "a listening broker")
        assert process.poll() is None, (folder / "said.log").read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("localhost", port), timeout=1.0):
        return True
    return False


@pytest.mark.parametrize("tree", [False, True])
def test_a_nats_that_somebody_else_runs(federation, tmp_path, log, tree):
    """One server for the coordinator and its regions, started from the file that the kits bring."""
    settings = federation(rounds=1)
    if tree:
        region = Node(silos={n: settings.silos[n] for n in ("north", "south")})
        settings = settings.model_copy(update={"silos": {"west": region, "east": settings.silos["east"]}})
    port, bulk, region_bulk, unused = free_ports(4)
    addresses = {COORDINATOR: f"localhost:{unused}+{bulk}"} | ({"west": f"localhost:1+{region_bulk}"} if tree else {})
    authority.create(settings, tmp_path / "kits", addresses, 30, f"localhost:{port}")
    with (
        foreign_broker(tmp_path / "kits" / "nats", port),
        regions(settings, tmp_path / "kits", tmp_path / "regions", log.say),
        joined(settings, tmp_path / "kits", tmp_path / "silos", log.say),
    ):
        url = None if tree else f"tls://localhost:{port}"  # the kit knows it too
        outcome = serve(settings, Kit(tmp_path / "kits" / COORDINATOR), tmp_path / "run", url, log)
        assert not _listens(unused), "no server of our own was started"
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(outcome.folder / "model"))


def test_the_broker_admits_members_alone_and_tells_a_region_apart(federation, tmp_path):
    settings = federation()
    (tmp_path / "fed.yaml").write_text(json.dumps(settings.model_dump(mode="json")))
    out = ("--out", str(tmp_path / "kits"))
    assert "nats-server -c" in ok("kit", "create", str(tmp_path / "fed.yaml"), *out, "--nats", "nats.example:4333")
    folder = tmp_path / "kits" / "nats"
    rules = json.loads((folder / "authorization.conf").read_text().removeprefix("authorization "))
    assert {user["user"].partition(".")[0] for user in rules["users"]} == {COORDINATOR, *settings.silos}
    checked = subprocess.run([binary(), "-t", "-c", "nats.conf"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert Kit(tmp_path / "kits" / "north").parent.letters == ("nats.example", 4333)
    assert "authorization.conf, and reloads it" in ok("kit", "revoke", str(tmp_path / "kits"), "north")
    assert "north." not in (folder / "authorization.conf").read_text()
    before = (folder / "cert.pem").read_bytes()
    ok("kit", "renew", str(tmp_path / "kits"), "nats")
    assert (folder / "cert.pem").read_bytes() != before
