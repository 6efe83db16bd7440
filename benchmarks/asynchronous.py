"""FedBuff between processes with one of four silos stopped, against the same run with three silos.

All are processes as an operator would start them. One silo is stopped (SIGSTOP) after the first rounds and never comes
back: it costs the others nothing if the training loss reaches its target as soon as with three silos. Synchronous
rounds with a deadline stand beside it: each waits for the stopped silo.
"""

import os
import signal
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from statistics import mean
from time import monotonic, sleep
from typing import Any

from _far import free_ports
from _federations import silos, words
from _figures import Figures
from recovery import hansa, wait_beyond

from hansa.config.file import dump, parse
from hansa.deploy import authority
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.kit import COORDINATOR

STOPPED = "s3"
WINDOW = 6  # rounds that a loss is averaged over
DEADLINE = 5.0  # seconds, of synchronous rounds


def losses(run: Path) -> list[tuple[float, float]]:
    """Time and training loss of every round so far."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        return ledger.execute("select at, loss from rounds order by round").fetchall()


def reached(run: Path, begin: int, target: float) -> float | None:
    """Seconds from round ``begin`` until the mean loss of a window is at the target; None if it is not."""
    found = losses(run)
    for end in range(begin + WINDOW, len(found) + 1):
        if mean(loss for _, loss in found[end - WINDOW : end]) <= target:
            return found[end - 1][0] - found[begin - 1][0]
    return None


class Deployment:
    """A federation as processes, from its start to `close`."""

    def __init__(self, folder: Path, files: dict[str, str], rounds: int, **changes: Any) -> None:
        self.run = folder / "run"
        folder.mkdir()
        settings = parse(
            {
                "name": "asynchronous",
                "tokenizer": {"kind": "bytes"},
                "data": {"max_length": 32, "valid": 0.0},
                "silos": files,
                "rounds": rounds,
                "train": {"lr": 0.05, "samples": {"floor": 256}},
                "evaluate": {"every": rounds},
                **changes,
            }
        )
        (folder / "fed.yaml").write_text(dump(settings), encoding="utf-8")
        [port] = free_ports(1)
        authority.create(settings, folder / "kits", {COORDINATOR: f"localhost:{port}"}, 30)
        for silo in files:
            Approvals(folder / "kits" / silo, folder / "kits" / silo / "home").add(approval_of(settings))
        self.agents = {
            name: hansa(folder, name, "join", str(folder / "kits" / name), "--data", file)
            for name, file in files.items()
        }
        kit = str(folder / "kits" / COORDINATOR)
        self.coordinator = hansa(
            folder, "coordinator", "serve", str(folder / "fed.yaml"), "--kit", kit, "--out", str(self.run)
        )

    def close(self) -> None:
        for process in (self.coordinator, *self.agents.values()):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()


def seconds_to(folder: Path, files: dict[str, str], rounds: int, target: float | None, **changes: Any) -> Any:
    """Seconds until the target, from the round after which a silo is stopped; without a target, the loss at the end."""
    one = Deployment(folder, files, rounds, **changes)
    try:
        begin = wait_beyond(one.run / "checkpoints", 1)
        if STOPPED in files:
            os.kill(one.agents[STOPPED].pid, signal.SIGSTOP)
        until = monotonic() + 600
        while monotonic() < until:
            if target is None and len(losses(one.run)) >= rounds:
                found = [loss for _, loss in losses(one.run)]
                return begin, mean(found[-WINDOW:])
            if target is not None and (found_at := reached(one.run, begin, target)) is not None:
                return found_at
            sleep(0.05)
        return float("inf")
    finally:
        one.close()


def main() -> None:
    figures = Figures.from_arguments()
    rounds = 8 if figures.smoke else 60
    buffered = {"method": {"name": "fedbuff", "buffer": 3}}
    synchronous = {"participation": {"deadline": DEADLINE, "quorum": 0.5}}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = silos(root / "data", 4, 400, 8, words(40))
        three = {silo: file for silo, file in files.items() if silo != STOPPED}
        _, target = seconds_to(root / "target", three, rounds, None, **buffered)
        alone = seconds_to(root / "three", three, 10 * rounds, target, **buffered)
        stopped = seconds_to(root / "four", files, 10 * rounds, target, **buffered)
        print(f"training loss {target:.3f}: three silos {alone:.1f} s, four with one stopped {stopped:.1f} s (FedBuff)")
        if not figures.smoke:
            waits = seconds_to(root / "synchronous", files, 10 * rounds, target, **synchronous)
            print(f"synchronous rounds with a deadline of {DEADLINE:g} s, one stopped: {waits:.1f} s")
    what = "FedBuff to a target loss with one of four silos stopped against three silos"
    figures.add("stopped_silo", what, stopped / alone, "ratio", "<=", 1.1)
    figures.end()


if __name__ == "__main__":
    main()
