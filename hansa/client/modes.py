"""How a step is computed, beside what is learned: precision, gradient checkpointing, compilation."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from hansa.config.sections import Training
from hansa.core.errors import ConfigError, UserError
from hansa.core.model_parts import block_lists

_compiled: WeakKeyDictionary[nn.Module, Callable[..., Any]] = WeakKeyDictionary()  # block → its compiled call


def autocast(settings: Training, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass: in `precision: bf16`, matrix products are computed in bfloat16."""
    if settings.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def training_mode(model: Any, settings: Training) -> Iterator[None]:
    """Switch gradient checkpointing and compiled blocks on while a model is trained.

    Raises `ConfigError` if the model has no gradient checkpointing, `UserError` if it cannot be compiled here.
    """
    if settings.gradient_checkpointing:
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise ConfigError(
                f"train.gradient_checkpointing: {type(model).__name__} does not support it: leave it out, or set "
                "train.micro_batch"
            )
        _checkpointing(model, "enable", {"use_reentrant": False})
    parts = blocks(model) if settings.compile else []
    for block in parts:
        if block not in _compiled:
            block.compile(dynamic=True)
            _compiled[block] = block._compiled_call_impl
        block._compiled_call_impl = _compiled[block]
    try:
        yield
    except Exception as error:
        if parts and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            first = str(error).strip().partition("\n")[0][:200]
            raise UserError(
                f"train.compile: torch cannot compile this model on this machine ({type(error).__name__}: {first}): "
                "leave it out"
            ) from None
        raise
    finally:
        for block in parts:  # evaluation and generation have other shapes
            block._compiled_call_impl = None
        if settings.gradient_checkpointing:
            _checkpointing(model, "disable")
            model.disable_input_require_grads()  # which enabling it has set


def _checkpointing(model: Any, what: str, *settings: Any) -> None:
    """Call the model's own switch, which transformers 5.2x renames."""
    new, old = (getattr(model, f"{kind}_checkpointing_{what}", None) for kind in ("activation", "gradient"))
    (new or old)(*settings)  # type: ignore[misc]


def blocks(model: nn.Module) -> list[Any]:
    """The blocks of a model, or the model itself if it has none."""
    return [block for name in block_lists(model) for block in model.get_submodule(name).children()] or [model]
