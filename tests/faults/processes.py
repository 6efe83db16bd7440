"""Coordinator, regions and silos as real processes, which fault tests kill and restart.

They start quickly, because they are forked from a process that has imported everything.
"""

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
from hansa.config.plugins import load_plugins
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR
from tests.deploy.conftest import free_ports
from tests.policies import admit_everywhere

WAIT_SECONDS = 300.0  # for a loaded machine

# A task that pauses in the middle of training while the file hold-SILO exists, and then creates held-SILO.
GATED = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from hansa.core.settings import Section
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


def run_command(
    arguments: list[str],
    log: str,
    namespace: str,
    behaviour: str,
    max_file_bytes: int | None,
    environment: dict[str, str],
    package: str = "",
) -> None:
    """Run the command line in a process of the deployment.

    ``package``: a folder with another version of the package, which is run in its place.

    ``behaviour``: functions of byzantine.py or of tests/redteam/undefended.py that change the process, joined by '+';
    ``max_file_bytes``: a limit on the size of every
    file that it writes. Another test may have started the parent process, so ``environment`` is passed explicitly.
    """
    os.setsid()
    os.environ.update(environment)
    if namespace:
        _enter(namespace)
    for one in filter(None, behaviour.split("+")):
        from tests.faults import byzantine
        from tests.redteam import undefended

        getattr(byzantine if hasattr(byzantine, one) else undefended, one)()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    if package:
        other = {**os.environ, "PYTHONPATH": package}
        os.execve(sys.executable, [sys.executable, "-P", "-m", "hansa", *arguments], other)
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
    """Make a folder read-only; open files stay writable. For root, who ignores file modes, it is mounted read-only."""
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
    """The processes of a federation, with their kits, homes and logs in ``folder``."""

    def __init__(self, federation: Federation, folder: Path, addresses: dict[str, str] | None = None) -> None:
        self.federation, self.folder = federation, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "fed.yaml"
        self.file.write_text(dump(federation), encoding="utf-8")
        self.kits = folder / "kits"
        serving = [COORDINATOR, *(name for name, node in federation.silos.items() if node.silos)]
        places = {n: f"localhost:{port}" for n, port in zip(serving, free_ports(len(serving)), strict=True)}
        load_plugins(federation.plugins)
        authority.create(federation, self.kits, {**places, **(addresses or {})}, 30)
        admit_everywhere(federation, self.kits)
        self._context = get_context("forkserver")
        imported = ["hansa.deploy.coordinator", "hansa.deploy.region", "hansa.report.html", "hansa.models.preloaded"]
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

    def start(
        self,
        name: str,
        namespace: str = "",
        behaviour: str = "",
        max_file_bytes: int | None = None,
        queue: Path | None = None,
        at_once: int = 1,
        package: Path | None = None,
    ) -> None:
        """Start the process of a member; ``queue``: of a coordinator that works on submitted runs.

        ``package``: see `run_command`.
        """
        arguments = {
            "coordinator": ["serve", str(self.file), "--kit", str(self.kits / name), "--out", str(self.run)],
            "region": ["serve", "--kit", str(self.kits / name), "--out", str(self.folder / name)],
        }
        if name == COORDINATOR and queue is not None:
            command = ["serve", "--kit", str(self.kits / name), "--queue", str(queue), "--at-once", str(at_once)]
        elif name == COORDINATOR:
            command = [*arguments["coordinator"], "--format", "json"]
        elif name in self.federation.silos and self.federation.silos[name].silos:
            command = arguments["region"]
        else:
            [source] = leaves(self.federation.silos)[name].sources
            home = str(self.folder / "homes" / name)
            command = ["join", str(self.kits / name), "--data", source.train, "--home", home]
            command += ["--at-once", str(at_once)]
        if name != COORDINATOR:
            command += [part for file in self.federation.plugins for part in ("--plugins", file)]
        log = str(self.folder / f"{name}.log")
        environment = {key: value for key, value in os.environ.items() if key.startswith("HANSA_")}
        process = self._context.Process(
            target=run_command,
            args=(command, log, namespace, behaviour, max_file_bytes, environment, str(package or "")),
            name=name,
        )
        process.start()
        self.processes[name] = process

    def start_all(
        self,
        namespaces: dict[str, str] | None = None,
        behaviours: dict[str, str] | None = None,
        queue: Path | None = None,
    ) -> None:
        """Start the processes of all members; some in network namespaces, some with another behaviour."""
        for name in authority.Authority(self.kits / "authority").members():
            self.start(name, (namespaces or {}).get(name, ""), (behaviours or {}).get(name, ""), queue=queue)

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self.processes.pop(name)
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join(WAIT_SECONDS)
        process.close()

    def peak(self, name: str = COORDINATOR) -> int:
        """The peak memory of a process that has ended, in bytes."""
        return int((self.folder / f"{name}.peak").read_text())

    def kill_broker(self, name: str = COORDINATOR) -> None:
        """Kill the NATS server of a coordinator or a region."""
        folder = self.run if name == COORDINATOR else self.folder / name
        os.kill(int((folder / "server" / "broker" / "nats.pid").read_text()), signal.SIGKILL)

    def log(self, name: str) -> str:
        """The log of a process so far."""
        file = self.folder / f"{name}.log"
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until a condition is true; fails with the logs of all processes if that takes too long."""
        until = monotonic() + WAIT_SECONDS
        while not condition():
            assert monotonic() < until, f"{what}: not within {WAIT_SECONDS:.0f} s\n{self.logs()}"
            sleep(0.005)

    def finished(self) -> None:
        """Wait until the coordinator has ended, and check its exit code."""
        process = self.processes[COORDINATOR]
        self.wait("the end of the run", lambda: not process.is_alive())
        assert process.exitcode == 0, self.logs()

    def logs(self) -> str:
        """The ends of the logs of all processes."""
        found = {file.stem: file.read_text(errors="replace")[-1500:] for file in sorted(self.folder.glob("*.log"))}
        return "\n".join(f"── {name} ──\n{text}" for name, text in found.items())
