"""Representations inside any Hugging Face text classifier, and running it from the middle on.

    tokens → embeddings → block 0 → … → block n → … → last linear layer → logits
                       ↑ embedded                  ↑ pooled

*embedded* is what the first block gets (of a text: positions × width); *pooled* is what the last linear layer gets (of
a text: one vector). Both are found by structure, not by one architecture's names: hooks read or replace what passes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hansa.core.errors import ConfigError
from hansa.core.model_parts import block_lists


@dataclass(frozen=True)
class Seen:
    """What passed through a model."""

    embedded: Tensor
    pooled: Tensor
    logits: Tensor


def look(model: Any, inputs: dict[str, Tensor]) -> Seen:
    """The model's output, and what passed on the way."""
    embedded: list[Tensor] = []
    with _first_block(model, lambda passing: embedded.append(passing)):
        pooled, logits = represent(model, inputs)
    return Seen(embedded[0], pooled, logits)


class _Enough(Exception):
    """What was wanted has passed: the rest of the model need not run."""


def embed(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """What the first block gets; no block runs."""
    embedded: list[Tensor] = []

    def stop(passing: Tensor) -> None:
        """Keep the input of the first block, and end the forward pass by an exception."""
        embedded.append(passing)
        raise _Enough

    with _first_block(model, stop), suppress(_Enough):
        model(**inputs)
    return embedded[0]


def represent(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The pooled representation of each text, and its logits."""
    return watched(model, inputs, lambda: model(**inputs).logits)


def watched(model: Any, inputs: dict[str, Tensor], run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The pooled representation of each text while something runs the model on these inputs, and what that gives."""
    passed: list[Tensor] = []
    hook = last_linear(model).register_forward_pre_hook(lambda _module, args: passed.append(args[0]))
    try:
        given = run()
    finally:
        hook.remove()
    pooled = passed[0]
    if pooled.ndim == 3:  # a decoder classifies at every position, and the last real one counts
        last = inputs["attention_mask"].sum(dim=1) - 1
        pooled = pooled[torch.arange(len(pooled), device=last.device), last]
    return pooled, given


def represent_with(model: Any, parameters: dict[str, Tensor], inputs: dict[str, Tensor]) -> Tensor:
    """The pooled representation that the model would give with other parameters, without dropout."""
    training = model.training
    model.eval()
    try:
        return watched(model, inputs, lambda: functional_call(model, parameters, kwargs=inputs).logits)[0]
    finally:
        model.train(training)


def scaled(model: Any, inputs: dict[str, Tensor], factor: float, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The input of the first block, scaled and shifted, and the logits that follow; both can be differentiated twice.

    ``shift`` (positions × width) is added as far as both go.
    """
    given: list[Tensor] = []

    def scale(passing: Tensor) -> Tensor:
        """The input of the first block times ``factor`` plus ``shift``; kept for the caller."""
        moved = passing * factor
        if shift is not None:
            fitting = shift[: moved.shape[1]]
            moved = moved + nn.functional.pad(fitting, (0, 0, 0, moved.shape[1] - len(fitting)))
        given.append(moved)
        return given[0]

    with _first_block(model, scale), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        logits: Tensor = model(**inputs).logits
    return given[0], logits


def from_embedded(model: Any, embedded: Tensor, mask: Tensor) -> Tensor:
    """Logits of texts that are given as the first block would get them (texts × positions × width)."""
    pad = getattr(model.config, "pad_token_id", None) or 0
    ids = torch.where(mask.bool(), pad + 1, pad)  # only their number and where they end matter
    with _first_block(model, lambda _passing: embedded):
        logits: Tensor = model(input_ids=ids, attention_mask=mask).logits
    return logits


def from_pooled(model: Any, pooled: Tensor) -> Tensor:
    """Logits of texts that are given as the last linear layer would get them."""
    logits: Tensor = last_linear(model)(pooled)
    return logits


def widths(model: Any) -> tuple[int, int]:
    """Of what the first block gets, and of what the last linear layer gets."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        ones = torch.ones(1, 2, dtype=torch.long, device=model.device)
        seen = look(model, {"input_ids": ones, "attention_mask": ones})
    model.train(was_training)
    return seen.embedded.shape[-1], seen.pooled.shape[-1]


_LAST: WeakKeyDictionary[nn.Module, nn.Linear] = WeakKeyDictionary()  # looking takes as long as a small step,
_FIRST: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()  # and steps ask for both


def last_linear(model: Any) -> nn.Linear:
    """The layer that gives the logits: the last linear one outside the base with as many outputs as classes."""
    if model not in _LAST:
        _LAST[model] = _last_linear(model)
    return _LAST[model]


def first_block(model: Any) -> nn.Module:
    """The first transformer block."""
    if model not in _FIRST:
        _FIRST[model] = model.get_submodule(block_lists(model)[0])[0]
    return _FIRST[model]


def _last_linear(model: Any) -> nn.Linear:
    inside = {id(module) for module in model.base_model.modules()}
    found = [
        m
        for m in model.modules()
        if isinstance(m, nn.Linear) and id(m) not in inside and m.out_features == model.config.num_labels
    ]
    if not found:
        raise ConfigError(
            f"{type(model).__name__} has no final linear layer that gives the logits, which this method needs: use "
            "another model or method"
        )
    return found[-1]


@contextmanager
def _first_block(model: Any, change: Any) -> Iterator[None]:
    """While it lasts, ``change`` sees what the first block gets and may give something else instead."""
    calls = 0

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass the block's input to ``change`` at the first call, and replace it by the result unless that is None."""
        nonlocal calls
        calls += 1
        if calls > 1:  # some models send the text through the same block several times
            return None
        passing = args[0] if args else kwargs["hidden_states"]
        given = change(passing)
        if given is None:
            return None
        return ((given, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": given})

    handle = first_block(model).register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
