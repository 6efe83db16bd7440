"""The commands of docs/deploy.md, in real processes, each in the folder of its user."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from hansa.cli.deploy import TERMINATED
from hansa.deploy.broker import binary
from hansa.deploy.leave import LEFT_FILE
from hansa.runs.results import RunResults
from tests.deploy.conftest import free_ports
from tests.deploy.tunnel import Tunnel

PAGE = Path(__file__).parent.parent.parent / "docs" / "deploy.md"
BLOCK = re.compile(r'^```(yaml|sh) title="([\w-]+)(?:: |, )?([^"]*)"\n(.*?)^```', re.S | re.M)
WAIT_SECONDS = 600.0  # for a loaded machine


def section(heading: str, until: str) -> list[tuple[str, str, str, str]]:
    """The code blocks between two headings: language, user, file name or ``after the run``, text."""
    text = PAGE.read_text(encoding="utf-8")
    text = text[text.index(heading) :]
    return BLOCK.findall(text[: text.index(until)])


class Walk:
    """Runs the commands of a section; every user has a folder in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, iberia, self.health, nats = free_ports(4)
        self.addresses = {
            "--address hansa.example.org": f"--address localhost:{self.port}",
            "iberia=iberia.example.org": f"iberia=localhost:{iberia}",
            "nats.example.org:443": f"localhost:{nats}",
            "--health 8642": f"--health {self.health}",
        }
        self.waiting: list[subprocess.Popen[bytes]] = []  # agents and regions, which run until they are stopped
        self.serving: list[subprocess.Popen[bytes]] = []  # coordinators, which end by themselves
        self.standing: list[subprocess.Popen[bytes]] = []  # coordinators of a queue, which run until they are stopped

    def home(self, user: str) -> Path:
        found = self.folder / user
        found.mkdir(exist_ok=True)
        return found

    def through(self, blocks: list[tuple[str, str, str, str]]) -> None:
        for kind, user, mark, text in blocks:
            if kind == "yaml":
                (self.home(user) / mark).write_text(text, encoding="utf-8")
                continue
            if mark == "after the run":
                self.finish()
            for line in text.splitlines():
                self.type(user, line)
        self.finish()

    def type(self, user: str, line: str) -> None:
        for here, there in self.addresses.items():
            line = line.replace(here, there)
        words = shlex.split(line)
        if words[0] == "scp":
            self.copy(user, words[1:])
            return
        if words[:2] == ["tar", "-xzf"]:
            shutil.copy(self.folder / "coordinator" / words[2], self.home(user))
        if words[:2] in (["hansa", "join"], ["hansa", "serve"]) or words[0] == "nats-server":
            started = self.serving if any(w.endswith(".yaml") for w in words) else self.waiting
            (self.standing if "--queue" in words else started).append(self.start(user, words))
            return
        until = monotonic() + WAIT_SECONDS
        while (done := self.run(user, words)).returncode and words[1] == "status" and monotonic() < until:
            sleep(1.0)  # the coordinator is still starting
        assert done.returncode == 0, f"{user}: {line}\n{done.stdout}\n{done.stderr}"

    def copy(self, user: str, words: list[str]) -> None:
        """Copy files between the folders of users, as scp does between their machines."""
        *sources, target = [self.place(user, word) for word in words]
        for source in sources:
            shutil.copy(source, target)

    def place(self, user: str, word: str) -> Path:
        other, at, path = word.partition("@")
        return self.home(other) / path.partition(":")[2] if at else self.home(user) / word

    def run(self, user: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            _program(words), cwd=self.home(user), capture_output=True, text=True, timeout=WAIT_SECONDS
        )

    def start(self, user: str, words: list[str]) -> "subprocess.Popen[bytes]":
        log = (self.home(user) / f"{words[1].strip('-')}.log").open("ab")
        with log:
            return subprocess.Popen(_program(words), cwd=self.home(user), stdout=log, stderr=log)

    def finish(self) -> None:
        """Wait until the coordinators have ended, and check their exit codes."""
        for process in self.serving:
            code = process.wait(timeout=WAIT_SECONDS)
            assert code == 0, self.logs()
        self.serving = []
        until = monotonic() + WAIT_SECONDS
        while self.standing and not set(self.queue().values()) <= {"finished", "stopped"}:
            assert "failed" not in self.queue().values(), self.logs()
            assert monotonic() < until, self.logs()
            sleep(1.0)

    def queue(self) -> dict[str, str]:
        """The submitted runs of the coordinator, with their states."""
        listed = self.run("coordinator", ["hansa", "runs", "runs", "--format", "json"]).stdout
        return {one["id"]: one["state"] for one in json.loads(listed)["runs"]}

    def stop(self) -> None:
        """Stop agents and regions with SIGTERM; their exit codes must be 0."""
        for process in self.waiting:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=WAIT_SECONDS) for process in self.waiting]
        self.waiting = []
        assert not any(codes), self.logs()
        for process in self.standing:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=WAIT_SECONDS) == TERMINATED, self.logs()
        self.standing = []

    def logs(self) -> str:
        return "\n".join(f"== {log}\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*/*.log")))


def _program(words: list[str]) -> list[str]:
    if words[0] == "nats-server":
        return [binary(), *words[1:]]
    return [sys.executable, "-m", *words] if words[0] == "hansa" else words


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walk]:
    root = str(PAGE.parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    begun = Walk(tmp_path)
    yield begun
    for process in [*begun.waiting, *begun.serving, *begun.standing]:
        process.kill()
        process.wait()


@pytest.mark.slow_fault
def test_two_hospitals_and_a_coordinator(walk: Any) -> None:
    walk.through(section("## Create the authority", "## Add a region"))
    assert probe(walk.health, "/healthz") == {"alive": True}
    assert "ready" in probe(walk.health, "/readyz")
    lines = (walk.folder / "lyon" / "join.log").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["level"] for line in lines), "every line of the log is JSON"
    status = json.loads(walk.run("coordinator", ["hansa", "status", "runs/clinics", "--format", "json"]).stdout)
    assert {node["node"]: bool(node["version"]) for node in status["nodes"]} == {"lyon": True, "turin": True}
    assert walk.queue() == {"0001": "finished", "0002": "stopped", "0003": "finished"}
    runs = walk.folder / "coordinator" / "runs"
    assert set(RunResults.read(runs / "clinics-0001").cards) == {"lyon", "turin"}
    assert set(RunResults.read(runs / "clinics-0003").cards) == {"lyon", "turin", "madrid"}, "the late member trains"
    assert all(abs(node["skew"]) < 60 for node in status["nodes"])
    keys = [file.relative_to(walk.folder) for file in walk.folder.glob("**/key.pem")]
    assert sorted(map(str, keys)) == [
        "coordinator/kit/key.pem",
        "lyon/lyon/key.pem",
        "madrid/madrid/key.pem",
        "turin/turin/key.pem",
    ], "every private key stays with its owner"
    shown = json.loads(walk.run("madrid", ["hansa", "kit", "show", "madrid", "--format", "json"]).stdout)
    assert shown["serial"] == 2
    assert [row["node"] for row in shown["members"]] == ["coordinator", "lyon", "turin", "madrid"]
    walk.through(section("## Leave a federation", "## Bill of materials"))
    assert walk.waiting[0].wait(timeout=WAIT_SECONDS) == 0, "the agent of lyon has ended by itself"
    assert (walk.folder / "lyon" / "lyon" / "home" / LEFT_FILE).is_file()
    walk.stop()


@pytest.mark.slow_fault
def test_a_region(walk: Any) -> None:
    walk.through(section("## Add a region", "## Use a proxy"))
    assert (walk.folder / "coordinator" / "runs" / "south" / "model" / "config.json").is_file()
    walk.stop()


@pytest.mark.slow_fault
def test_a_proxy_and_an_existing_nats_server(walk: Any) -> None:
    with Tunnel() as tunnel:
        walk.addresses["proxy.example.org:3128"] = f"127.0.0.1:{tunnel.port}"
        walk.through(section("## Use a proxy", "## Operation"))
        assert set(tunnel.passed) == {f"localhost:{walk.port}"}, "one port for everything"
    assert not (walk.folder / "coordinator" / "runs" / "guests" / "server" / "broker").exists()
    server = walk.waiting.pop(0)  # the NATS server
    server.kill()
    server.wait()
    walk.stop()


def probe(port: int, path: str) -> Any:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as reply:
            return json.loads(reply.read())
    except HTTPError as error:
        with error:
            return json.loads(error.read())
