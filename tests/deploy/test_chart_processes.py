"""What the chart starts, as real processes of this machine, and the commands of docs/clusters.md."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from urllib.request import urlopen

import pytest

from hansa.cli.deploy import TERMINATED
from hansa.dashboard.accounts import Accounts, Role
from hansa.deploy.public_certificate import self_signed
from tests.conftest import Build
from tests.deploy.chart import DOCS, SECONDS, STANDING, Document, containers, node, pod, render
from tests.deploy.conftest import free_ports, make_kits
from tests.deploy.test_packaging import ROOT, parse_command


def started(container: Document, places: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start what a container would start, with other folders and ports, as a process of this machine."""
    text = "\n".join(container["args"])
    for place, other in places.items():
        assert place in text, place
        text = text.replace(place, other)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HANSA_WEBHOOK_SECRET": "sixteen-characters"}
    with log.open("wb") as stream:
        words = [sys.executable, "-m", "hansa", *text.split("\n")]
        return subprocess.Popen(words, env=environment, stdout=stream, stderr=stream)


def wait_for_page(process: "subprocess.Popen[bytes]", url: str, log: Path) -> str:
    begun = monotonic()
    while True:
        assert process.poll() is None, log.read_text()
        assert monotonic() - begun < SECONDS
        try:
            with urlopen(url) as answer:
                return str(answer.read().decode())
        except OSError:
            sleep(0.2)


@pytest.mark.slow_fault
def test_a_rendered_standing_coordinator_starts_and_stops(federation: Build, tmp_path: Path) -> None:
    kit = make_kits(federation(sizes={"north": 30}), tmp_path / "kits") / "coordinator"
    Accounts(tmp_path / "accounts.json").add("anna", "a long enough password", Role.approver, ("*",))
    public = self_signed(tmp_path / "web", ["localhost"])
    secrets = "coordinator.accounts.secret=people,coordinator.tls.secret=web,coordinator.webhook.secret=hook"
    [health, port] = free_ports(2)
    places = {
        "/var/lib/hansa/kit": str(kit),
        "/var/lib/hansa/runs": str(tmp_path / "runs"),
        "/etc/hansa/accounts": str(tmp_path),
        "/etc/hansa/tls/tls.crt": str(public.certificate),
        "/etc/hansa/tls/tls.key": str(public.key),
        "$(HANSA_WEBHOOK_URL)": "https://alerts.example.org/hansa",
        "0.0.0.0:8642": f"127.0.0.1:{health}",
        "--listen=8443": f"--listen={port}",
    }
    log = tmp_path / "log"
    running = started(node(render(*STANDING, "--set", secrets)), places, log)
    try:
        wait_for_page(running, f"http://127.0.0.1:{health}/readyz", log)
        assert "waiting for runs" in log.read_text()
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS) == TERMINATED
    finally:
        running.kill()


@pytest.mark.slow_fault
def test_a_rendered_silo_and_its_page_start_together(federation: Build, tmp_path: Path) -> None:
    settings = federation(sizes={"north": 30})
    kit = make_kits(settings, tmp_path / "kits") / "north"
    [health, port] = free_ports(2)
    found = containers(render())
    shared = {"/var/lib/hansa/kit": str(kit), "/etc/hansa/config/policy.yaml": str(kit / "policy.yaml")}
    data = {"=/data": f"={settings.silos['north'].sources[0].train}", "0.0.0.0:8642": f"127.0.0.1:{health}"}
    agent = started(found["hansa"], shared | data, tmp_path / "agent")
    page = started(found["page"], shared | {"127.0.0.1:8081": f"127.0.0.1:{port}"}, tmp_path / "page")
    try:
        wait_for_page(agent, f"http://127.0.0.1:{health}/healthz", tmp_path / "agent")
        assert "north" in wait_for_page(page, f"http://127.0.0.1:{port}/", tmp_path / "page")
        assert (kit / "home" / "page-token").is_file()
        for process, codes in ((agent, {0}), (page, {0, -signal.SIGTERM})):
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) in codes
    finally:
        agent.kill()
        page.kill()


def documented(program: str) -> list[list[str]]:
    """The commands of a program on the page about clusters, in words."""
    text = DOCS.read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(rf"^\$ ({program} .*)$", text, re.M)]


def test_the_documented_installations_are_rendered(tmp_path: Path) -> None:
    found = documented("helm")
    assert len(found) >= 4
    roles = set()
    for words in found:
        assert words[1] in ("install", "upgrade")
        arguments = words[4:]
        for at, word in enumerate(arguments):
            if word == "--set-file":
                name, _, _ = arguments[at + 1].partition("=")
                (tmp_path / "text").write_text("name: clinics\n")
                arguments[at + 1] = f"{name}={tmp_path / 'text'}"
        documents = render(*arguments)
        roles.add(pod(documents)["metadata"]["labels"]["app.kubernetes.io/component"])
        node(documents)
    assert roles == {"coordinator", "region", "silo"}


def test_the_documented_commands_in_a_pod_exist() -> None:
    inside = [words[words.index("--") + 1 :] for words in documented("kubectl") if "exec" in words]
    hansa = [words[1:] for words in inside if words[0] == "hansa"]
    assert {words[0] for words in hansa} >= {"approve", "submit", "status"}
    for words in hansa:
        parse_command(words)
