"""Measures the constants of a plan on this machine (`hansa plan --calibrate`), and keeps them in the cache folder.

The network is measured with a real broker, blob server and agents on loopback, over mutual TLS; the training with the
first silo of the federation file, on its own data. Processor seconds are counted, not seconds: other work on the
machine then changes them little.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep

import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.config.nodes import walk
from hansa.config.shared import digest
from hansa.core import wire
from hansa.core.compression import OutgoingUpdate
from hansa.core.encoding import EncodedUpdate
from hansa.core.errors import RunFailed, UserError
from hansa.core.messages import Train, Update
from hansa.core.participation import Participation
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.data.cache import cache_folder
from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.link import NatsLink
from hansa.deploy.server_session import server_session
from hansa.files import write_file
from hansa.links.local import LocalLink
from hansa.planning.scale import Constants, Work
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.start import begin

FILE = "plan.json"
CHILDREN, ROUNDS = 16, 5
FEW = 2  # children of the rounds that tell the costs of a round from those of a child
IDLE_SECONDS = 10.0  # two heartbeats
SMALL, LARGE = 16 << 10, 4 << 20  # bytes of a model
INT8_RATIO = 0.254  # bytes of an int8 update against float32: one byte, and one scale for 256 numbers
BUSY_SECONDS = 0.2


@dataclass(frozen=True)
class Calibration:
    """The constants of this machine, and of the training that a federation file asks for."""

    constants: Constants
    model: int  # bytes that travel to a silo
    update: int  # bytes of its update
    sample: float  # processor seconds to train on one sample
    samples: int  # of the silo in a round, when it was measured

    def work(self, samples: int | None = None) -> Work:
        """The work of a silo in a round; ``samples``: default, as many as were measured."""
        encoded = self.update < self.model
        return Work(self.model, self.update, self.sample * (self.samples if samples is None else samples), encoded)


def calibrate(federation: Federation) -> Calibration:
    """Measure, and keep the result for `load`; takes about half a minute.

    Raises `UserError` if the data of the file's first silo cannot be read, and `RunFailed` if the agents do not answer.
    """
    model, update, sample, samples = _training(federation)
    found = Calibration(measure_machine(), model, update, sample, samples)
    write_file(cache_folder() / FILE, json.dumps(_kept() | {_key(federation): asdict(found)}, indent=1).encode())
    return found


def measure_machine() -> Constants:
    """The constants of this machine, which do not depend on a federation file."""
    stretch = busy_stretch()
    return Constants(**_network(), **_summing(), cores=os.cpu_count() or 1, stretch=(stretch + busy_stretch()) / 2)


def load(federation: Federation) -> Calibration:
    """What was measured for a federation file; raises `UserError` if nothing was."""
    found = _kept().get(_key(federation))
    if found is None:
        raise UserError(
            "nothing was measured for this federation file on this machine: run 'hansa plan FED.yaml --calibrate' first"
        )
    return _built(found)


def read(file: Path) -> Calibration:
    """What `hansa plan --format json` printed on another machine; raises `UserError` if the file has something else."""
    try:
        return _built(json.loads(file.read_text(encoding="utf-8"))["calibration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} has no constants ({type(error).__name__}): write it with 'hansa plan FED.yaml --format json'"
        ) from None


def _built(found: dict) -> Calibration:  # type: ignore[type-arg]
    return Calibration(**found | {"constants": Constants(**found["constants"])})


def _kept() -> dict[str, dict]:  # type: ignore[type-arg]
    try:
        found: dict[str, dict] = json.loads((cache_folder() / FILE).read_text())  # type: ignore[type-arg]
    except (OSError, ValueError):
        return {}
    return found


def _key(federation: Federation) -> str:
    """What the training depends on."""
    plain = federation.model_dump(mode="json")
    return digest([plain[name] for name in ("task", "model", "tokenizer", "data", "train", "upload", "method")])


def busy_stretch() -> float:
    """Seconds for one processor second, beside everything else that runs on this machine."""
    began, used = perf_counter(), process_time()
    while process_time() - used < BUSY_SECONDS:
        sum(range(1000))
    return max(1.0, (perf_counter() - began) / (process_time() - used))


# ── the network ───────────────────────────────────────────────────────────────────────────────────────────────────


class Network:
    """A coordinator in this process and agents that echo in another one."""

    def __init__(self, link: NatsLink, agents: "subprocess.Popen[str]", names: list[str]) -> None:
        self._link, self._agents, self.names, self._round = link, agents, names, 0

    def agents_seconds(self) -> float:
        """Processor seconds of the agents' process so far."""
        assert self._agents.stdin is not None
        assert self._agents.stdout is not None
        self._agents.stdin.write("\n")
        self._agents.stdin.flush()
        return float(self._agents.stdout.readline())

    def round(self, size: int, back: bool, names: list[str] | None = None) -> None:
        """One request and one reply of every agent; ``back``: the reply has as many bytes as the request."""
        self._round += 1
        model = Tensors.zeros(Layout(("w",), ((size // 4,),)))
        asks = dict.fromkeys(names or self.names, Train(self._round, model, self._round - 1, reference=not back))
        for answer in self._link.ask(asks, None):
            if not isinstance(answer.reply, Update):
                raise RunFailed(f"the agent {answer.node} of the calibration did not answer: {answer.reply}")


@contextmanager
def network(children: int) -> Iterator[Network]:
    """A real broker, blob server and ``children`` agents on loopback."""
    names = [f"s{number}" for number in range(children)]
    with TemporaryDirectory(prefix="hansa-plan-") as place:
        folder = Path(place)
        settings = parse({"name": "calibration", "silos": dict.fromkeys(names, "x")})
        authority.create(settings, folder / "kits", {COORDINATOR: f"localhost:{_free_port()}"}, 1)
        command = [sys.executable, "-m", "hansa.planning.echo", str(folder / "kits"), str(folder / "homes")]
        agents = subprocess.Popen(
            [*command, str(children)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=sys.stderr
        )
        try:
            assert agents.stdout is not None
            agents.stdout.readline()
            kit = Kit(folder / "kits" / COORDINATOR)
            with server_session(kit, folder / "server", None, lambda text: None) as link:
                link.share_settings(b"{}")
                yield Network(link, agents, names)
        finally:
            agents.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _network() -> dict[str, float]:
    with network(CHILDREN) as net:

        def used() -> tuple[float, float, float]:
            """Processor seconds of the coordinator, the broker and the agents so far."""
            return process_time(), _broker_seconds(), net.agents_seconds()

        def measured(size: int, back: bool, names: list[str] | None = None) -> list[float]:
            """The same, for a round."""
            net.round(size, back, names)
            before = used()
            for _ in range(ROUNDS):
                net.round(size, back, names)
            return [(b - a) / ROUNDS for a, b in zip(before, used(), strict=True)]

        little, down, both = measured(SMALL, True), measured(LARGE, False), measured(LARGE, True)
        few = measured(SMALL, True, net.names[:FEW])
        own, broker, agents = (max(0.0, (a - b) / (CHILDREN - FEW)) for a, b in zip(little, few, strict=True))
        for_round = max(0.0, sum(few) - FEW * (own + broker + agents))
        fixed = []
        for _ in range(2 * ROUNDS):
            began = perf_counter()
            net.round(SMALL, True, net.names[:1])
            fixed.append(perf_counter() - began)
        before, began = used(), perf_counter()
        sleep(IDLE_SECONDS)
        waited = perf_counter() - began
        idle = sum(b - a for a, b in zip(before, used(), strict=True)) / waited / CHILDREN
    per_byte = 1.0 / (LARGE - SMALL) / CHILDREN
    return {
        "request": own,
        "broker_request": broker,
        "child_request": agents,
        "send": max(0.0, down[0] - little[0]) * per_byte,
        "receive": max(0.0, both[0] - down[0]) * per_byte,
        "child_receive": max(0.0, down[2] - little[2]) * per_byte,
        "child_send": max(0.0, both[2] - down[2]) * per_byte,
        "envelope": 1500.0,
        "round": for_round,
        "fixed": max(0.0, min(fixed) - own - broker - agents - for_round),
        "idle": idle,
    }


def _broker_seconds() -> float:
    """Processor seconds of the child processes of this one that are a NATS server; 0 where /proc is missing."""
    total, ticks = 0.0, os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text().split():
            try:
                name, fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            if "nats" in name:
                total += sum(map(int, fields.split()[11:13])) / ticks
    return total


# ── the work ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _summing() -> dict[str, float]:
    """To add a byte of an update to the sum, and to decode a byte from int8."""
    layout = Layout(("w",), ((LARGE // 4,),))
    update, total = Tensors(layout, torch.randn(layout.size)), WeightedMean(layout)
    upload = build_method(parse({"silos": {"a": "a"}, "upload": "int8"})).upload
    sent = upload.compress(OutgoingUpdate(update, update, 1, "a", 0, {"w": "model"}, frozenset(), None))
    assert isinstance(sent, EncodedUpdate)
    return {
        "add": _seconds(lambda: total.add(update, 1.0)) / LARGE,
        "decode": _seconds(lambda: sent.open(layout)) / LARGE,
    }


def _seconds(work: Callable[[], object]) -> float:
    """The median of the processor seconds."""
    found = []
    for _ in range(7):
        began = process_time()
        work()
        found.append(process_time() - began)
    return median(found)


def _training(federation: Federation) -> tuple[int, int, float, int]:
    """A silo's round: bytes of model and update, processor seconds for one sample, and the number of samples."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    name, node = next((name, node) for name, node in walk(federation.silos) if not node.silos)
    plain = node.model_copy(update={"policy": None, "privacy": None})
    alone = federation.model_copy(
        update={
            "silos": {name: plain},
            "secure_aggregation": None,
            "personal": None,
            "root": None,
            "participation": Participation(),
        }
    )
    try:
        with TemporaryDirectory(prefix="hansa-plan-") as place:
            directory = RunDirectory.create(alone, Path(place) / "run", False)
            ledger = Ledger(directory.path)
            runtime = Runtime(alone, directory.path)
            host = SiloHost(runtime)
            begin(alone, directory, LocalLink(host.answer), ledger, RunEvents())
            ledger.close()
            model = runtime.start.only(runtime.shared.names)
            found: list[tuple[float, int, int]] = []
            for number in range(1, 5):  # the first one prepares the samples
                began = process_time()
                reply = host.silo(name).answer(Train(number, model, 0))
                seconds = process_time() - began
                if not isinstance(reply, Update):
                    raise RunFailed(f"silo '{name}' cannot train for the calibration: {reply}")
                found.append((seconds / max(1, reply.seen), reply.seen, wire.payload(reply)))
    finally:
        torch.set_num_threads(threads)
    sample, seen, sent = sorted(found[1:])[1]
    return 4 * model.layout.size, sent, sample, seen
