"""Two runs at once over one port with 200 agents in four processes, 20 rounds each: nothing is lost, doubled or grows.

The coordinator is `hansa serve --queue RUNS --at-once 2`. Each agent is that of `hansa join`, with its own kit, home,
policy, approvals and connections, and takes part in both runs. `hansa join --at-once 2` starts a process for each run,
400 in all here: instead, the two workers of an agent train in threads of the process that it shares with 49 others.
Draws of torch wait for each other (`hansa/core/seeds.py`), so that the bits are those of a simulation of each run
alone, with which both models are compared. Contributions are counted from the ledgers.
"""

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import torch
import yaml
from _agents import LIMITS, hansa
from _far import free_ports, private
from _federations import model_folder, silos, words
from _figures import Figures
from safetensors.torch import load_file

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.join import SiloSetup, sources
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.run_queue import ENDED, FINISHED, RunQueue
from hansa.models.tokenizer import byte_tokenizer
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.runs.run import run

SETTLED = 5  # rounds after which nothing may grow
LOOK_SECONDS = 0.5
RUN_SECONDS = 3600.0
SEEDS = (1, 2)  # of the two runs

Looks = dict[str, dict[int, int]]  # process → rounds that both runs have finished → most bytes that were seen


def settings_of(files: Mapping[str, str], model: Path, rounds: int, seed: int) -> Federation:
    """One of the two runs: one batch of every silo in a round."""
    return parse(
        {
            "name": "bench",
            "seed": seed,
            "model": {"path": str(model)},
            "data": {"max_length": 32, "valid": 0.0, "test": 0.0},
            "silos": dict(files),
            "rounds": rounds,
            "train": {"lr": 0.05, "batch": 8, "samples": {"floor": 8}},
            "evaluate": {"every": rounds},
        }
    )


def agents(kits: str, files: dict[str, str], log: str, end: Any) -> None:
    """Agents in threads of this process, each with a worker for each run, until ``end`` is closed."""
    torch.set_num_threads(1)
    lock = threading.Lock()

    def warn(text: str) -> None:
        """Write a problem of an agent to the log of this process."""
        with lock, Path(log).open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")

    for name, file in files.items():
        folder, home = Path(kits) / name, Path(kits) / name / "home"
        kit = Kit(folder, home)
        setup = SiloSetup(folder, home, sources(kit, [Path(file)]), ())
        own = setup.service_with(kit, PolicyEnforcer.load(kit, None, home))
        services = [setup.service() for _ in SEEDS]
        agent = Agent(kit, home, own, lambda text: None, warn=warn, services=services)
        threading.Thread(target=agent.run, name=name, daemon=True).start()
    with suppress(EOFError, OSError):
        end.recv()


def prepare(folder: Path, studies: Sequence[Federation], files: Mapping[str, str], model: Path) -> Path:
    """Make the kits of all members, approve both runs at every silo, and submit them; return the folder of the runs.

    The policies get other bounds: models that learn from nothing move farther than the default ones accept.
    """
    [port] = free_ports(1)
    authority.create(studies[0], folder / "kits", {COORDINATOR: f"localhost:{port}"}, 30)
    for silo in files:
        policy = folder / "kits" / silo / POLICY_FILE
        raw = yaml.safe_load(policy.read_text(encoding="utf-8"))
        policy.write_text(yaml.safe_dump(raw | {"limits": raw.get("limits", {}) | LIMITS}), encoding="utf-8")
        approvals = Approvals(folder / "kits" / silo, folder / "kits" / silo / "home")
        for study in studies:
            approvals.add(approval_of(study, model=model))
    queue = RunQueue(folder / "runs")
    for study in studies:
        queue.add(study, "benchmark")
    return queue.runs


@contextmanager
def started(folder: Path, runs: Path, files: Mapping[str, str], processes: int) -> Iterator[dict[str, int]]:
    """The process ids of the coordinator and of the agents' processes, which end with the context."""
    context, names = get_context("forkserver"), list(files)
    context.set_forkserver_preload(["hansa.deploy.join", "hansa.models.preloaded"])
    workers, pipes = {}, []
    for number in range(processes):
        ours, theirs = context.Pipe()
        held = {name: files[name] for name in names[number::processes]}
        arguments = (str(folder / "kits"), held, str(folder / f"agents{number}.log"), theirs)
        workers[f"agents{number}"] = context.Process(target=agents, args=arguments, daemon=True)
        workers[f"agents{number}"].start()
        theirs.close()
        pipes.append(ours)
    kit = str(folder / "kits" / COORDINATOR)
    serving = hansa(folder, COORDINATOR, "serve", "--kit", kit, "--queue", str(runs), "--at-once", str(len(SEEDS)))
    try:
        yield {COORDINATOR: serving.pid} | {name: int(worker.pid or 0) for name, worker in workers.items()}
    finally:
        serving.terminate()
        serving.wait()
        for worker in workers.values():
            worker.kill()
            worker.join()
        for pipe in pipes:
            pipe.close()


def rounds_of(run: Path) -> int:
    """The rounds in the ledger of a run so far."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{run / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
        return int(ledger.execute("select count(*) from rounds").fetchall()[0][0])
    return 0


def watch(queue: RunQueue, pids: Mapping[str, int]) -> Looks:
    """Wait until both runs have ended; return the memory of every process, by rounds that both have finished.

    The NATS server is a process of its own below the coordinator. Raises `SystemExit` if a run fails or takes too long.
    """
    until, looks, directories = monotonic() + RUN_SECONDS, Looks(), [queue.directory(one) for one in queue.all()]
    shown = -1
    while not all(one.state in ENDED for one in queue.all()):
        below = {child.name(): child.pid for child in psutil.Process(pids[COORDINATOR]).children()}
        done = [rounds_of(directory) for directory in directories]
        for name, pid in {**pids, "nats-server": below.get("nats-server", 0)}.items():
            held = looks.setdefault(name, {})
            with suppress(OSError):  # it has not started yet
                held[min(done)] = max(held.get(min(done), 0), private(pid) if pid else 0)
        if min(done) > shown:
            shown = min(done)
            memory = ", ".join(f"{name} {held.get(shown, 0) / 1e6:.0f} MB" for name, held in looks.items())
            print(f"rounds {done}: {memory}", flush=True)
        if monotonic() > until:
            break
        sleep(LOOK_SECONDS)
    if states := [f"{one.id} {one.state} {one.reason}" for one in queue.all() if one.state != FINISHED]:
        raise SystemExit(f"the runs did not finish: {states}")
    return looks


def counted(run: Path) -> dict[tuple[int, str], int]:
    """How often each silo's update is in each round of a run, by its ledger: with samples and with a weight."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        rows = ledger.execute(
            "select round, node, count(*) from traffic where seen > 0 and weight > 0 group by round, node"
        ).fetchall()
    return {(number, node): times for number, node, times in rows}


def refusals(run: Path) -> list[tuple[str, str, int]]:
    """Messages that the coordinator refused in a run, with the reason and how often, such as a repeated reply."""
    with closing(sqlite3.connect(run / "server" / "journal.sqlite")) as journal:
        return journal.execute("select node, reason, times from refusals").fetchall()


def same_bits(one: Path, other: Path) -> bool:
    """Whether two exported models have the same tensors, bit for bit."""
    a, b = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def main() -> None:
    figures = Figures.from_arguments()
    count, rounds, processes = (4, 2, 2) if figures.smoke else (200, 20, 4)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["HANSA_CACHE"] = str(folder / "cache")
        files = silos(folder / "data", count, 12, 8, words(40))
        model = model_folder(folder / "start", byte_tokenizer(), 1, 32, 2, 32)
        studies = [settings_of(files, model, rounds, seed) for seed in SEEDS]
        runs, began = prepare(folder, studies, files, model), monotonic()
        queue = RunQueue(runs)
        with started(folder, runs, files, processes) as pids:
            looks = watch(queue, pids)
        seconds = monotonic() - began
        for log in sorted(folder.glob("agents*.log")):
            print(f"{log.name}:", log.read_text(encoding="utf-8")[-1000:], flush=True)
        expected = {(number, name) for number in range(1, rounds + 1) for name in files}
        lost = doubled = other = 0
        for one, study in zip(queue.all(), studies, strict=True):
            found = counted(queue.directory(one))
            lost += len(expected - found.keys())
            doubled += sum(times - 1 for times in found.values()) + len(found.keys() - expected)
            print(f"refused in {one.id}:", refusals(queue.directory(one)) or "nothing", flush=True)
            alone = run(study, folder / f"alone-{one.id}", workers=0).folder
            other += not same_bits(alone / "model", queue.directory(one) / "model")
    what = f"two runs at once, {count} agents in {processes} processes, {rounds} rounds"
    figures.add("updates_lost", f"{what}: updates lost, by the ledgers", lost, "of all", "<=", 0)
    figures.add("updates_doubled", f"{what}: updates counted twice", doubled, "of all", "<=", 0)
    figures.add("other_models", f"{what}: models that differ from those of the runs alone", other, "of 2", "<=", 0)
    for name, held in looks.items():
        early, late = held[min((r for r in held if r >= SETTLED), default=min(held))], held[max(held)]
        title = f"{what}: growth of the memory of {name}, round {rounds} against {SETTLED}"
        figures.add(f"growth_of_{name.replace('-', '_')}", title, late / early, "ratio", "<=", 1.1)
    figures.add("both_runs_seconds", f"{what}: seconds for both", seconds, "s", "<=", 3600)
    figures.end()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
