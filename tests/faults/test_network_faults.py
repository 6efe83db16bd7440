"""SIGKILL of any process at any time, missing silos, partitions: real processes on loopback.

The final weights are those of an uninterrupted run, and every silo contributes once to every round.
"""

import json
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hansa.config.nodes import Node
from hansa.core.settings import Named
from hansa.deploy.kit import COORDINATOR
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.deploy.conftest import free_ports
from tests.faults.processes import Deployment

pytestmark = pytest.mark.slow_fault

SILOS = ("north", "south", "east")


class Gate:
    """Pauses a silo in the middle of its training."""

    def __init__(self, marks: Path, silo: str) -> None:
        self._hold, self._held = marks / f"hold-{silo}", marks / f"held-{silo}"

    def shut(self) -> None:
        self._held.unlink(missing_ok=True)
        self._hold.touch()

    def reached(self) -> bool:
        return self._held.exists()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)


def assert_uninterrupted(settings: Any, deployment: Deployment, tmp_path: Path) -> None:
    """The bits are those of an undisturbed run, and every silo contributed once to every round."""
    whole = run(settings, tmp_path / "whole", workers=0).folder
    assert same(weights(whole / "model"), weights(deployment.run / "model"))
    contributions = contributions_of(deployment)
    assert len(contributions) == len(set(contributions)) == settings.rounds * len(settings.silos)


def contributions_of(deployment: Deployment) -> list[tuple[int, str]]:
    ledger = Ledger(deployment.run)
    try:
        return ledger.select("select round, node from traffic where seen > 0")
    finally:
        ledger.close()


def test_the_coordinator_is_killed_three_times(gated: Any, tmp_path: Path) -> None:
    """Before the first round; after one silo has answered and while another trains; while a checkpoint is written.

    Nothing is computed or counted twice.
    """
    settings, gate = gated(rounds=5), Gate(tmp_path / "marks", "north")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("a broker", (deployment.run / "server" / "broker" / "nats.pid").exists)
        deployment.kill(COORDINATOR)
        deployment.start(COORDINATOR)
        deployment.wait("north at work", gate.reached)
        deployment.wait(
            "the reply of another silo",
            lambda: "Train of round 1: reply sent" in deployment.log("south") + deployment.log("east"),
        )
        deployment.kill(COORDINATOR)
        deployment.start(COORDINATOR)
        again = deployment.log("north").count("connected to")
        deployment.wait("north connected again", lambda: deployment.log("north").count("connected to") > again)
        gate.open()
        saved = deployment.run / "checkpoints"
        drafts = lambda: any(saved.glob(".draft-*")) or (saved / "round-3").exists()  # noqa: E731
        deployment.wait("round 1", lambda: any(saved.glob("round-[1-5]")))
        deployment.wait("a checkpoint that is being written", drafts)
        deployment.kill(COORDINATOR)
        deployment.start(COORDINATOR)
        deployment.finished()
        assert_uninterrupted(settings, deployment, tmp_path)


@pytest.mark.parametrize("secure_aggregation", [False, True])
def test_a_silo_and_the_broker_are_killed_during_training(gated: Any, tmp_path: Path, secure_aggregation: Any) -> None:
    """Also under secure aggregation: a silo's secrets and its progress are on its disk."""
    settings = gated(secure_aggregation=secure_aggregation)
    south, east = Gate(tmp_path / "marks", "south"), Gate(tmp_path / "marks", "east")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        for gate in (south, east):
            gate.shut()
        deployment.start_all()
        deployment.wait("both at work", lambda: south.reached() and east.reached())
        deployment.kill("south")
        deployment.start("south")
        deployment.kill_broker()
        for gate in (south, east):
            gate.open()
        deployment.wait("round 1", lambda: any((deployment.run / "checkpoints").glob("round-[1-3]")))
        deployment.kill_broker()
        deployment.finished()
        assert_uninterrupted(settings, deployment, tmp_path)
        assert "and is restarted" in deployment.log(COORDINATOR)


@pytest.mark.parametrize("method", ["fedavg", "worldlm"])
def test_a_region_is_killed_while_its_silos_train(gated: Any, tmp_path: Path, method: Any) -> None:
    """Seven processes and three brokers."""
    flat = gated(sizes={"north": 60, "south": 50, "east": 40, "north-2": 30}, rounds=2)

    def region(rounds: int, *names: str) -> Node:
        return Node(silos={name: flat.silos[name] for name in names}, rounds=rounds)

    silos = {"west": region(2, "north", "south"), "far": region(1, "east", "north-2")}
    tree = flat.model_copy(update={"silos": silos, "method": Named(name=method)})
    gate = Gate(tmp_path / "marks", "south")
    with Deployment(tree, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("south at work", gate.reached)
        deployment.kill("west")
        deployment.start("west")
        gate.open()
        deployment.finished()
        assert_uninterrupted(tree, deployment, tmp_path)


def test_a_late_reply_does_not_count(gated: Any, tmp_path: Path) -> None:
    """South misses the deadline of the first round. On a busy machine other silos may miss it, too."""
    settings = gated(rounds=2, participation={"deadline": 15.0, "quorum": 0.1}, evaluate={"every": 9, "share": 1.0})
    gate = Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("round 1", (deployment.run / "checkpoints" / "round-1").exists)
        gate.open()
        deployment.wait(
            "the late reply of south",
            lambda: any(text in deployment.log("south") for text in ("the request is no longer open", "superseded")),
        )
        deployment.finished()
        contributions = contributions_of(deployment)
        assert len(contributions) == len(set(contributions))
        assert (1, "south") not in contributions
        assert {round for round, _ in contributions} == {1, 2}
        assert "the deadline" in {node: text for _, node, text in lost(deployment)}["south"]


def lost(deployment: Deployment) -> list[tuple[Any, ...]]:
    ledger = Ledger(deployment.run)
    try:
        return ledger.select("select round, node, text from events where kind='lost'")
    finally:
        ledger.close()


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silo_is_partitioned_during_a_round(gated: Any, tmp_path: Path) -> None:
    """No packets pass for a while, and no connection is closed; then the network works again."""
    settings, gate = gated(rounds=2), Gate(tmp_path / "marks", "north")
    with (
        Namespace() if may_make_namespaces() else Proxy() as network,
        network.deployment(settings, tmp_path / "deployment") as deployment,
    ):
        gate.shut()
        deployment.start_all({"north": network.namespace})
        deployment.wait("north at work", gate.reached)
        network.cut()
        gate.open()
        deployment.wait(
            "the replies of the other silos",
            lambda: all("Train of round 1: reply sent" in deployment.log(n) for n in SILOS[1:]),
        )
        network.restore()
        deployment.finished()
        assert_uninterrupted(settings, deployment, tmp_path)


def test_a_proxy_that_breaks_connections(gated: Any, tmp_path: Path) -> None:
    """North connects through a proxy that closes every connection after some bytes."""
    settings = gated(rounds=3)
    with Proxy() as network, network.deployment(settings, tmp_path / "deployment") as deployment:
        network.bytes_per_connection = 150_000
        deployment.start_all()
        deployment.finished()
        assert network.broken > 3
        assert_uninterrupted(settings, deployment, tmp_path)


def may_make_namespaces() -> bool:
    if not shutil.which("ip") or subprocess.run(["ip", "netns", "add", "hansa-probe"], capture_output=True).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", "hansa-probe"], capture_output=True).returncode == 0


class Namespace:
    """North runs in a network namespace of its own, connected by a pair of virtual interfaces."""

    namespace = "hansa-north"

    def __enter__(self) -> "Namespace":
        self._ip("netns", "add", self.namespace)
        self._ip("link", "add", "hansa-v0", "type", "veth", "peer", "name", "hansa-v1", "netns", self.namespace)
        self._ip("addr", "add", "10.213.7.1/30", "dev", "hansa-v0")
        self._ip("link", "set", "hansa-v0", "up")
        self._ip("-n", self.namespace, "addr", "add", "10.213.7.2/30", "dev", "hansa-v1")
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self._ip("netns", "del", self.namespace)

    def deployment(self, settings: Any, folder: Path) -> Deployment:
        return Deployment(settings, folder, {COORDINATOR: f"10.213.7.1:{free_ports(1)[0]}"})

    def cut(self) -> None:
        self._ip("-n", self.namespace, "link", "set", "hansa-v1", "down")

    def restore(self) -> None:
        self._ip("-n", self.namespace, "link", "set", "hansa-v1", "up")

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


class Proxy:
    """North reaches the coordinator through a forwarded port; when cut, it forwards nothing and closes nothing."""

    namespace = ""

    def __init__(self) -> None:
        self.bytes_per_connection: int | None = None
        self.broken = 0
        self._connected = threading.Event()
        self._connected.set()
        self._server = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._connected.set()
        self._server.close()

    def deployment(self, settings: Any, folder: Path) -> Deployment:
        deployment = Deployment(settings, folder)
        file = deployment.kits / "north" / "kit.json"
        info = json.loads(file.read_text())
        target = int(info["parent"]["addresses"][0].rpartition(":")[2])
        info["parent"]["addresses"] = [f"localhost:{self._server.getsockname()[1]}"]
        file.write_text(json.dumps(info))
        threading.Thread(target=self._accept, args=(self._server, target), daemon=True).start()
        return deployment

    def cut(self) -> None:
        self._connected.clear()

    def restore(self) -> None:
        self._connected.set()

    def _accept(self, server: socket.socket, target: int) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", target))
            except OSError:
                near.close()
                continue
            left = [self.bytes_per_connection]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(*pair, left), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, left: list[int | None]) -> None:
        try:
            while data := source.recv(16384):
                self._connected.wait()
                if left[0] is not None:
                    left[0] -= len(data)
                    if left[0] < 0:
                        self.broken += 1
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
