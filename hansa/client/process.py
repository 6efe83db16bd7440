"""One of the further processes of a silo (`hansa.client.processes`): takes part in what process 0 does.

`python -m hansa.client.process FOLDER RUN RANK SIZE`, which only process 0 starts. Commands: ``train`` computes its
share of every gradient, or steps on its part of the model; ``score`` evaluates a model in parts.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml

from hansa.client.host import SiloHost
from hansa.client.modes import training_mode
from hansa.client.processes import Group, commands, sharded
from hansa.client.runtime import Runtime
from hansa.client.sharding import PartsLearner, PartsOptimizer
from hansa.client.training import OptimizerState, backward, targets_of, train
from hansa.config.file import parse
from hansa.core import device
from hansa.core.learner import Work
from hansa.core.seeds import torch_seeded
from hansa.core.tensors import Layout, Tensors
from hansa.methods.fedavg import PlainObjective


def main(folder: Path, run: Path, rank: int, size: int) -> None:
    """Work until process 0 ends."""
    settings = yaml.safe_load((folder / "federation.yaml").read_text(encoding="utf-8"))
    runtime = Runtime(parse(settings), run, device=device.choose(rank))
    shard = sharded(runtime.federation.train)
    group = Group.join(folder / "store", rank, size, runtime.device if shard else None)
    if shard:
        runtime.group = group
    host, learner = SiloHost(runtime), runtime.learner
    for command in commands(sys.stdin):
        resident = host.silo(command.pop("silo")).resident
        kind = command.pop("kind")
        if isinstance(learner, PartsLearner):
            learner.hand_out()
        else:
            group.broadcast(learner.state.flat)
        if kind == "score":
            resident.score(**command)
            continue
        with torch_seeded(runtime.federation.seed, command["round"], resident.name, "dropout", rank):
            batches = resident.batches(command["number"], command["training"])
            (_step if isinstance(learner, PartsLearner) else _compute)(runtime, group, batches, **command)


def _compute(runtime: Runtime, group: Group, batches: Any, round: int, training: Any, **_: Any) -> None:
    """Compute this process's share of every gradient; process 0 steps."""
    learner, told = runtime.learner, 0.0
    learner.model.train()
    work = Work(learner, learner.state, round)
    with training_mode(learner.model, training):
        for parts in batches:
            group.broadcast(learner.flat)
            learner.grad.zero_()
            for part, of in group.mine(parts, targets_of(parts)):
                work.batch = part.to(learner.device)
                told += float(backward(work, runtime.task, PlainObjective(), training, of))
            group.add(learner.grad)
    group.total(told)


def _step(runtime: Runtime, group: Group, batches: Any, round: int, training: Any, kept: Any, **_: Any) -> None:
    """Train this process's part of the model."""
    learner = runtime.learner
    assert isinstance(learner, PartsLearner)
    sharded, state = PartsOptimizer(learner, training), None
    if kept is not None:
        state = OptimizerState({int(index): _without_values(text) for index, text in kept.items()})
    work = Work(learner, learner.state, round)
    train(work, runtime.task, PlainObjective(), training, batches, 1.0, kept=state, group=group, sharded=sharded)
    learner.collect()


def _without_values(text: str) -> Tensors:
    names, shapes = json.loads(text)
    layout = Layout(tuple(names), tuple(map(tuple, shapes)))
    return Tensors(layout, torch.empty(layout.size, device="meta"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
