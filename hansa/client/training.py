"""The local training loop: one for all methods and tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hansa.client.modes import autocast, training_mode
from hansa.client.processes import Group
from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.learner import Work
from hansa.core.method import Objective
from hansa.core.tensors import Tensors
from hansa.tasks.base import Task


@dataclass(frozen=True)
class OptimizerState:
    """What a silo keeps of its optimizer, where `train.keep_optimizer` says so: parameter group → its tensors."""

    groups: dict[int, Tensors]


@dataclass
class Trained:
    """What local training came to. ``objective``: the objective's state, ``optimizer``: the optimizer's, if kept."""

    loss: float = 0.0
    steps: int = 0
    seen: int = 0
    seconds: float = 0.0
    objective: Any = None
    optimizer: OptimizerState | None = None


class Parameters(Protocol):
    """What an optimizer moves: a flat vector and its gradient, matrices first."""

    flat: Tensor
    grad: Tensor
    matrices: int


MicroBatches = Sequence[Batch]  # of one batch: what goes through the model together


class Stepper(Protocol):
    """Moves the parameters once per batch, after the gradient is there."""

    def rate(self, lr: float) -> None:
        """Set the learning rate of the next step."""

    def step(self) -> None:
        """Take a step."""


class ShardedStepper(Stepper, Protocol):
    """An optimizer of a sharded model (FSDP2): each process clears, clips and steps its own shard."""

    def begin(self) -> None:
        """Set the gradient to zero, before a step."""

    def clip(self, bound: float) -> None:
        """Scale the gradient down to a norm."""

    def state(self) -> OptimizerState | None:
        """The optimizer's state, to continue with in the silo's next round."""

    def restore(self, state: OptimizerState) -> None:
        """Continue with a state that was kept."""


def train(
    work: Work,
    task: Task,
    objective: Objective,
    settings: Training,
    batches: Iterator[MicroBatches],
    scale: float | Callable[[int], float],
    stepping: Stepper | None = None,
    kept: OptimizerState | None = None,
    group: Group | None = None,
    sharded: "ShardedStepper | None" = None,
) -> Trained:
    """Take one step per batch; return what a silo reports about it.

    A batch that does not fit into memory comes in micro-batches, whose gradients add up to its own. ``scale`` of the
    learning rate may depend on the step, counted from 0. ``kept``: the optimizer's state of the last round.
    ``group``: other processes that compute a part of every gradient; ``sharded``: steps a sharded model.
    """
    learner, done, losses = work.learner, Trained(), list[Tensor]()
    optimizer = sharded or Optimizer(learner, settings)
    if kept is not None:
        optimizer.restore(kept)
    stepping = stepping or optimizer
    if not learner.model.training:  # walking over all modules costs as much as a small step
        learner.model.train()
    with training_mode(learner.model, settings):
        for batch in batches:
            began = perf_counter()
            optimizer.begin()
            if group is not None and sharded is None:
                group.broadcast(learner.flat)
            done.seen += sum(part.samples for part in batch)
            targets = targets_of(batch)
            for part, of in mine(batch, targets, group):
                work.batch = part.to(learner.device)
                losses.append(backward(work, task, objective, settings, of))
            if group is not None and sharded is None:
                group.add(learner.grad)
            objective.gradient(work)
            if settings.clip is not None:
                optimizer.clip(settings.clip)
            work.lr = settings.lr * (scale if isinstance(scale, float) else scale(done.steps))
            stepping.rate(work.lr)
            stepping.step()
            done.steps = work.steps = done.steps + 1
            done.seconds += perf_counter() - began
    told = sum(map(float, losses))  # read in the end: an accelerator need not wait for us
    done.loss = (told if group is None else group.total(told)) / max(1, done.steps)
    done.objective = objective.finish(work)
    done.optimizer = optimizer.state() if settings.keep_optimizer else None
    return done


def targets_of(parts: MicroBatches) -> int:
    """The number of targets of a batch."""
    return sum(len(part.targets) for part in parts)


def mine(batch: MicroBatches, targets: int, group: Group | None) -> Iterator[tuple[Batch, float]]:
    """The micro-batches that this process computes, each with the number of targets that its own are a share of."""
    if group is not None:
        yield from group.mine(batch, targets)
        return
    for part in batch:
        if len(part.targets) or not targets:  # without targets, such as texts of one token, there is nothing to learn
            yield part, targets


def backward(work: Work, task: Task, objective: Objective, settings: Training, targets: float) -> Tensor:
    """Add a micro-batch's share of the step's gradient; ``targets``: those of the whole batch.

    Return its share of the loss: the task's, or the objective's where that has something in its place.
    """
    assert work.batch is not None
    told, share = list[Tensor](), len(work.batch.targets) / max(1, targets)

    def task_loss() -> Tensor:
        """The task's loss on the micro-batch, which is also kept as the loss to report."""
        assert work.batch is not None
        told.append(task.loss(work.learner.model, work.batch))
        return told[-1]

    with autocast(settings, work.learner.device):
        loss = objective.loss(work, task_loss)
    (loss if share == 1.0 else share * loss).backward()  # type: ignore[no-untyped-call]
    return share * (told[0] if told else loss).detach()


def clip_gradient(gradient: Tensor, bound: float) -> None:
    """Scale a gradient down to a norm, in place."""
    gradient.mul_(torch.clamp(bound / (gradient.norm() + 1e-6), max=1.0))


def torch_optimizer(
    matrices: Sequence[nn.Parameter], vectors: Sequence[nn.Parameter], settings: Training
) -> torch.optim.Optimizer:
    """The optimizer of the settings; weight decay applies to matrices only."""
    decays = ((matrices, settings.weight_decay), (vectors, 0.0))
    groups = [{"params": list(some), "weight_decay": decay} for some, decay in decays]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)
    kind: Any = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    made: torch.optim.Optimizer = kind(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
    return made


class Optimizer:
    """SGD or Adam(W) over the flat buffers, from torch; plain SGD is a single addition."""

    def __init__(self, learner: Parameters, settings: Training) -> None:
        self.learner, self.lr = learner, settings.lr
        self.inner: torch.optim.Optimizer | None = None
        if settings.optimizer == "sgd" and not settings.momentum and not settings.weight_decay:
            return
        cut = learner.matrices
        matrices, vectors = (nn.Parameter(learner.flat[span]) for span in (slice(0, cut), slice(cut, None)))
        matrices.grad, vectors.grad = learner.grad[:cut], learner.grad[cut:]
        self.inner = torch_optimizer([matrices], [vectors], settings)

    def begin(self) -> None:
        """Set the gradient to zero, before a step."""
        self.learner.grad.zero_()

    def clip(self, bound: float) -> None:
        """Scale the gradient down to a norm."""
        clip_gradient(self.learner.grad, bound)

    def rate(self, lr: float) -> None:
        """Set the learning rate of the next step."""
        self.lr = lr
        for group in self.inner.param_groups if self.inner is not None else ():
            group["lr"] = lr

    def step(self) -> None:
        """Take a step."""
        if self.inner is None:
            self.learner.flat.add_(self.learner.grad, alpha=-self.lr)
        else:
            self.inner.step()

    def state(self) -> OptimizerState | None:
        """The optimizer's state, to continue with in the silo's next round."""
        if self.inner is None:
            return None
        entries = self.inner.state_dict()["state"]
        return OptimizerState({index: Tensors.of(entry) for index, entry in entries.items()})

    def restore(self, state: OptimizerState) -> None:
        """Continue with a state that was kept."""
        if self.inner is None or not state.groups:
            return
        entries = {index: {k: v.clone() for k, v in group.named().items()} for index, group in state.groups.items()}
        self.inner.load_state_dict(self.inner.state_dict() | {"state": entries})
