"""The gradient of each patient or document by itself, for privacy with such a unit (`hansa.privacy.dp.units`).

Two ways lead to it, and `per_sample` chooses:

- *One by one*: the samples of one unit go through the model by themselves. This is exact for every architecture (tied
  weights, position embeddings with batch dimension one, heads that see some rows only) and needs no memory beside the
  gradient. On a CPU it is also the faster way for whole models.
- *Together*, for adapters and heads: many units go through the model at once, and Opacus gives a gradient for each
  sample, which are added up by unit. It is used where Opacus is exact: the task has one target per sample, trained
  tensors belong to linear layers and layer norms, none is tied to another, and each sees one row per sample. After
  every pass the gradients of the samples must add up to the one that autograd found; else all is done one by one.
  What a unit's gradient is then depends on the others by rounding errors (about 10⁻⁷), as in any batch.

A task's loss is the mean over the targets of a batch. Times the number of samples it is the sum over the unit's
samples; it must not be a mean over the samples of several units, whose weights would then depend on one another.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.learner import Work
from hansa.core.method import Objective
from hansa.core.seeds import stream, torch_seeded
from hansa.data.arrays import Indices
from hansa.data.examples import Examples
from hansa.tasks.base import Task, Vocabulary

LAYERS = (nn.Linear, nn.LayerNorm)  # whose gradients per sample were compared with autograd's
SMALL_PART = 0.25  # adapters and heads: at most this fraction of a model's parameters is trained
MAX_NUMBERS = 1 << 25  # of all gradients that are held at once
TOLERANCE = 1e-3  # of the check that the gradients of the samples add up, relative to the largest value


@dataclass
class UnitGradients:
    """Computes the gradients of units: of the sum of their samples' losses."""

    work: Work
    task: Task
    vocabulary: Vocabulary
    objective: Objective
    settings: Training
    held: Examples
    together: "PerSample | None" = field(default=None)

    def of(self, units: Sequence[tuple[int, Indices]], number: int) -> Iterator[Tensor]:
        """The gradient of each unit (its name and samples), in order; each is valid until the next.

        ``number``: of the step, from which masks and dropout are derived.
        """
        for some in self._groups(units):
            if self.together is not None and len(some) > 1:
                if (found := self.together.of(self, some, number)) is not None:
                    yield from found
                    continue
                self.together.close()
                self.together = None
            for name, members in some:
                yield self.alone(name, members, number)

    def alone(self, name: int, members: Indices, number: int) -> Tensor:
        """The gradient of one unit, whose samples go through the model by themselves."""
        learner, size = self.work.learner, self.settings.micro_batch or self.settings.batch
        learner.grad.zero_()
        # Masks and dropout follow from the unit and the step, never from who else takes part.
        rng = stream(number, name, "masks")
        with torch_seeded(number, name, "dropout"):
            for start in range(0, len(members), size):
                self.backward(self.task.batch(self.held, members[start : start + size], rng, self.vocabulary))
        return learner.grad

    def backward(self, batch: Batch) -> None:
        """Add the gradient of the sum of the samples' losses."""
        if not len(batch.targets):
            return  # nothing to learn from, such as texts of one token that nothing follows
        work, samples = self.work, len(next(iter(batch.inputs.values())))
        work.batch = batch.to(work.learner.device)

        def task_loss() -> Tensor:
            """The task's mean loss on the samples of this call."""
            assert work.batch is not None
            return self.task.loss(work.learner.model, work.batch)

        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Full backward hook is firing", UserWarning
            )  # Opacus's, below frozen layers
            (samples * self.objective.loss(work, task_loss)).backward()  # type: ignore[no-untyped-call]

    def _groups(self, units: Sequence[tuple[int, Indices]]) -> Iterator[list[tuple[int, Indices]]]:
        """The units in groups whose samples go through the model together; a large unit is a group of its own."""
        size, some, count = self.settings.micro_batch or self.settings.batch, list[tuple[int, Indices]](), 0
        for unit in units:
            if some and count + len(unit[1]) > size:
                yield some
                some, count = [], 0
            some.append(unit)
            count += len(unit[1])
        if some:
            yield some


class PerSample:
    """Gradients of single samples by Opacus, where they are exact; remove its hooks with `close`."""

    def __init__(self, module: Any, trained: list[tuple[str, nn.Parameter]]) -> None:
        self._module, self._trained = module, trained

    def of(self, units: UnitGradients, some: list[tuple[int, Indices]], number: int) -> list[Tensor] | None:
        """The gradient of each unit of a group; None if they are not exact."""
        learner = units.work.learner
        members = np.concatenate([samples for _, samples in some])
        if len(members) * learner.grad.numel() > MAX_NUMBERS:
            return None
        batch = units.task.batch(units.held, members, stream(number, "masks"), units.vocabulary)
        if batch.rows is not None or len(batch.targets) != len(members):
            return None
        self._forget()
        learner.grad.zero_()
        with torch_seeded(number, some[0][0], "dropout"):
            self._module.enable_hooks()
            try:
                units.backward(batch)
            finally:
                self._module.disable_hooks()
        owner = torch.as_tensor(np.repeat(np.arange(len(some)), [len(samples) for _, samples in some]))
        found = torch.zeros(len(some), learner.grad.numel(), device=learner.device)
        for name, parameter in self._trained:
            single = getattr(parameter, "grad_sample", None)
            if not isinstance(single, Tensor) or single.shape != (len(members), *parameter.shape):
                return None
            found[:, learner.layout.spans[name]].index_add_(0, owner.to(learner.device), single.flatten(1))
        self._forget()
        largest = learner.grad.abs().max()
        if (found.sum(dim=0) - learner.grad).abs().max() > TOLERANCE * largest:
            return None
        return list(found)

    def close(self) -> None:
        """Remove the hooks and what they kept."""
        self._module.remove_hooks()
        self._forget()
        for _, parameter in self._trained:
            for name in ("grad_sample", "_forward_counter"):
                if hasattr(parameter, name):
                    delattr(parameter, name)

    def _forget(self) -> None:
        for _, parameter in self._trained:
            parameter.grad_sample = None  # type: ignore[attr-defined]


def per_sample(model: nn.Module) -> PerSample | None:
    """Gradients of single samples of a model, if few of its tensors are trained and Opacus is exact for them."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    whole = sum(parameter.numel() for parameter in model.parameters())
    if sum(parameter.numel() for _, parameter in trained) > SMALL_PART * whole:
        return None
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
            if parameter.requires_grad and type(module) not in LAYERS:
                return None
    if any(owners[id(parameter)] > 1 for _, parameter in trained):
        return None
    try:
        from opacus.grad_sample import GradSampleModule
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = GradSampleModule(model, loss_reduction="sum", strict=False)
    module.disable_hooks()
    return PerSample(module, trained)
