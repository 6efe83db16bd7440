"""The only local training loop, and the model it works on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hansa.config import Training
from hansa.device import CPU
from hansa.messages import Offer
from hansa.method import Objective
from hansa.tasks.base import Batch, Task
from hansa.tensors import Layout, Tensors


class Learner:
    """A model whose trainable parameters and gradients lie in two flat buffers: loading, resetting, subtracting and
    stepping are one pass each, and the module never has to be rebuilt.

    Matrices come first, vectors after, so that weight decay (matrices only) is one slice.
    """

    def __init__(self, model: nn.Module, device: torch.device = CPU) -> None:
        self.model, self.device = moved(model, device), device
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda pair: pair[1].ndim < 2)
        start = Tensors.of(dict(named))
        self.layout: Layout = start.layout
        self.flat: Tensor = start.flat
        self.grad: Tensor = torch.zeros_like(self.flat)
        self.matrices = sum(p.numel() for _, p in named if p.ndim >= 2)
        for (name, parameter), shape in zip(named, self.layout.shapes, strict=True):
            span = self.layout.spans[name]
            parameter.data = self.flat[span].view(shape)
            parameter.grad = self.grad[span].view(shape)

    @property
    def state(self) -> Tensors:
        """The parameters themselves, not a copy."""
        return Tensors(self.layout, self.flat)

    def spare(self, size: int) -> Tensor:
        """Room in main memory. On the CPU the batches' gradients are spent by then, and fresh memory costs page
        faults."""
        return self.grad[:size] if self.device == CPU else torch.empty(size)


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """On some devices a moved parameter is a new one: what was tied is tied again."""
    if device != CPU:
        model.to(device)
        getattr(model, "tie_weights", lambda: None)()
    return model


@dataclass
class Work:
    """One silo's work in one round, as objectives see it."""

    learner: Learner
    received: Tensors  # the shared tensors as they came
    round: int
    memory: dict[str, Tensor]  # what the silo kept from its last round, and keeps for its next
    batch: Batch | None = None
    offers: tuple[Offer, ...] = ()  # what the others told before this round's training
    prepared: dict[str, Any] = field(default_factory=dict)  # what an objective works out once and needs at every step

    def __post_init__(self) -> None:
        """Objectives compute where the model is."""
        device = self.learner.device
        if device != CPU:
            self.received = self.received.to(device)
            self.memory = {name: values.to(device) for name, values in self.memory.items()}
            self.offers = tuple(replace(offer, knowledge=offer.knowledge.to(device)) for offer in self.offers)


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


class Stepping(Protocol):
    """Moves the parameters once per batch, after the gradient is there."""

    def step(self) -> None: ...


def train(
    work: Work,
    task: Task,
    objective: Objective,
    settings: Training,
    batches: Iterator[Batch],
    scale: float | Callable[[int], float],
    stepping: Stepping | None = None,
) -> Trained:
    """Take one step per batch; return what a silo reports about it. ``scale`` of the learning rate may depend on the
    step, counted from 0."""
    learner, done = work.learner, Trained()
    optimiser = Optimiser(learner, settings, scale if isinstance(scale, float) else 1.0)
    if settings.keep_optimizer:
        optimiser.restore(work.memory)
    stepping = stepping or optimiser
    if not learner.model.training:  # walking over all modules costs as much as a small step
        learner.model.train()
    for drawn in batches:
        began = perf_counter()
        work.batch = batch = drawn.to(learner.device)
        learner.grad.zero_()
        loss = task.loss(learner.model, batch)
        objective.loss(work, loss).backward()  # type: ignore[no-untyped-call]
        objective.gradient(work)
        if settings.clip is not None:
            _clip(learner.grad, settings.clip)
        if not isinstance(scale, float):
            optimiser.rate(settings.lr * scale(done.steps))
        stepping.step()
        done.loss += float(loss.detach())
        done.steps += 1
        done.seen += len(next(iter(batch.inputs.values())))
        done.seconds += perf_counter() - began
    done.loss /= max(1, done.steps)
    done.memory = objective.keep(work)
    if settings.keep_optimizer:
        done.memory = done.memory | optimiser.state()
    return done


def _clip(gradient: Tensor, bound: float) -> None:
    gradient.mul_(torch.clamp(bound / (gradient.norm() + 1e-6), max=1.0))


class Optimiser:
    """SGD or Adam(W) over the flat buffers, from torch; plain SGD is a single addition."""

    def __init__(self, learner: Parameters, settings: Training, scale: float) -> None:
        self.learner, self.lr = learner, settings.lr * scale
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
