"""kill -9 of anybody at any time, silence, partitions: real processes on loopback. The final weights are those of an
uninterrupted run, and every silo counts once in every round."""

import json
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from hansa.config import Node
from hansa.deploy.kit import COORDINATOR
from hansa.run import run
from hansa.runs.ledger import Ledger
from tests.conftest import same, weights
from tests.deploy.conftest import free_ports
from tests.faults.cast import GATED, Cast

pytestmark = pytest.mark.slow_fault

SILOS = ("north", "south", "east")


@pytest.fixture
def gated(federation, tmp_path):
    """A federation whose silos can be held in the middle of training."""
    (tmp_path / "gated.py").write_text(GATED)
    marks = tmp_path / "marks"
    marks.mkdir()

    def build(**settings):
        task = {"name": "gated", "gates": str(marks)}
        usual = {"rounds": 3, "evaluate": {"every": 2, "share": 1.0}, "server": {"optimizer": "adam", "lr": 0.01}}
        return federation(task=task, uses=[str(tmp_path / "gated.py")], **(usual | settings))

    return build


class Gate:
    """Holds a silo in the middle of its training."""

    def __init__(self, marks: Path, silo: str) -> None:
        self._hold, self._held = marks / f"hold-{silo}", marks / f"held-{silo}"

    def shut(self) -> None:
        self._held.unlink(missing_ok=True)
        self._hold.touch()

    def reached(self) -> bool:
        return self._held.exists()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)


def as_uninterrupted(settings, cast: Cast, tmp_path: Path) -> None:
    """The same bits as a run that nothing happened to, and one contribution of every silo to every round."""
    whole = run(settings, tmp_path / "whole", workers=0).folder
    assert same(weights(whole / "model"), weights(cast.run / "model"))
    contributions = contributions_of(cast)
    assert len(contributions) == len(set(contributions)) == settings.rounds * len(settings.silos)


def contributions_of(cast: Cast) -> list[tuple[int, str]]:
    ledger = Ledger(cast.run)
    try:
        return ledger.select("select round, node from traffic where seen > 0")
    finally:
        ledger.close()


def test_the_coordinator_is_killed_before_the_first_round_and_in_a_checkpoint(gated, tmp_path):
    """Silos are in the middle of their first connection when it, and its broker, go."""
    settings = gated(rounds=6)
    with Cast(settings, tmp_path / "cast") as cast:
        cast.start_all()
        cast.wait("a broker", (cast.run / "seat" / "broker" / "nats.pid").exists)
        cast.kill(COORDINATOR)
        cast.start(COORDINATOR)
        saved = cast.run / "checkpoints"
        drafts = lambda: any(saved.glob(".draft-*")) or (saved / "round-3").exists()  # noqa: E731
        cast.wait("round 1", (saved / "round-1").exists)
        cast.wait("a checkpoint that is being written", drafts)
        cast.kill(COORDINATOR)
        cast.start(COORDINATOR)
        cast.finished()
        as_uninterrupted(settings, cast, tmp_path)


def test_the_coordinator_is_killed_in_the_middle_of_a_round(gated, tmp_path):
    """One silo has answered, one is at work; nothing is computed or counted twice."""
    settings, gate = gated(), Gate(tmp_path / "marks", "north")
    with Cast(settings, tmp_path / "cast") as cast:
        cast.start_all()
        cast.wait("round 1", (cast.run / "checkpoints" / "round-1").exists)
        gate.shut()
        cast.wait("north at work", gate.reached)
        cast.kill(COORDINATOR)
        began = monotonic()
        cast.start(COORDINATOR)
        again = cast.log("north").count("connected to")
        cast.wait("north connected again", lambda: cast.log("north").count("connected to") > again)
        gate.open()
        cast.wait("the next checkpoint", lambda: any((cast.run / "checkpoints").glob("round-[23]")))
        print(f"\nmoving again {monotonic() - began:.1f} s after the restart")
        cast.finished()
        as_uninterrupted(settings, cast, tmp_path)


def test_a_silo_is_killed_at_work_and_continues_its_round(gated, tmp_path):
    settings, gate = gated(), Gate(tmp_path / "marks", "south")
    with Cast(settings, tmp_path / "cast") as cast:
        gate.shut()
        cast.start_all()
        cast.wait("south at work", gate.reached)
        cast.kill("south")
        gate.open()
        cast.start("south")
        cast.finished()
        as_uninterrupted(settings, cast, tmp_path)


def test_the_broker_is_killed_while_silos_work(gated, tmp_path):
    settings, gate = gated(), Gate(tmp_path / "marks", "east")
    with Cast(settings, tmp_path / "cast") as cast:
        gate.shut()
        cast.start_all()
        cast.wait("east at work", gate.reached)
        cast.kill_broker()
        gate.open()
        cast.wait("round 1", (cast.run / "checkpoints" / "round-1").exists)
        cast.kill_broker()
        cast.finished()
        as_uninterrupted(settings, cast, tmp_path)
        assert "it is started again" in cast.log(COORDINATOR)


def test_a_region_is_killed_while_its_silos_work(gated, tmp_path):
    flat = gated(sizes={"north": 60, "south": 50, "east": 40, "north-2": 30}, rounds=2)
    region = lambda rounds, *names: Node(silos={n: flat.silos[n] for n in names}, rounds=rounds)  # noqa: E731
    tree = flat.model_copy(update={"silos": {"west": region(2, "north", "south"), "far": region(1, "east", "north-2")}})
    gate = Gate(tmp_path / "marks", "south")
    with Cast(tree, tmp_path / "cast") as cast:
        gate.shut()
        cast.start_all()
        cast.wait("south at work", gate.reached)
        cast.kill("west")
        cast.start("west")
        gate.open()
        cast.finished()
        as_uninterrupted(tree, cast, tmp_path)


def test_a_silo_that_does_not_come_back_costs_one_deadline_and_its_late_answer_does_not_count(gated, tmp_path):
    settings = gated(rounds=2, participation={"deadline": 15.0}, evaluate={"every": 9, "share": 1.0})
    gate = Gate(tmp_path / "marks", "south")
    with Cast(settings, tmp_path / "cast") as cast:
        gate.shut()
        cast.start_all()
        cast.wait("round 1", (cast.run / "checkpoints" / "round-1").exists)
        gate.open()
        cast.finished()
        assert sorted(contributions_of(cast)) == [(1, "east"), (1, "north"), *((2, name) for name in sorted(SILOS))]
        assert "the deadline" in "".join(json.dumps(line) for line in lost(cast))
        assert "nobody waits for this any more" in cast.log("south") or "overtaken" in cast.log("south")


def lost(cast: Cast) -> list[tuple]:
    ledger = Ledger(cast.run)
    try:
        return ledger.select("select round, node, text from events where kind='lost'")
    finally:
        ledger.close()


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_silo_is_cut_off_in_the_middle_of_a_round(gated, tmp_path):
    """Nothing goes either way for a while, without any connection being closed; then the wire is whole again."""
    settings, gate = gated(rounds=2), Gate(tmp_path / "marks", "north")
    with Namespace() if may_make_namespaces() else Proxy() as wire, wire.cast(settings, tmp_path / "cast") as cast:
        gate.shut()
        cast.start_all({"north": wire.namespace})
        cast.wait("north at work", gate.reached)
        wire.cut()
        gate.open()
        cast.wait("the others' answers", lambda: all("Train of round 1 is answered" in cast.log(n) for n in SILOS[1:]))
        wire.mend()
        cast.finished()
        as_uninterrupted(settings, cast, tmp_path)


def test_a_proxy_that_breaks_every_connection_now_and_then(gated, tmp_path):
    """North's way leads through a proxy that cuts connections after some bytes, again and again."""
    settings = gated(rounds=3)
    with Proxy() as wire, wire.cast(settings, tmp_path / "cast") as cast:
        wire.bytes_per_connection = 150_000
        cast.start_all()
        cast.finished()
        assert wire.broken > 3
        as_uninterrupted(settings, cast, tmp_path)


def may_make_namespaces() -> bool:
    if not shutil.which("ip") or subprocess.run(["ip", "netns", "add", "hansa-probe"], capture_output=True).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", "hansa-probe"], capture_output=True).returncode == 0


class Namespace:
    """North lives in a network namespace of its own; its only way out is a pair of virtual interfaces."""

    namespace = "hansa-north"

    def __enter__(self) -> "Namespace":
        self._ip("netns", "add", self.namespace)
        self._ip("link", "add", "hansa-v0", "type", "veth", "peer", "name", "hansa-v1", "netns", self.namespace)
        self._ip("addr", "add", "10.213.7.1/30", "dev", "hansa-v0")
        self._ip("link", "set", "hansa-v0", "up")
        self._ip("-n", self.namespace, "addr", "add", "10.213.7.2/30", "dev", "hansa-v1")
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self._ip("netns", "del", self.namespace)

    def cast(self, settings, folder: Path) -> Cast:
        first, second = free_ports(2)
        return Cast(settings, folder, {COORDINATOR: f"10.213.7.1:{first}+{second}"})

    def cut(self) -> None:
        self._ip("-n", self.namespace, "link", "set", "hansa-v1", "down")

    def mend(self) -> None:
        self._ip("-n", self.namespace, "link", "set", "hansa-v1", "up")

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


class Proxy:
    """North reaches the coordinator through two ports of ours. Cut, they pass nothing on and close nothing."""

    namespace = ""

    def __init__(self) -> None:
        self.bytes_per_connection: int | None = None
        self.broken = 0
        self._whole = threading.Event()
        self._whole.set()
        self._servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._whole.set()
        for server in self._servers:
            server.close()

    def cast(self, settings, folder: Path) -> Cast:
        cast = Cast(settings, folder)
        file = cast.kits / "north" / "kit.json"
        card = json.loads(file.read_text())
        targets = (card["parent"]["port"], card["parent"]["bulk"])
        card["parent"]["port"], card["parent"]["bulk"] = (server.getsockname()[1] for server in self._servers)
        file.write_text(json.dumps(card))
        for server, target in zip(self._servers, targets, strict=True):
            threading.Thread(target=self._accept, args=(server, target), daemon=True).start()
        return cast

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

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
                threading.Thread(target=self._pass_on, args=(*pair, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, left: list) -> None:
        try:
            while data := source.recv(16384):
                self._whole.wait()
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
