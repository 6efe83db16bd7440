"""A model in parts (`train.shard`): every process of a silo holds a part of each tensor, by torch's FSDP2.

    frozen tensors      each process keeps 1/P of every tensor, in the dtype of the base; a block is put together while
                        it computes. What is trained (adapters, a head) is small: each process has all of it, and
                        process 0 alone steps, as where `train.shard` is not set
    a full model        each process also keeps 1/P of the trained values, of their gradients and of the optimizer's
                        state, and steps on its part. Process 0 has the whole vector in main memory, since that is what
                        a silo receives and sends; it hands the parts out before training and collects them after

P: `train.processes`. Processes must call a model in parts equally often: each computes as many micro-batches as the
others (`Group.mine`), and in an evaluation all of them compute all batches.
The processes load their copies of a base one after another, so that a machine holds one whole base at a time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hansa.client.modes import blocks
from hansa.client.processes import Group
from hansa.client.training import OptimizerState, torch_optimizer
from hansa.config.sections import Training
from hansa.core.device import CPU
from hansa.core.learner import Learner
from hansa.core.tensors import Layout, Tensors

# A torch.distributed.tensor.DTensor. torch's FSDP2 and its tensors are imported where they are used: that takes a
# second, and most silos have their model in one process.
PartedTensor = Any


def divide(model: nn.Module, group: Group, device: torch.device, whole: Iterable[nn.Parameter] = ()) -> None:
    """Keep only this process's part of every tensor of a model, in place; ``whole``: parameters that stay as they are.

    Gradients of trained parts are summed over the processes.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh, ignored = init_device_mesh(device.type, (group.size,)), set(whole)
    for block in blocks(model):
        if block is not model:
            _divide(block, mesh, ignored)
    _divide(model, mesh, ignored)


def _divide(module: nn.Module, mesh: Any, ignored: set[nn.Parameter]) -> None:
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(module, mesh=mesh, ignored_params=ignored, reshard_after_forward=True)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other


def held_bytes(model: nn.Module) -> int:
    """The bytes of a model's parameters that this process holds."""
    return sum(_local(p).nbytes for p in model.parameters())


def _local(parameter: Tensor) -> Tensor:
    parted: PartedTensor = parameter
    return parted.to_local() if hasattr(parameter, "to_local") else parameter


class PartsLearner(Learner):
    """A model of which every process has a part, with all trained values in main memory at process 0.

    `hand_out` brings these values into the parts, `collect` brings the parts back; all processes call them together.
    """

    def __init__(self, model: nn.Module, device: torch.device, group: Group) -> None:
        self.model, self.device, self.group = model, device, group
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        named.sort(key=lambda pair: pair[1].ndim < 2)
        self.layout = self.trained = Layout(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))
        self.matrices = sum(p.numel() for _, p in named if p.ndim >= 2)
        if group.rank == 0:
            self._all = Tensors.of(dict(named))
        else:
            self._all = Tensors(self.layout, torch.empty(self.layout.size, device="meta"))
        self.flat, self.grad = self._all.flat, torch.empty(0)
        divide(model, group, device)

    @property
    def parameters(self) -> list[PartedTensor]:
        """The trained parameters in the layout's order; of each, this process has a part."""
        named: dict[str, Any] = dict(self.model.named_parameters())
        return [named[name] for name in self.layout.names]

    @torch.no_grad()
    def hand_out(self) -> None:
        """Give every process its part of the values that process 0 has."""
        for parameter, span in zip(self.parameters, self.layout.spans.values(), strict=True):
            parameter.to_local().copy_(_part(self._all.flat[span], parameter))

    @torch.no_grad()
    def collect(self) -> None:
        """Bring the values of all parts to process 0."""
        for parameter, span in zip(self.parameters, self.layout.spans.values(), strict=True):
            values = parameter.full_tensor()
            if self.group.rank == 0:
                self._all.flat[span].copy_(values.view(-1))


def _part(values: Tensor, like: PartedTensor) -> Tensor:
    """The part of a tensor of process 0 that this process holds; other processes give ``values`` without content."""
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.empty(like.shape) if values.device.type == "meta" else values.view(like.shape)
    return distribute_tensor(whole.to(like.device), like.device_mesh, [Shard(0)]).to_local()


class PartsOptimizer:
    """The optimizer of the settings on this process's part of the trained values."""

    def __init__(self, learner: PartsLearner, settings: Training) -> None:
        self.learner = learner
        self._parts = [nn.Parameter(p.to_local()) for p in learner.parameters]
        matrices = sum(p.ndim >= 2 for p in learner.parameters)
        self._groups = (self._parts[:matrices], self._parts[matrices:])
        self.inner = torch_optimizer(*self._groups, settings)

    def begin(self) -> None:
        """Set the gradient to zero, before a step."""
        for parameter in self.learner.parameters:
            parameter.grad = None

    def _gradients(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for part, parameter in zip(self._parts, self.learner.parameters, strict=True):
            given: Any = parameter.grad  # none if the task does not use the parameter
            yield part, torch.zeros_like(part) if given is None else given.to_local()

    def clip(self, bound: float) -> None:
        """Scale the gradient down to a norm: that of all parts together."""
        found = list(self._gradients())
        norm = self.learner.group.everywhere(sum(float(g.float().square().sum()) for _, g in found)) ** 0.5
        for _, gradient in found:
            gradient.mul_(min(1.0, bound / (norm + 1e-6)))

    def rate(self, lr: float) -> None:
        """Set the learning rate of the next step, which process 0 knows."""
        here = torch.tensor([lr], dtype=torch.float64)
        self.learner.group.broadcast(here)
        for group in self.inner.param_groups:
            group["lr"] = float(here)

    def step(self) -> None:
        """Take a step."""
        for part, gradient in self._gradients():
            part.grad = gradient
        self.inner.step()

    def state(self) -> OptimizerState | None:
        """The optimizer's state as one process would have it, put together at every process."""
        found = {index: self._whole(index, group) for index, group in enumerate(self._groups) if group}
        return OptimizerState(found) if any(one.layout.names for one in found.values()) else None

    def _whole(self, index: int, group: Sequence[nn.Parameter]) -> Tensors:
        like = self._like(index)
        entry: dict[str, Tensor] = {}
        for key, first in self.inner.state[group[0]].items():
            if first is None or not first.ndim:  # such as the number of steps; SGD without momentum has no buffer
                entry |= {key: first} if first is not None else {}
                continue
            parts = [_together(self.inner.state[p][key], one).view(-1) for p, one in zip(group, like, strict=True)]
            entry[key] = torch.cat(parts).to(CPU)
        return Tensors.of(entry)

    def restore(self, state: OptimizerState) -> None:
        """Continue with a state that was kept; at processes other than 0, its names and shapes count alone."""
        for index, kept in state.groups.items():
            group, like = self._groups[index], self._like(index)
            ends = torch.tensor([p.numel() for p in like]).cumsum(0).tolist()
            for part, one, end in zip(group, like, ends, strict=True):
                entry = {}
                for key, values in kept.named().items():
                    if values.ndim:
                        entry[key] = _part(values[end - one.numel() : end], one).clone()
                    else:
                        entry[key] = self._number(values)
                self.inner.state[part] = entry

    def _number(self, value: Tensor) -> Tensor:
        here = torch.zeros(1) if value.device.type == "meta" else value.reshape(1).clone()
        self.learner.group.broadcast(here)
        return here[0]

    def _like(self, index: int) -> list[PartedTensor]:
        matrices = len(self._groups[0])
        return self.learner.parameters[:matrices] if index == 0 else self.learner.parameters[matrices:]


def _together(part: Tensor, like: PartedTensor) -> Tensor:
    """A whole tensor of which every process has a part, at every process."""
    from torch.distributed.tensor import DTensor

    parted = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return parted.full_tensor()


def shapes_of(state: OptimizerState | None) -> dict[str, str] | None:
    """Names and shapes of a kept state, for the processes that do not have it."""
    return None if state is None else {str(index): one.layout.text for index, one in state.groups.items()}
