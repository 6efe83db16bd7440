"""A coordinator and silos as operators start them, `hansa serve` and `hansa join`, perhaps over a slow link."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import yaml
from _far import free_ports

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.deploy import authority
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.kit import COORDINATOR
from hansa.privacy.policy.proposal import POLICY_FILE

CHUNK = 16 << 10
LIMITS = {"max_model_step": 100.0, "max_model_drift": 100.0, "min_samples": 1, "min_update_samples": 1}


def hansa(folder: Path, log: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / f"{log}.log").open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", "hansa", *arguments], stdout=out, stderr=out)


@contextmanager
def federation_of(
    folder: Path,
    settings: Federation,
    files: Mapping[str, str],
    model: Path | None = None,
    proxies: Mapping[str, str] | None = None,
) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """The processes of a federation by name, started; they are ended with the context.

    Models that learn from nothing move farther in a round than the default policy accepts, and a round here may have
    fewer samples than it asks for: the policies get other bounds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fed.yaml").write_text(dump(settings), encoding="utf-8")
    [port] = free_ports(1)
    kits = folder / "kits"
    authority.create(settings, kits, {COORDINATOR: f"localhost:{port}"}, 30)
    for silo in files:
        policy = kits / silo / POLICY_FILE
        raw = yaml.safe_load(policy.read_text(encoding="utf-8"))
        raw["limits"] = raw.get("limits", {}) | LIMITS
        policy.write_text(yaml.safe_dump(raw), encoding="utf-8")
        Approvals(kits / silo, kits / silo / "home").add(approval_of(settings, model=model))
    started = {}
    for name, file in files.items():
        through = ["--proxy", proxies[name]] if proxies else []
        started[name] = hansa(folder, name, "join", str(kits / name), "--data", file, *through)
    serve = ("serve", str(folder / "fed.yaml"), "--kit", str(kits / COORDINATOR), "--out", str(folder / "run"))
    started[COORDINATOR] = hansa(folder, COORDINATOR, *serve)
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def wait_for_the_end(folder: Path, started: Mapping[str, "subprocess.Popen[bytes]"], seconds: float) -> None:
    """Wait until the coordinator has finished; show its log if it fails or takes too long."""
    until = monotonic() + seconds
    while started[COORDINATOR].poll() is None and monotonic() < until:
        sleep(0.2)
    if started[COORDINATOR].poll() != 0:
        for name in started:
            print(f"{name}:", (folder / f"{name}.log").read_text()[-1500:], sep="\n", file=sys.stderr)
        raise SystemExit("the coordinator did not finish")


class SlowProxy:
    """An HTTP proxy (CONNECT) that forwards so many bits per second in each direction, over all connections."""

    def __init__(self, bits: float) -> None:
        self._rate = bits / 8
        self._server = socket.create_server(("127.0.0.1", 0))
        self._locks = (threading.Lock(), threading.Lock())
        self._free = [0.0, 0.0]  # per direction: when the link has sent what it was given
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._answer, args=(near,), daemon=True).start()

    def _answer(self, near: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            if not (byte := near.recv(1)):
                return
            request += byte
        host, _, port = request.split()[1].decode().rpartition(":")
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            near.close()
            return
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for way, pair in enumerate(((near, far), (far, near))):
            threading.Thread(target=self._forward, args=(*pair, way), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, way: int) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                with self._locks[way]:
                    self._free[way] = max(self._free[way], monotonic()) + len(data) / self._rate
                    due = self._free[way]
                sleep(max(0.0, due - monotonic()))
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
