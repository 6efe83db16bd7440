"""What `hansa serve` and `hansa silo-page` do with the kit of a region: options that fit work, others are refused."""

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from time import monotonic, sleep, time
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.nodes import Node
from hansa.core.errors import UserError
from hansa.deploy.agent import Agent
from hansa.deploy.alerts import Alerts, Webhook
from hansa.deploy.kit import Kit
from hansa.deploy.network.journal import HEARTBEAT, Journal
from hansa.deploy.public_certificate import PublicCertificate, self_signed
from hansa.deploy.status import JOURNAL, SERVER_FOLDER
from tests.conftest import Build
from tests.deploy.conftest import NoService, make_kits
from tests.deploy.test_alerts import SECRET, Receiver

# A client that does not know Ed25519, as browsers and many proxies.
OPENSSL = ("openssl", "s_client", "-sigalgs", "ECDSA+SHA256:RSA-PSS+SHA256", "-servername", "localhost", "-connect")


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Path:
    flat = federation()
    west = Node(silos={name: flat.silos[name] for name in ("north", "south")})
    return make_kits(flat.model_copy(update={"silos": {"west": west, "east": flat.silos["east"]}}), tmp_path / "kits")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--data", "a.jsonl"], "leave --data out: the coordinator takes it from the federation file"),
        (["--policy", "p.yaml"], "leave --policy out: a coordinator releases nothing to a parent"),
        (["--model", "m"], "leave --model out: the coordinator takes it"),
        (["--plugins", "p.py"], "leave --plugins out: the coordinator takes it"),
        (["--at-once", "2"], "--at-once is for a coordinator with --queue"),
        (["--keep-days", "9"], "--keep-days is for a coordinator with --queue"),
    ],
)
def test_options_that_a_coordinator_cannot_use_are_refused(
    kits: Path, tmp_path: Path, options: Any, reason: str
) -> None:
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "fed.yaml"), "--kit", str(kits / "coordinator"), *options])
    assert isinstance(done.exception, UserError)
    assert reason in str(done.exception)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["fed.yaml"], "leave the federation file out: a region gets the settings of every run from its parent"),
        (["--queue", "runs"], "leave --queue out: only the coordinator has a queue"),
        (["--at-once", "2"], "leave --at-once out: it belongs to the coordinator's --queue"),
        (["--keep-days", "9"], "leave --keep-days out: it belongs to the coordinator's --queue"),
        (["--accounts", "a.json"], "leave --accounts out: the dashboard shows the coordinator's runs"),
        (["--oidc", "oidc.yaml"], "leave --oidc out: the dashboard shows the coordinator's runs"),
        (["--certificate", "cert.pem"], "--certificate and --key belong together"),
        (["--certificate", "cert.pem", "--key", "key.pem"], "cannot be used"),
        (["--webhook", "http://alerts.example.org/"], "https"),
        (["--webhook", "https://alerts.example.org/"], "HANSA_WEBHOOK_SECRET"),
    ],
)
def test_options_that_a_region_cannot_use_are_refused(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, reason: str
) -> None:
    monkeypatch.delenv("HANSA_WEBHOOK_SECRET", raising=False)
    command = ["serve", "--kit", str(kits / "west"), "--out", str(tmp_path / "west"), *options]
    refused = CliRunner().invoke(app, command).exception
    assert isinstance(refused, UserError)
    assert reason in str(refused)
    assert refused.exit_code == 2
    assert not (tmp_path / "west").exists(), "nothing was started"


@pytest.mark.parametrize("node", ["west", "coordinator"])
def test_the_page_of_a_silo_is_for_silos(kits: Path, node: str) -> None:
    refused = CliRunner().invoke(app, ["silo-page", str(kits / node), "--listen", "127.0.0.1:0"]).exception
    assert isinstance(refused, UserError)
    kind = "region" if node == "west" else node
    assert f"is the kit of a {kind}, and only silos have such a page; 'hansa status RUN' shows" in str(refused)
    assert refused.exit_code == 2
    assert not (kits / node / "home").exists()


@contextmanager
def region(kits: Path, folder: Path, *options: str) -> Iterator[Kit]:
    """`hansa serve` with the kit of the region as a process; its parent does not run."""
    kit, log = Kit(kits / "west"), folder / "west.log"
    command = [sys.executable, "-m", "hansa", "serve", "--kit", str(kit.folder), "--out", str(folder / "west")]
    with log.open("w") as said, subprocess.Popen([*command, *options], stdout=said, stderr=said) as process:
        try:
            wait_for(lambda: process.poll() is not None or listens(kit), log)
            assert process.poll() is None, log.read_text()
            yield kit
        finally:
            process.terminate()
            process.wait(60)


def wait_for(condition: Any, log: Path, seconds: float = 120.0) -> None:
    until = monotonic() + seconds
    while not condition():
        assert monotonic() < until, log.read_text()
        sleep(0.2)


def listens(kit: Kit) -> bool:
    with suppress(OSError), socket.create_connection(("localhost", kit.endpoint.port)):
        return True
    return False


def shown(kit: Kit) -> str:
    """The fingerprint of the certificate that a client without Ed25519 sees; empty if it sees none."""
    command = [*OPENSSL, f"localhost:{kit.endpoint.port}"]
    text = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False).stdout
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in text:
        return ""
    return sha256(PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end)] + end)).hexdigest()


def fingerprint(files: PublicCertificate) -> str:
    return files.fingerprint.replace(":", "").lower()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_region_shows_its_certificate_to_clients_that_do_not_know_the_kits(kits: Path, tmp_path: Path) -> None:
    files = self_signed(tmp_path / "public", ["localhost"])
    given = ("--certificate", str(files.certificate), "--key", str(files.key))
    with region(kits, tmp_path, *given) as kit:
        assert shown(kit) == fingerprint(files)
    with region(kits, tmp_path) as kit:  # negative control: one that the region signs itself
        own = PublicCertificate(tmp_path / "west" / "server" / "pages-cert.pem", files.key)
        assert shown(kit) == fingerprint(own) != fingerprint(files)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_members_of_a_region_are_watched_without_a_run(receiver: Receiver, tmp_path: Path) -> None:
    def beat(age: float) -> None:
        facts = {"phase": "idle", "version": "", "last_seen": time() - age, "skew": 0, "serial": 1}
        journal.set_fact(HEARTBEAT + "north", facts)

    with closing(Journal(tmp_path / "west" / SERVER_FOLDER / JOURNAL)) as journal:
        journal.set_fact("children", ["north", "south"])
        beat(300)
        alerts = Alerts(Webhook.parse(receiver.url, SECRET), print, grace=0.0)
        alerts._look_seconds = 0.05
        sleep(0.5)
        assert receiver.events == [], "nothing is watched yet"
        alerts.watch(tmp_path / "west", "small", (tmp_path / "west").name)
        wait_for(lambda: receiver.events == ["member missing"], tmp_path)
        beat(0)
        wait_for(lambda: receiver.events == ["member missing", "member back"], tmp_path)
        alerts.close()
    assert b'"federation": "small", "run": "west"' in receiver.got[0][1]


@pytest.mark.slow_fault
def test_a_region_says_which_of_its_silos_is_missing(
    kits: Path, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANSA_WEBHOOK_SECRET", SECRET)
    with region(kits, tmp_path, "--webhook", receiver.url):
        agent = Agent(Kit(kits / "north"), tmp_path / "north", NoService(), print)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        wait_for(lambda: agent.not_ready() == "", tmp_path / "west.log")
        sleep(6)  # a heartbeat
        assert receiver.events == []
        agent.stop()
        thread.join(60)
        wait_for(lambda: receiver.events == ["member missing"], tmp_path / "west.log", 180)
    assert b"'north' sends no heartbeat" in receiver.got[0][1]
