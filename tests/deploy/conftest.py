"""Kits for small federations, and agents that run as threads of the test, with real sockets and certificates."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from hansa.config.federation import Federation
from hansa.config.nodes import walk
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.region import serve_region
from hansa.deploy.request_reader import Answer
from hansa.runs.callbacks import CurrentRun
from hansa.runs.result import Result
from tests.policies import admit_everywhere

NUMBERS = count()


def free_ports(many: int) -> list[int]:
    """Free ports below the range that the system assigns; other ones in every process."""
    ports: list[int] = []
    while len(ports) < many:
        port = 20_000 + (os.getpid() * 101 + next(NUMBERS)) % 12_000
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(port)
    return ports


def make_kits(federation: Federation, folder: Path, **options: object) -> Path:
    """Create the kits of a federation, with free ports on this machine."""
    serving = [COORDINATOR, *(name for name, node in federation.silos.items() if node.silos)]
    addresses = {n: f"localhost:{port}" for n, port in zip(serving, free_ports(len(serving)), strict=True)}
    authority.create(federation, folder, addresses, int(str(options.get("days", 30))))
    admit_everywhere(federation, folder)
    return folder


class NoService:
    """For agents that are never asked."""

    anchors = None

    def open_run(self, folder: Path, settings: bytes) -> Answer:
        raise AssertionError("no run is opened")

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        raise AssertionError("no request is refused")


class Log:
    """Collects the messages of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, run: CurrentRun, text: str) -> None:
        self.say(text)

    def say(self, text: str) -> None:
        self.lines.append(text)


@contextmanager
def joined(federation: Federation, kits: Path, home: Path, log: Callable[[str], None]) -> Iterator[dict[str, Agent]]:
    """Run an agent for every silo, each in a thread."""
    agents = {}
    copy = Path(str(federation.model.path)) if federation.model.keeps_base else None
    for name, node in walk(federation.silos):
        if node.silos:
            continue
        kit = Kit(kits / name)
        agents[name] = Agent(kit, home / name, SiloService(kit, node.sources, federation.plugins, model=copy), log)
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents.values()]
    for thread in threads:
        thread.start()
    try:
        yield agents
    finally:
        for agent in agents.values():
            agent.stop()
        for thread in threads:
            thread.join(timeout=300)
            assert not thread.is_alive()


@contextmanager
def regions(federation: Federation, kits: Path, home: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Run every region, each in a thread."""
    agents: list[Agent] = []
    threads = []
    for name in (n for n, node in federation.silos.items() if node.silos):
        own = federation.silos[name].sources
        arguments = (Kit(kits / name), home / name, None, own, federation.plugins, log, agents.append)
        threads.append(threading.Thread(target=serve_region, args=arguments, daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        for agent in agents:
            agent.stop()
        for thread in threads:
            thread.join(timeout=300)
            assert not thread.is_alive()


def over_the_network(federation: Federation, folder: Path, log: Log) -> Result:
    """Run a federation with coordinator, regions and silos, over mutual TLS on loopback."""
    kits = make_kits(federation, folder / "kits")
    with (
        regions(federation, kits, folder / "regions", log.say),
        joined(federation, kits, folder / "silos", log.say),
    ):
        return serve(federation, Kit(kits / COORDINATOR), folder / "run", None, [log])


@pytest.fixture
def log() -> Log:
    return Log()
