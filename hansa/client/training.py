"""The only local training loop, and the model it works on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.learner import Work
from hansa.core.method import Objective
from hansa.tasks.base import Task


@dataclass
class Trained:
    loss: float = 0.0
    steps: int = 0
    seen: int = 0
    seconds: float = 0.0
    memory: dict[str, Tensor] = field(default_factory=dict)


class Parameters(Protocol):
    """What an optimiser moves: a flat vector and its gradient, matrices first."""

    flat: Tensor
    grad: Tensor
    matrices: int


Parts = Sequence[Batch]  # of one step: samples that go through the model together


class Stepping(Protocol):
    """Moves the parameters once per batch, after the gradient is there."""

    def rate(self, lr: float) -> None: ...

    def step(self) -> None: ...


def train(
    work: Work,
    task: Task,
    objective: Objective,
    settings: Training,
    batches: Iterator[Parts],
    scale: float | Callable[[int], float],
    stepping: Stepping | None = None,
) -> Trained:
    """Take one step per batch; return what a silo reports about it. A batch that does not fit into memory comes in
    parts, whose gradients add up to its own. ``scale`` of the learning rate may depend on the step, counted from 0."""
    learner, done, losses = work.learner, Trained(), list[Tensor]()
    optimiser = Optimizer(learner, settings)
    if settings.keep_optimizer:
        optimiser.restore(work.memory)
    stepping = stepping or optimiser
    if not learner.model.training:  # walking over all modules costs as much as a small step
        learner.model.train()
    for parts in batches:
        began = perf_counter()
        learner.grad.zero_()
        targets = sum(len(part.targets) for part in parts)
        for part in parts:
            work.batch = part.to(learner.device)
            done.seen += len(next(iter(part.inputs.values())))
            if targets and not len(part.targets):
                continue  # nothing to learn from, such as texts of one token that nothing follows
            losses.append(_backward(work, task, objective, len(part.targets) / max(1, targets)))
        objective.gradient(work)
        if settings.clip is not None:
            _clip(learner.grad, settings.clip)
        stepping.rate(settings.lr * (scale if isinstance(scale, float) else scale(done.steps)))
        stepping.step()
        done.steps += 1
        done.seconds += perf_counter() - began
    done.loss = sum(map(float, losses)) / max(1, done.steps)  # read in the end: an accelerator need not wait for us
    done.memory = objective.keep(work)
    if settings.keep_optimizer:
        done.memory = done.memory | optimiser.state()
    return done


def _backward(work: Work, task: Task, objective: Objective, share: float) -> Tensor:
    """Add a part's share of the step's gradient; return its share of the loss: the task's, or the objective's where
    that has something in its place."""
    told: list[Tensor] = []

    def task_loss() -> Tensor:
        assert work.batch is not None
        told.append(task.loss(work.learner.model, work.batch))
        return told[-1]

    loss = objective.loss(work, task_loss)
    (loss if share == 1.0 else share * loss).backward()  # type: ignore[no-untyped-call]
    return share * (told[0] if told else loss).detach()


def _clip(gradient: Tensor, bound: float) -> None:
    gradient.mul_(torch.clamp(bound / (gradient.norm() + 1e-6), max=1.0))


class Optimizer:
    """SGD or Adam(W) over the flat buffers, from torch; plain SGD is a single addition."""

    def __init__(self, learner: Parameters, settings: Training) -> None:
        self.learner, self.lr = learner, settings.lr
        self.inner: torch.optim.Optimizer | None = None
        if settings.optimizer == "sgd" and not settings.momentum and not settings.weight_decay:
            return
        cut = learner.matrices
        groups = []
        for span, decay in ((slice(0, cut), settings.weight_decay), (slice(cut, None), 0.0)):
            part = nn.Parameter(learner.flat[span])
            part.grad = learner.grad[span]
            groups.append({"params": [part], "weight_decay": decay})
        if settings.optimizer == "sgd":
            self.inner = torch.optim.SGD(groups, lr=self.lr, momentum=settings.momentum)
        else:
            kind: Any = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
            self.inner = kind(groups, lr=self.lr, betas=settings.betas, eps=settings.eps, fused=True)

    def rate(self, lr: float) -> None:
        self.lr = lr
        for group in self.inner.param_groups if self.inner is not None else ():
            group["lr"] = lr

    def step(self) -> None:
        if self.inner is None:
            self.learner.flat.add_(self.learner.grad, alpha=-self.lr)
        else:
            self.inner.step()

    def state(self) -> dict[str, Tensor]:
        if self.inner is None:
            return {}
        entries = self.inner.state_dict()["state"]
        return {f"optimizer.{i}.{key}": value for i, entry in entries.items() for key, value in entry.items()}

    def restore(self, memory: dict[str, Tensor]) -> None:
        if self.inner is None:
            return
        entries: dict[int, dict[str, Tensor]] = {}
        for name, value in memory.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".")
                entries.setdefault(int(index), {})[key] = value.clone()
        if entries:
            self.inner.load_state_dict(self.inner.state_dict() | {"state": entries})
