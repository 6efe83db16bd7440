"""Memory and time of a silo's round, predicted for `hansa check` from the outline of the model; nothing is loaded.

    base          frozen tensors in their own dtype, or 4 or 8 bits; with `train.shard`, a part for each process
    trained       values and gradients (float32), the state of the local optimizer; with `train.shard` and a full model,
                  a part for each process
    messages      the model that was received, and the update, in main memory, at process 0
    activations   what autograd keeps of a micro-batch of the longest samples, found by running the outline on fake
                  tensors, which have shapes and no values; one block at a time with gradient checkpointing
    passing       the largest tensor of the backward pass, twice: logits and their gradient

Libraries and the text itself are not counted. The time is that of matrix products, at half the rate that one core of
this machine, or its accelerator, reaches for one of the model's width: 2 floating-point operations per parameter and
token forward, 2 backward for activations, 2 for the gradients of what is trained, 2 more with gradient checkpointing;
and those of attention.
"""

from dataclasses import dataclass
from math import ceil
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hansa.client.modes import autocast, blocks, training_mode
from hansa.client.processes import in_shares, processes_of, sharded
from hansa.config.federation import Federation
from hansa.core import device as devices
from hansa.core.batch import Batch
from hansa.tasks.base import Task

LARGE = 20_000_000  # parameters from which `hansa check` prints the estimate by itself
OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd": 0}
QUANTISED = {"4bit": 0.5 + 4 / 64, "8bit": 1.0}  # bytes of a value: 4 bits have a scale for 64 values
FLOAT = 4
TRIAL_SECONDS = 0.2
EFFICIENCY = 0.5  # of training, against matrix products alone: what small encoders and decoders reach on a processor


@dataclass(frozen=True)
class Resources:
    """Bytes that a process of a silo needs, and the seconds of a round on a machine like this one."""

    base: int
    trained: int
    messages: int  # at process 0, in main memory
    activations: int
    passing: int
    processes: int
    seconds: float  # of the silo with the most samples per round

    @property
    def total(self) -> int:
        """Bytes of process 0 where the model is in main memory, too; an accelerator has no messages."""
        return self.base + self.trained + self.messages + self.activations + self.passing

    @property
    def line(self) -> str:
        """The estimate in words."""
        each = "each of a silo's processes" if self.processes > 1 else "a silo"
        parts = {
            "frozen tensors": self.base,
            "trained values, gradients and optimizer": self.trained,
            "activations": self.activations + self.passing,
        }
        named = ", ".join(f"{what} {size / 1e9:,.2f}" for what, size in parts.items() if size)
        device = sum(parts.values()) / 1e9
        return (
            f"{device:,.2f} GB for {each} ({named}), and {self.messages / 1e9:,.2f} GB of main memory for messages; "
            f"roughly {_duration(self.seconds)} of training per round for the silo with most samples, on one core like "
            "this machine's or on its accelerator"
        )


def _duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def predict_resources(
    model: Any, federation: Federation, task: Task, samples: int, mean_tokens: float | None = None
) -> Resources:
    """The resources of a silo that trains on ``samples`` in a round; ``model``: an adapted outline on device `meta`.

    ``mean_tokens``: of a sample, for the time; None counts every sample as long as `data.max_length` allows. Memory is
    that of the longest samples.
    """
    training, settings = federation.train, federation.model
    processes = processes_of(training)
    if processes > 1:
        training = in_shares(training, processes)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(
        _frozen_bytes(name, p, model, federation) for name, p in model.named_parameters() if not p.requires_grad
    )
    divided = processes if sharded(training) else 1
    states = OPTIMIZER_STATES[training.optimizer] + (training.optimizer == "sgd" and training.momentum > 0)
    own = FLOAT * trained * (2 + states)
    rows, length = min(training.micro_batch or training.batch, training.batch), federation.data.max_length
    try:
        kept, largest = activations(model, federation, task, rows, length)
    except Exception:  # an architecture or a task that cannot run on fake tensors; an estimate must not end a check
        kept, largest = typical_activations(model, federation, rows, length)
    steps = ceil(samples / training.batch)
    tokens = samples * (mean_tokens or length) / processes
    return Resources(
        base=ceil(frozen / divided),
        trained=ceil(own / divided) if settings.trains_most else own,
        messages=FLOAT * trained * 2,
        activations=kept,
        passing=2 * largest,
        processes=processes,
        seconds=steps and operations(model, training.gradient_checkpointing, length) * tokens / rate(model, federation),
    )


def _frozen_bytes(name: str, parameter: Tensor, model: Any, federation: Federation) -> float:
    """The bytes of a frozen tensor; quantisation applies to the matrices of blocks."""
    settings = federation.model
    if settings.quantize is not None and parameter.ndim == 2 and "embed" not in name and "lm_head" not in name:
        return parameter.numel() * QUANTISED[settings.quantize]
    return parameter.numel() * _dtype(model, federation).itemsize


def _dtype(model: Any, federation: Federation) -> torch.dtype:
    """The dtype of frozen tensors: that of the settings, or of the base's files."""
    settings = federation.model
    found = getattr(torch, settings.dtype) if settings.dtype is not None else getattr(model.config, "dtype", None)
    return found if settings.keeps_base and isinstance(found, torch.dtype) else torch.float32


def activations(model: Any, federation: Federation, task: Task, rows: int, length: int) -> tuple[int, int]:
    """Bytes that autograd keeps for a micro-batch, and those of its largest tensor, by a pass over fake tensors."""
    training = federation.train
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        values = {name: _fake(p, _dtype(model, federation)) for name, p in model.named_parameters()}
        values |= {name: fake.from_tensor(torch.empty_like(b, device="cpu")) for name, b in model.named_buffers()}
        parameters = {id(_storage(v)) for v in values.values()}
        found: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            """Record the size of a tensor that autograd saves, once for each storage; parameters are left out."""
            storage = _storage(tensor)
            if id(storage) not in parameters:
                found[id(storage)] = storage.nbytes()
                alive.append(storage)
            return tensor

        alive: list[Any] = []
        batch = _batch(model, rows, length)
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        plain = training.model_copy(update={"gradient_checkpointing": False, "compile": False})
        model.train()
        with hooks, training_mode(model, plain), autocast(training, torch.device("cpu")):
            torch.func.functional_call(_Loss(model, task), {f"model.{n}": v for n, v in values.items()}, (batch,))
    total, largest = sum(found.values()), max(found.values(), default=0)
    if training.gradient_checkpointing:
        layers = max(1, len(blocks(model)))
        inputs = rows * length * model.config.get_text_config().hidden_size * FLOAT * layers
        total = inputs + max(total // layers, largest)
    return total, largest


def typical_activations(model: Any, federation: Federation, rows: int, length: int) -> tuple[int, int]:
    """The same by a rule of thumb (Korthikanti et al. (2022), Equation 2): 34 values of 2 bytes per token and width."""
    text, layers = model.config.get_text_config(), max(1, len(blocks(model)))
    wide = 1 if federation.train.precision == "bf16" else 2
    block = rows * length * text.hidden_size * 34 * wide
    logits = rows * length * FLOAT * int(getattr(text, "vocab_size", 0))
    if federation.train.gradient_checkpointing:
        return rows * length * text.hidden_size * FLOAT * layers + block + logits, logits
    return block * layers + logits, logits


class _Loss(nn.Module):
    """The task's loss of a model, as a module: what `functional_call` takes."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch) -> Tensor:
        """The task's loss on a batch."""
        return self.task.loss(self.model, batch)


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()


def _fake(parameter: Tensor, frozen: torch.dtype) -> Tensor:
    dtype = torch.float32 if parameter.requires_grad else frozen
    return torch.empty(parameter.shape, dtype=dtype, device="cpu").requires_grad_(parameter.requires_grad)


def _batch(model: Any, rows: int, length: int) -> Batch:
    """A micro-batch of the longest samples; every position has a target, as causal models have it."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or length
    length = min(length, limit)
    ids = torch.zeros(rows, length, dtype=torch.int64)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    count = rows * length
    return Batch(inputs, torch.arange(count), torch.zeros(count, dtype=torch.int64))


def operations(model: Any, again: bool, length: int) -> float:
    """Floating-point operations of a training step, per token."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables -= {id(head.weight)} if head is not None else set()
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    every, trained = sum(p.numel() for p in matrices), sum(p.numel() for p in matrices if p.requires_grad)
    text = model.config.get_text_config()
    attention = 4 * length * text.hidden_size * max(1, len(blocks(model)))
    return float((3 if again else 2) * 2 * every + 2 * trained + (4 if again else 3) * attention)


def rate(model: Any, federation: Federation) -> float:
    """Floating-point operations per second of this machine, measured on a matrix product of the model's width."""
    width, device = int(model.config.get_text_config().hidden_size), devices.choose()
    dtype = torch.bfloat16 if federation.train.precision == "bf16" else _dtype(model, federation)
    rows = federation.data.max_length * (federation.train.micro_batch or federation.train.batch)
    left = torch.zeros(min(rows, 4096), width, dtype=dtype, device=device)
    right = torch.zeros(width, width, dtype=dtype, device=device)
    threads, best = torch.get_num_threads(), 0.0
    torch.set_num_threads(1)
    try:
        began = perf_counter()
        while not best or perf_counter() - began < TRIAL_SECONDS:
            start = perf_counter()
            float((left @ right)[0, 0])
            best = max(best, 2.0 * left.shape[0] * width * width / (perf_counter() - start))
    finally:
        torch.set_num_threads(threads)
    return EFFICIENCY * best
