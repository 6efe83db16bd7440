"""The model in training, and one silo's work on it in one round, as objectives see it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from hansa.core.batch import Batch
from hansa.core.device import CPU
from hansa.core.messages import Knowledge
from hansa.core.tensors import Layout, Tensors


class Learner:
    """A model whose trainable parameters and gradients lie in two flat buffers.

    Loading, resetting, subtracting and stepping are one pass over memory each, and the module never has to be rebuilt.
    Matrices come first, vectors after, so that weight decay (matrices only) is one slice. ``carried``: names of frozen
    tensors that travel with the model; they follow the trainable ones in ``state`` and have no gradient.
    """

    def __init__(self, model: nn.Module, device: torch.device = CPU, carried: Sequence[str] = ()) -> None:
        self.model, self.device = on_device(model, device), device
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda pair: pair[1].ndim < 2)
        frozen = [(n, model.get_parameter(n)) for n in carried]
        self._all = Tensors.of(dict(named + frozen))
        self.layout: Layout = self._all.layout
        self.trained: Layout = self.layout.only(tuple(n for n, _ in named)) if frozen else self.layout
        self.flat: Tensor = self._all.flat[: self.trained.size]
        self.grad: Tensor = torch.zeros_like(self.flat)
        self.matrices = sum(p.numel() for _, p in named if p.ndim >= 2)
        for (name, parameter), shape in zip(named + frozen, self.layout.shapes, strict=True):
            span = self.layout.spans[name]
            parameter.data = self._all.flat[span].view(shape)
            if parameter.requires_grad:
                parameter.grad = self.grad[span].view(shape)

    @property
    def state(self) -> Tensors:
        """The parameters themselves, not a copy."""
        return self._all

    def scratch(self, size: int) -> Tensor:
        """A scratch buffer on the CPU. Reuses the gradient buffer, which is free after the last step."""
        return self.grad[:size] if self.device == CPU and size <= self.grad.numel() else torch.empty(size)


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device. On some devices a moved parameter is a new one: tied parameters are tied again."""
    if device != CPU and any(p.device != device for p in model.parameters()):  # a quantised model is loaded there
        model.to(device)
        getattr(model, "tie_weights", lambda: None)()
    return model


@dataclass
class Work:
    """One silo's work in one round."""

    learner: Learner
    received: Tensors  # the shared tensors as they came
    round: int
    state: Any = None  # what the objective kept from the silo's last round, of the type that it declares
    batch: Batch | None = None
    knowledge: tuple[Knowledge, ...] = ()  # what other silos shared before this round's training
    shared_state: Tensors | None = None  # the server's part of the method's state
    contribution: Tensors | None = None  # set by the objective's `finish`: what travels to the server's part
    steps: int = 0  # taken so far
    lr: float = 0.0  # of the last step
    prepared: dict[str, Any] = field(default_factory=dict)  # what an objective works out once and needs at every step

    def __post_init__(self) -> None:
        """Objectives compute where the model is."""
        device = self.learner.flat.device
        if device != CPU and device.type != "meta":
            self.received = self.received.to(device)
            self.knowledge = tuple(replace(one, tensors=one.tensors.to(device)) for one in self.knowledge)
            if self.shared_state is not None:
                self.shared_state = self.shared_state.to(device)
            if self.state is not None:
                moved = {
                    f.name: v.to(device)
                    for f in fields(self.state)
                    if isinstance(v := getattr(self.state, f.name), Tensors)
                }
                self.state = replace(self.state, **moved)
