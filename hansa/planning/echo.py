"""Agents that only echo, in a process of their own: `python -m hansa.planning.echo KITS HOMES COUNT`.

They measure the network alone. Each line on standard input is answered with the processor seconds of this process. A
request with ``reference`` is answered with an empty update, another one with the model that it brought.
"""

import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from hansa.core.messages import Failure, Reply, Request, Train, Update
from hansa.core.tensors import NOTHING
from hansa.deploy.agent import Agent
from hansa.deploy.kit import Kit

ANNOUNCED = 1 << 30  # bytes of a start that is not there: what a request may announce goes by it


@dataclass(frozen=True)
class Echo:
    """Implements `hansa.deploy.request_reader.NodeService`."""

    anchors = None

    def open_run(self, folder: Path, settings: bytes) -> "Echo":
        """As if the run had started from many weights."""
        (folder / "start").mkdir(parents=True, exist_ok=True)
        with (folder / "start" / "model.safetensors").open("wb") as weights:
            weights.truncate(ANNOUNCED)
        return self

    def log_refusal(self, message: str, round: int, reason: str) -> None:
        """A request could not be used: the measurement fails."""
        print(f"{message}: {reason}", file=sys.stderr, flush=True)

    def __call__(self, request: Request) -> Reply:
        """The reply to a request to train."""
        if not isinstance(request, Train):
            return Failure("it only trains")
        return Update(NOTHING if request.reference else request.model, 1, 1, 1, 0.0, 0.0)


def main() -> None:
    """Run the agents until standard input ends."""
    kits, homes, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for number in range(count):
        agent = Agent(Kit(kits / f"s{number}"), homes / f"s{number}", Echo(), lambda text: None)
        threading.Thread(target=agent.run, daemon=True).start()
    print(process_time(), flush=True)
    for _ in sys.stdin:
        print(process_time(), flush=True)


if __name__ == "__main__":
    main()
