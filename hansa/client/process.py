"""One of the further processes of a silo (`hansa.client.processes`): computes gradients of its share of every batch.

`python -m hansa.client.process FOLDER RUN RANK SIZE`, which only process 0 starts.
"""

import sys
from pathlib import Path

import yaml

from hansa.client.host import SiloHost
from hansa.client.modes import training_mode
from hansa.client.processes import Group, commands
from hansa.client.runtime import Runtime
from hansa.client.training import backward, targets_of
from hansa.config.file import parse
from hansa.core import device
from hansa.core.learner import Work
from hansa.core.seeds import torch_seeded
from hansa.methods.fedavg import PlainObjective


def main(folder: Path, run: Path, rank: int, size: int) -> None:
    """Compute until process 0 ends."""
    settings = yaml.safe_load((folder / "federation.yaml").read_text(encoding="utf-8"))
    runtime = Runtime(parse(settings), run, device=device.choose(rank))
    host, group = SiloHost(runtime), Group.join(folder / "store", rank, size)
    learner = runtime.learner
    for name, round, number, training in commands(sys.stdin):
        learner.model.train()
        work, told = Work(learner, learner.state, round), 0.0
        seeds = (runtime.federation.seed, round, name, "dropout", rank)
        with torch_seeded(*seeds), training_mode(learner.model, training):
            for parts in host.silo(name).resident.batches(number, training):
                group.broadcast(learner.flat)
                learner.grad.zero_()
                targets = targets_of(parts)
                for part in group.mine(parts):
                    if len(part.targets):
                        work.batch = part.to(learner.device)
                        told += float(backward(work, runtime.task, PlainObjective(), training, targets))
                group.add(learner.grad)
        group.total(told)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
