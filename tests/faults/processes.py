"""The deployment of a fault test: coordinator, regions and silos as real processes, started quickly because they are forked
from one that has imported everything. They can be killed, and started again."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.config.nodes import leaves
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR
from tests.deploy.conftest import free_ports

PATIENCE = 300.0  # seconds: a loaded machine is no fault

# A task that stops in the middle of training while a file says so: also in which silo, and that it was reached.
GATED = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from hansa.config import Section
from hansa.tasks.base import TASKS
from hansa.tasks.mlm import MaskedLM

NOW = []

@dataclass(frozen=True)
class Gated(MaskedLM):
    gates: str = ""

    def batch(self, examples, indices, rng, vocabulary):
        NOW[:] = examples.groups
        return super().batch(examples, indices, rng, vocabulary)

    def loss(self, model, batch):
        hold = Path(self.gates) / f"hold-{NOW[0]}"
        while model.training and hold.exists():
            (Path(self.gates) / f"held-{NOW[0]}").touch()
            time.sleep(0.02)
        return super().loss(model, batch)

@TASKS.register("gated")
class Settings(Section):
    gates: str
    def build(self):
        return Gated(gates=self.gates)
"""


def act(
    arguments: list[str], log: str, namespace: str, lie: str, room: int | None, environment: dict[str, str]
) -> None:
    """A process of the deployment: the command line as anybody would start it; or one that lies, or has no more room on its
    disk than so many bytes in each file. Its parent may have been started by another test: what this one has set in
    the environment is handed over."""
    os.setsid()
    os.environ.update(environment)
    if namespace:
        _enter(namespace)
    if lie:
        from tests.faults import byzantine

        getattr(byzantine, behaviour)()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    sys.argv = ["hansa", *arguments]
    from hansa.cli.main import main

    try:
        main()
    finally:
        Path(log).with_suffix(".peak").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _enter(namespace: str) -> None:
    import ctypes

    with open(f"/var/run/netns/{namespace}") as handle:
        assert ctypes.CDLL(None).setns(handle.fileno(), 0x40000000) == 0


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder as on a disk that went read-only: what is open stays open. Root, whom no mode stops, mounts it so."""
    if os.geteuid() != 0:
        mode = folder.stat().st_mode
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(mode)
        return
    if subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True).returncode:
        pytest.skip("root without the right to mount cannot make a folder read-only")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Deployment:
    def __init__(self, federation: Federation, folder: Path, addresses: dict[str, str] | None = None) -> None:
        self.federation, self.folder = federation, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "fed.yaml"
        self.file.write_text(dump(federation), encoding="utf-8")
        self.kits = folder / "kits"
        serving = [COORDINATOR, *(name for name, node in federation.silos.items() if node.silos)]
        ports = free_ports(2 * len(serving))
        places = {n: f"localhost:{ports[2 * i]}+{ports[2 * i + 1]}" for i, n in enumerate(serving)}
        authority.create(federation, self.kits, {**places, **(addresses or {})}, 30)
        self._context = get_context("forkserver")
        imported = ["hansa.deploy.coordinator", "hansa.deploy.join", "hansa.report.html", "hansa.models.preloaded"]
        self._context.set_forkserver_preload(imported)
        self.processes: dict[str, Any] = {}

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def start(self, name: str, namespace: str = "", lie: str = "", room: int | None = None) -> None:
        """A member, by its name."""
        arguments = {
            "coordinator": ["serve", str(self.file), "--kit", str(self.kits / name), "--out", str(self.run)],
            "region": ["serve", "--kit", str(self.kits / name), "--out", str(self.folder / name)],
        }
        if name == COORDINATOR:
            command = [*arguments["coordinator"], "--format", "json"]
        elif name in self.federation.silos and self.federation.silos[name].silos:
            command = arguments["region"]
        else:
            [source] = leaves(self.federation.silos)[name].sources
            home = str(self.folder / "homes" / name)
            command = ["join", str(self.kits / name), "--data", source.train, "--home", home]
        if name != COORDINATOR:
            command += [part for file in self.federation.plugins for part in ("--plugins", file)]
        log = str(self.folder / f"{name}.log")
        told = {key: value for key, value in os.environ.items() if key.startswith("HANSA_")}
        process = self._context.Process(target=act, args=(command, log, namespace, lie, room, told), name=name)
        process.start()
        self.processes[name] = process

    def start_all(self, namespaces: dict[str, str] | None = None, lies: dict[str, str] | None = None) -> None:
        """Everybody; some in network namespaces of their own, some that lie."""
        for name in authority.Authority(self.kits / "authority").members():
            self.start(name, (namespaces or {}).get(name, ""), (lies or {}).get(name, ""))

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE)
        process.close()

    def peak(self, name: str = COORDINATOR) -> int:
        """Bytes of memory that a process has had at most, when it has come to its end."""
        return int((self.folder / f"{name}.peak").read_text())

    def kill_broker(self, name: str = COORDINATOR) -> None:
        folder = self.run if name == COORDINATOR else self.folder / name
        os.kill(int((folder / "server" / "broker" / "nats.pid").read_text()), signal.SIGKILL)

    def log(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def wait(self, what: str, come: Callable[[], object]) -> None:
        """Until it has come; whoever ends meanwhile, or if it never comes, everybody's last words are shown."""
        until = monotonic() + PATIENCE
        while not come():
            assert monotonic() < until, f"{what} did not come within {PATIENCE:.0f} s\n{self.last_words()}"
            sleep(0.005)

    def finished(self) -> None:
        """The coordinator has come to its end."""
        process = self.processes[COORDINATOR]
        self.wait("the end of the run", lambda: not process.is_alive())
        assert process.exitcode == 0, self.last_words()

    def last_words(self) -> str:
        said = {file.stem: file.read_text(errors="replace")[-1500:] for file in sorted(self.folder.glob("*.log"))}
        return "\n".join(f"── {name} ──\n{text}" for name, text in said.items())
