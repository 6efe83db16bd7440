"""How long until the round moves again after kill -9 of the coordinator and its broker: until the next checkpoint.

All are processes as an operator would start them, `hansa serve` and `hansa join`; the coordinator is started again at
once, from nothing, so importing torch is part of the figure.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, perf_counter, sleep

from _far import free_ports
from _federations import silos, words
from _figures import Figures

from hansa.config.file import dump, parse
from hansa.deploy import authority
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.kit import COORDINATOR

TIMES = 3
ROUNDS = 100_000


def hansa(folder: Path, log: str, *arguments: str) -> "subprocess.Popen[bytes]":
    with (folder / f"{log}.log").open("ab") as out:
        return subprocess.Popen([sys.executable, "-m", "hansa", *arguments], stdout=out, stderr=out)


def wait_beyond(checkpoints: Path, round: int) -> int:
    """The newest checkpoint, once it is newer than ``round``."""
    until = monotonic() + 300
    while (found := newest(checkpoints)) <= round:
        assert monotonic() < until, f"no checkpoint after round {round}"
        sleep(0.01)
    return found


def newest(checkpoints: Path) -> int:
    return max((int(f.name.removeprefix("round-")) for f in checkpoints.glob("round-*")), default=0)


def main() -> None:
    figures = Figures.from_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = silos(folder / "data", 2, 200, 8, words(40))
        settings = parse(
            {
                "name": "recovery",
                "tokenizer": {"kind": "bytes"},
                "data": {"max_length": 32, "valid": 0.0},
                "silos": files,
                "rounds": ROUNDS,
                "train": {"lr": 0.1, "samples": {"floor": 64}},
                "evaluate": {"every": ROUNDS},
            }
        )
        (folder / "fed.yaml").write_text(dump(settings), encoding="utf-8")
        [port] = free_ports(1)
        authority.create(settings, folder / "kits", {COORDINATOR: f"localhost:{port}"}, 30)
        for silo in files:
            Approvals(folder / "kits" / silo, folder / "kits" / silo / "home").add(approval_of(settings))
        serve = (
            "serve",
            str(folder / "fed.yaml"),
            "--kit",
            str(folder / "kits" / COORDINATOR),
            "--out",
            str(folder / "run"),
        )
        agents = [hansa(folder, n, "join", str(folder / "kits" / n), "--data", file) for n, file in files.items()]
        coordinator = hansa(folder, "coordinator", *serve)
        seconds = []
        try:
            reached = wait_beyond(folder / "run" / "checkpoints", 2)
            for _ in range(1 if figures.smoke else TIMES):
                began = perf_counter()
                coordinator.send_signal(signal.SIGKILL)
                coordinator.wait()
                reached = newest(folder / "run" / "checkpoints")
                coordinator = hansa(folder, "coordinator", *serve)
                reached = wait_beyond(folder / "run" / "checkpoints", reached)
                seconds.append(perf_counter() - began)
                print(f"moving again after {seconds[-1]:.1f} s, in round {reached}", flush=True)
        finally:
            for process in (coordinator, *agents):
                process.kill()
                process.wait()
    figures.add(
        "recovery_after_kill",
        "from `kill -9` of the coordinator to the round moving again, Python's start included",
        max(seconds),
        "s",
        "<=",
        5.0,
    )
    figures.end()


if __name__ == "__main__":
    main()
