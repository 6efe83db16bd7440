"""TODO docstring."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.device import CPU
from hansa.core.messages import Knowledge
from hansa.core.tensors import Layout, Tensors


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
    offers: tuple[Knowledge, ...] = ()  # what the others told before this round's training
    prepared: dict[str, Any] = field(default_factory=dict)  # what an objective works out once and needs at every step

    def __post_init__(self) -> None:
        """Objectives compute where the model is."""
        device = self.learner.device
        if device != CPU:
            self.received = self.received.to(device)
            self.memory = {name: values.to(device) for name, values in self.memory.items()}
            self.offers = tuple(replace(offer, knowledge=offer.knowledge.to(device)) for offer in self.offers)
