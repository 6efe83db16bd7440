"""docs/deploy.md, walked: the page's commands as they stand there, in real processes, each in its owner's folder."""

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
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from hansa.deploy.broker import binary
from tests.deploy.conftest import free_ports
from tests.deploy.tunnel import Tunnel

PAGE = Path(__file__).parent.parent.parent / "docs" / "deploy.md"
BLOCK = re.compile(r"^```(yaml|sh) (\S+)(?: (\S+))?\n(.*?)^```", re.S | re.M)
PATIENCE = 600.0  # seconds, for machines with other things to do


def section(heading: str, until: str) -> list[tuple[str, str, str, str]]:
    """The blocks between two headings: what kind, whose, the file or ``after``, the text."""
    text = PAGE.read_text(encoding="utf-8")
    text = text[text.index(heading) :]
    return BLOCK.findall(text[: text.index(until)])


class Walk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(6)
        self.health, self.nats = ports[4], ports[5]
        self.places = {
            "hansa.example.org:4222": f"localhost:{ports[0]}+{ports[1]}",
            "iberia.example.org:4222": f"localhost:{ports[2]}+{ports[3]}",
            "nats.example.org:4222": f"localhost:{self.nats}",
            "--health 8642": f"--health {self.health}",
        }
        self.waiting: list[subprocess.Popen[bytes]] = []  # agents and regions, until they are stopped
        self.serving: list[subprocess.Popen[bytes]] = []  # coordinators, until they are done

    def home(self, who: str) -> Path:
        found = self.folder / who
        found.mkdir(exist_ok=True)
        return found

    def through(self, blocks: list[tuple[str, str, str, str]]) -> None:
        for kind, who, mark, text in blocks:
            if kind == "yaml":
                (self.home(who) / mark).write_text(text, encoding="utf-8")
                continue
            if mark == "after":
                self.finish()
            for line in text.splitlines():
                self.type(who, line)
        self.finish()

    def type(self, who: str, line: str) -> None:
        for here, there in self.places.items():
            line = line.replace(here, there)
        words = shlex.split(line)
        if words[:2] == ["tar", "-xzf"]:
            shutil.copy(self.folder / "coordinator" / words[2], self.home(who))
        if words[:2] in (["hansa", "join"], ["hansa", "serve"]) or words[0] == "nats-server":
            process = self.start(who, words)
            (self.serving if words[-1] and any(w.endswith(".yaml") for w in words) else self.waiting).append(process)
            return
        until = monotonic() + PATIENCE
        while (done := self.run(who, words)).returncode and words[1] == "status" and monotonic() < until:
            sleep(1.0)  # the coordinator is only just starting
        assert done.returncode == 0, f"{who}: {line}\n{done.stdout}\n{done.stderr}"

    def run(self, who: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(_program(words), cwd=self.home(who), capture_output=True, text=True, timeout=PATIENCE)

    def start(self, who: str, words: list[str]) -> "subprocess.Popen[bytes]":
        said = (self.home(who) / f"{words[1].strip('-')}.log").open("ab")
        with said:
            return subprocess.Popen(_program(words), cwd=self.home(who), stdout=said, stderr=said)

    def finish(self) -> None:
        """Until the coordinators are done."""
        for process in self.serving:
            code = process.wait(timeout=PATIENCE)
            assert code == 0, self.said()
        self.serving = []

    def stop(self) -> None:
        """SIGTERM ends agents and regions, and they say that all is well."""
        for process in self.waiting:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=PATIENCE) for process in self.waiting]
        self.waiting = []
        assert not any(codes), self.said()

    def said(self) -> str:
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
    for process in [*begun.waiting, *begun.serving]:
        process.kill()
        process.wait()


@pytest.mark.slow_fault
def test_two_hospitals_and_a_coordinator(walk):
    walk.through(section("## The coordinator makes the kits", "## A second region"))
    assert probe(walk.health, "/healthz") == {"alive": True}
    assert "ready" in probe(walk.health, "/readyz")
    lines = (walk.folder / "lyon" / "join.log").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["level"] for line in lines), "structured logs are JSON, line by line"
    told = json.loads(walk.run("coordinator", ["hansa", "status", "runs/clinics", "--format", "json"]).stdout)
    assert {node["node"]: bool(node["version"]) for node in told["nodes"]} == {"lyon": True, "turin": True}
    assert all(abs(node["skew"]) < 60 for node in told["nodes"])
    walk.stop()


@pytest.mark.slow_fault
def test_a_second_region(walk):
    walk.through(section("## A second region", "## Through a proxy"))
    assert (walk.folder / "coordinator" / "runs" / "south" / "model" / "config.json").is_file()
    walk.stop()


@pytest.mark.slow_fault
def test_through_a_proxy_and_by_a_nats_of_somebody_else(walk):
    with Tunnel() as tunnel:
        walk.places["proxy.example.org:3128"] = f"127.0.0.1:{tunnel.port}"
        walk.through(section("## Through a proxy", "## Running it for long"))
        ports = {int(target.rpartition(":")[2]) for target in tunnel.passed}
    assert walk.nats in ports
    assert len(ports) == 2, "letters and weights"
    assert not (walk.folder / "coordinator" / "runs" / "guests" / "server" / "broker").exists()
    server = walk.waiting.pop(0)  # not ours to stop by SIGTERM
    server.kill()
    server.wait()
    walk.stop()


def probe(port: int, path: str) -> dict[str, object]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as reply:
            return json.loads(reply.read())
    except URLError as error:
        return json.loads(error.fp.read())  # type: ignore[attr-defined]
