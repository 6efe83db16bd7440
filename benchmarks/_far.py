"""A coordinator and silos that only echo, for measuring the network alone: real kits, broker, blobs and agents."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import randrange

from hansa.config.file import parse
from hansa.core.messages import Reply, Request, Train, Update
from hansa.core.tensors import Layout, Tensors
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.link import NatsLink
from hansa.deploy.server_session import server_session


@dataclass(frozen=True)
class Echo:
    """Answers training with the model it was sent, and with its own number."""

    number: int

    anchors = None

    def open_run(self, folder: Path, settings: bytes) -> "Echo":
        """As if the run had started from a gigabyte of weights: what may be announced goes by that."""
        (folder / "start").mkdir(parents=True, exist_ok=True)
        with (folder / "start" / "model.safetensors").open("wb") as weights:
            weights.truncate(1 << 30)
        return self

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        raise AssertionError(f"{message} of round {round}: {reason}")

    def __call__(self, request: Request) -> Reply:
        assert isinstance(request, Train)
        return Update(request.model, 1 + self.number, request.round, 1, 0.0, 0.0)


def layout(size: int) -> Layout:
    return Layout(("w",), ((size // 4,),))


def model(size: int) -> Tensors:
    return Tensors.zeros(layout(size))


def free_ports(count: int) -> list[int]:
    """Ports that are free, below those that outgoing connections take."""
    ports: list[int] = []
    while len(ports) < count:
        port = randrange(15_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] if port not in ports else []
    return ports


def agents(kits: str, home: str, numbers: list[int], report) -> None:  # type: ignore[no-untyped-def]
    """Some silos, each in a thread of this process; it tells its memory whenever it is asked."""
    memory = Memory()
    for number in numbers:
        agent = Agent(Kit(Path(kits) / f"s{number}"), Path(home) / f"s{number}", Echo(number), lambda text: None)
        threading.Thread(target=agent.run, daemon=True).start()
    while report.recv() == "memory":
        report.send(memory.peak())
    report.send(None)


@contextmanager
def federation(folder: Path, silos: int, processes: int) -> Iterator[tuple[NatsLink, list]]:  # type: ignore[type-arg]
    """A link to so many echoing silos, and a pipe to each of their processes."""
    settings = parse({"name": "bench", "silos": {f"s{i}": "x" for i in range(silos)}})
    [port] = free_ports(1)
    authority.create(settings, folder / "kits", {COORDINATOR: f"localhost:{port}"}, 30)
    context = get_context("forkserver")
    pipes, workers = [], []
    for process in range(processes):
        ours, theirs = context.Pipe()
        numbers = list(range(process, silos, processes))
        arguments = (str(folder / "kits"), str(folder / "homes"), numbers, theirs)
        worker = context.Process(target=agents, args=arguments, daemon=True)
        worker.start()
        pipes.append(ours)
        workers.append(worker)
    try:
        with server_session(Kit(folder / "kits" / COORDINATOR), folder / "server", None, lambda text: None) as link:
            link.share_settings(b"{}")
            yield link, pipes
    finally:
        for pipe, worker in zip(pipes, workers, strict=True):
            pipe.send("end")
            pipe.recv()
            worker.join()


class Memory:
    """The most private memory this process has held since the last question, in bytes, looked at again and again.

    Files that it looks into do not count: they are the system's cache, dropped when memory is short.
    """

    def __init__(self) -> None:
        self._peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._peak = max(self._peak, private())
            time.sleep(0.003)

    def peak(self) -> int:
        found, self._peak = max(self._peak, private()), 0
        return found


def private(process: int | str = "self") -> int:
    """Private memory of a process now, in bytes; raises `OSError` if it has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
