"""Several processes of a silo compute one step together (`train.processes`): data parallel by torch.distributed (gloo).

    process 0     holds the optimizer, the method's objective and the state; it alone steps
    every step    process 0 broadcasts the flat values, each process computes the gradient of its micro-batches, and the
                  flat gradients are summed at process 0: as many bytes as one all-reduce

The other processes are started once, read the silo's data themselves and draw the same batches, from the same seed.
They take commands as lines of JSON; when process 0 ends, they end. If one of them ends, the round fails with
`ProcessLost`, all are started anew, and the link asks the silo once more, as after any failure.

With `train.shard` no process holds the whole model (`hansa.client.sharding`).
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, ProcessGroupGloo, ReduceOp  # type: ignore[attr-defined]

from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.config.sections import Training
from hansa.core import device as devices
from hansa.core.batch import Batch
from hansa.core.device import CPU
from hansa.core.errors import ConfigError, HansaError

STARTING = timedelta(minutes=10)  # until all processes have loaded their libraries, and between two steps
MODULE = "hansa.client.process"
CHOICE = "HANSA_PROCESSES"


class ProcessLost(HansaError):
    """One of the processes of a silo ended in the middle of a round."""


@dataclass(frozen=True)
class Group:
    """The processes of a silo as one of them sees them."""

    rank: int
    size: int
    gloo: Any  # a ProcessGroupGloo, or torch's default group; torch does not declare their methods
    lockstep: bool = False  # the model is in parts: every process must call it equally often

    @staticmethod
    def join(store: Path, rank: int, size: int, device: torch.device | None = None) -> "Group":
        """Meet the other processes by a file; raises `RuntimeError` if they do not come.

        ``device``: the model will be in parts there, for which torch wants a default group of the whole process.
        """
        meeting = FileStore(str(store), size)
        if device is None:
            return Group(rank, size, ProcessGroupGloo(meeting, rank, size, STARTING))
        if dist.is_initialized():
            raise ConfigError(
                "train.shard: this Python process already has a group of torch.distributed: start the run in a process "
                "of its own"
            )
        backend = "gloo"
        if device != CPU:
            backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
        dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, timeout=STARTING)
        return Group(rank, size, dist.group.WORLD, lockstep=True)

    def leave(self) -> None:
        """Let go of torch's default group, where there is one."""
        if self.lockstep and dist.is_initialized():
            dist.destroy_process_group()

    def mine(self, parts: Sequence[Batch], targets: int) -> Iterator[tuple[Batch, float]]:
        """The micro-batches of this process, each with the number of targets that its own are a share of.

        In lockstep, a process that has fewer micro-batches than others computes one more, of which it takes no share.
        """
        useful = [part for part in parts if len(part.targets)]
        if not self.lockstep:
            yield from ((part, targets) for part in useful[self.rank :: self.size])
            return
        for first in range(0, len(useful), self.size):
            mine = first + self.rank
            yield (useful[mine], targets) if mine < len(useful) else (useful[0], inf)

    def broadcast(self, values: Tensor) -> None:
        """Give all processes the values of process 0, in place."""
        here = values if values.device == CPU else values.cpu()
        self.gloo.broadcast(here, 0).wait()
        if here is not values:
            values.copy_(here)

    def add(self, values: Tensor) -> None:
        """Sum the values of all processes, in place, at process 0."""
        here = values if values.device == CPU else values.cpu()
        self.gloo.reduce(here, 0, ReduceOp.SUM).wait()
        if here is not values:
            values.copy_(here)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.everywhere(0.0)

    def everywhere(self, value: float) -> float:
        """The sum of a number over all processes, at every process."""
        one = torch.tensor([value], dtype=torch.float64)
        self.gloo.allreduce(one, ReduceOp.SUM).wait()
        return float(one)

    def total(self, value: float) -> float:
        """The sum of a number over all processes, at process 0."""
        one = torch.tensor([value], dtype=torch.float64)
        self.add(one)
        return float(one)


class Crew:
    """The other processes of a silo, as process 0 starts and commands them."""

    def __init__(
        self, federation: Federation, folder: Path, device: torch.device, size: int, shard: bool = False
    ) -> None:
        _check_devices(device, size)
        self._folder = tempfile.TemporaryDirectory(prefix="hansa-processes-")
        here = Path(self._folder.name)
        (here / "federation.yaml").write_text(dump(federation), encoding="utf-8")
        self.members = [
            subprocess.Popen(
                [sys.executable, "-m", MODULE, str(here), str(folder), str(rank), str(size)],
                stdin=subprocess.PIPE,
                text=True,
                env=os.environ | _environment(device, rank),
            )
            for rank in range(1, size)
        ]
        atexit.register(self.stop)
        try:
            self.group = Group.join(here / "store", 0, size, device if shard else None)
        except RuntimeError:
            raise ProcessLost(f"{self.stop() or 'the processes of the silo do not find one another'}") from None

    @property
    def complete(self) -> bool:
        """Whether all other processes are running."""
        return all(member.poll() is None for member in self.members)

    def command(self, kind: str, silo: str, **given: Any) -> None:
        """Have the others take part in what process 0 does (`hansa.client.process`); `OSError` if one has ended."""
        line = json.dumps({"kind": kind, "silo": silo, **given})
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write(line + "\n")
            member.stdin.flush()

    def stop(self) -> str:
        """Stop the other processes; return which of them had ended by themselves, empty if none had."""
        atexit.unregister(self.stop)
        size = len(self.members) + 1
        ended = [
            f"process {rank} of {size} ended with code {code}"
            for rank, member in enumerate(self.members, 1)
            if (code := _exit_code(member)) is not None
        ]
        for member in self.members:
            with suppress(OSError):
                if member.stdin is not None:
                    member.stdin.close()
            member.kill()
            member.wait()
        if hasattr(self, "group"):
            self.group.leave()
        self._folder.cleanup()
        return ", ".join(ended)


def _exit_code(member: "subprocess.Popen[str]") -> int | None:
    """The exit code of a process that ended, or is about to."""
    try:
        return member.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return None


def _check_devices(device: torch.device, size: int) -> None:
    if device != CPU and torch.accelerator.device_count() < size:
        raise ConfigError(
            f"train.processes is {size}, and this machine has {torch.accelerator.device_count()} devices of type "
            f"{device.type}: set it to at most that"
        )


def _environment(device: torch.device, rank: int) -> dict[str, str]:
    """The device of each process, and as many threads as process 0 has."""
    where = "cpu" if device == CPU else f"{device.type}:{rank}"
    return {devices.CHOICE: where, "OMP_NUM_THREADS": str(torch.get_num_threads()), "TOKENIZERS_PARALLELISM": "false"}


def in_shares(training: Training, size: int) -> Training:
    """The training with micro-batches small enough that every process has one of every full batch."""
    largest = -(-training.batch // size)
    return training.model_copy(update={"micro_batch": min(training.micro_batch or largest, largest)})


def processes_of(training: Training) -> int:
    """How many processes a silo uses: what its own machine says (`hansa join --processes`), or its settings."""
    return int(os.environ.get(CHOICE) or training.processes)


def sharded(training: Training) -> bool:
    """Whether the processes of a silo hold the model in parts."""
    return training.shard and processes_of(training) > 1


def plain_settings(training: Training) -> dict[str, Any]:
    """Settings of training as a command has them."""
    return training.model_dump(mode="json", exclude_defaults=True)


def commands(stream: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The commands that process 0 writes, one per line."""
    for line in stream:
        given = json.loads(line)
        if "training" in given:
            given["training"] = Training.model_validate(given["training"])
        yield given
