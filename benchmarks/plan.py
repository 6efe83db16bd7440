"""The plan of a round against real rounds: 2, 20 and 200 agents, and a tree of 85 nodes: 4 regions, 16 below, 64 silos.

The agents are real (kits, broker, blob server, mutual TLS) and only echo the model: the plan of the network is what is
validated, with the constants that `hansa plan --calibrate` measures, in the same run. All nodes share this machine, so
that the plan adds up the processor seconds of all of them. Compared are these, which other work on the machine changes
little, and the seconds, with what a processor second took beside the run.
"""

import os
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch
from _far import Echo, federation, free_ports, model
from _figures import Figures

from hansa.config.file import parse
from hansa.core.messages import Train, Update
from hansa.core.tensors import WeightedMean
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.server_session import server_session
from hansa.planning.calibration import busy_stretch, measure_machine
from hansa.planning.scale import Work, processor_seconds, shared_seconds

MB = 1 << 20
ROUNDS = 5


def family_seconds() -> float:
    """Processor seconds of this process and of all below it so far."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@dataclass(frozen=True)
class Measured:
    """A round: seconds, and processor seconds of all nodes."""

    seconds: float
    processor: float


def rounds(link: Any, names: list[str], size: int, count: int) -> Measured:
    """The median of the rounds, with the sum that a coordinator computes."""
    sent, seconds, used = model(size), [], 0.0
    for number in range(1, count + 2):
        began = perf_counter()
        total = WeightedMean(sent.layout)
        for answer in link.ask(dict.fromkeys(names, Train(number, sent, number - 1)), None):
            assert isinstance(answer.reply, Update), answer.reply
            total.add(answer.reply.gradient, 1.0)
        total.mean()
        seconds.append(perf_counter() - began)
        used = used or family_seconds()  # after the first round, in which all nodes connect
    processor = (family_seconds() - used) / count
    return Measured(median(seconds[1:]), processor)


def flat(silos: int, size: int, count: int) -> Measured:
    """A round of so many agents."""
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), silos, 2) as (link, _):
        return rounds(link, [f"s{i}" for i in range(silos)], size, count)


class Region:
    """A node with echoing agents below it: it passes the model on and returns their mean."""

    anchors = None

    def __init__(self, link: Any, names: list[str]) -> None:
        self._link, self._names = link, names

    def open_run(self, folder: Path, settings: bytes) -> Any:
        self._link.share_settings(b"{}")
        Echo(0).open_run(folder, settings)
        return self.answer

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        raise AssertionError(f"{message} of round {round}: {reason}")

    def answer(self, request: Any) -> Update:
        total = WeightedMean(request.model.layout)
        for answer in self._link.ask(dict.fromkeys(self._names, request), None):
            assert isinstance(answer.reply, Update), answer.reply
            total.add(answer.reply.gradient, 1.0)
        return Update(total.mean(), 1, 1, 1, 0.0, 0.0)


def branch(width: int, depth: int, name: str = "n") -> dict[str, Any]:
    """``width`` nodes per level below a node, ``depth`` levels."""
    names = [f"{name}{number}" for number in range(width)]
    return {one: {"silos": branch(width, depth - 1, one)} if depth > 1 else {"train": "x"} for one in names}


def inner_nodes(silos: dict[str, Any]) -> dict[str, list[str]]:
    """The regions of a tree, each with the names of its children."""
    found = {name: list(node["silos"]) for name, node in silos.items() if "silos" in node}
    for node in silos.values():
        found |= inner_nodes(node.get("silos", {}))
    return found


def serve_branch(folder: str, regions: dict[str, list[str]], silos: list[str], ended: Any) -> None:
    """The regions and silos of a branch of the tree in a process of their own, until ``ended`` is set."""
    torch.set_num_threads(1)
    place = Path(folder)
    with ExitStack() as stack:
        services: dict[str, Any] = {name: Echo(0) for name in silos}
        for name, children in regions.items():
            session = server_session(Kit(place / "kits" / name), place / name / "server", None, lambda text: None)
            services[name] = Region(stack.enter_context(session), children)
        agents = [
            Agent(Kit(place / "kits" / one), place / one / "home", service, lambda text: None)
            for one, service in services.items()
        ]
        threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents]
        for thread in threads:
            thread.start()
        ended.wait()
        for agent in agents:
            agent.stop()
        for thread in threads:
            thread.join()


def tree(width: int, depth: int, size: int, count: int) -> Measured:
    """A round of a tree: the root in this process, and each branch below it in a process of its own."""
    silos = branch(width, depth)
    settings, regions = parse({"name": "bench", "silos": silos}), inner_nodes(silos)
    names = [COORDINATOR, *regions]
    ports = free_ports(len(names))
    addresses = {name: f"localhost:{ports[i]}" for i, name in enumerate(names)}
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        authority.create(settings, folder / "kits", addresses, 30)
        ended, branches = context.Event(), []
        for top, node in silos.items():
            own = inner_nodes({top: node})
            leaves = [name for children in own.values() for name in children if name not in own]
            branches.append(context.Process(target=serve_branch, args=(place, own, leaves, ended)))
        for process in branches:
            process.start()
        try:
            kit = Kit(folder / "kits" / COORDINATOR)
            with server_session(kit, folder / "server", None, lambda text: None) as root:
                root.share_settings(b"{}")
                return rounds(root, list(silos), size, count)
        finally:
            ended.set()
            for process in branches:
                process.join()


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    size, count = (MB, 1) if figures.smoke else (4 * MB, ROUNDS)
    flats, (width, depth) = ((2,), (2, 2)) if figures.smoke else ((2, 20, 200), (4, 3))
    levels = [width**level for level in range(1, depth)]
    constants = measure_machine()
    for silos, regions in (*((n, []) for n in flats), (width**depth, levels)):
        moved = size if silos < 50 else MB
        before = busy_stretch()  # what else runs on this machine: the nodes' own work is in the plan
        measured = tree(width, depth, moved, count) if regions else flat(silos, moved, count)
        stretch = (before + busy_stretch()) / 2
        work, here = Work(moved, moved, 0.0), replace(constants, stretch=stretch)
        processor = processor_seconds(constants, work, silos, regions, measured.seconds)
        seconds = shared_seconds(here, work, silos, regions)
        nodes = 1 + silos + sum(regions)
        shape = f"{silos} agents" + (f" in a tree of {nodes} nodes" if regions else "")
        print(
            f"{shape}, {moved / MB:g} MB: planned {processor:.2f} processor seconds, measured "
            f"{measured.processor:.2f}; planned {seconds:.2f} s, measured {measured.seconds:.2f} s "
            f"({stretch:.1f} s per processor second)",
            flush=True,
        )
        name = f"plan_{silos}_agents" + (f"_{nodes}_nodes" if regions else "")
        what, ratio = f"a round of {shape}: planned against measured", processor / measured.processor
        figures.add(f"{name}_most", f"{what} processor seconds", ratio, "ratio", "<=", 1.25)
        figures.add(f"{name}_least", f"{what} processor seconds", ratio, "ratio", ">=", 0.75)
        ratio = seconds / measured.seconds
        figures.add(f"{name}_seconds_most", f"{what} seconds", ratio, "ratio", "<=", 1.25)
        figures.add(f"{name}_seconds_least", f"{what} seconds", ratio, "ratio", ">=", 0.75)
    figures.end()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
