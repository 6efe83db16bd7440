"""Outputs of a frozen base, kept in memory: each text passes through the base once in a process (`model.keep_outputs`).

A base that is not trained gives the same output for a text in every round and, without dropout, in training and
evaluation. So its forward pass is run in evaluation mode. Each text is computed by itself, without padding: what is
kept does not depend on the batch in which the text came first, and results are the same for any number of workers.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from hansa.models.base import digest
from hansa.models.settings import Model

LIMIT = 1 << 30  # bytes of outputs in a process; the oldest are dropped

Output = dict[str, Tensor]  # field of the output → its values for one text, without the batch dimension


class Kept:
    """The outputs of all bases in this process, by base and token ids."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.size = limit, 0
        self._found: OrderedDict[tuple[str, bytes], Output] = OrderedDict()

    def get(self, key: tuple[str, bytes]) -> Output | None:
        """The output of a text, if it is kept."""
        return self._found.get(key)

    def add(self, key: tuple[str, bytes], output: Output) -> None:
        """Keep the output of a text, and drop the oldest ones beyond the limit."""
        self.size += _bytes(output) - _bytes(self._found.get(key, {}))
        self._found[key] = output
        while self.size > self.limit and len(self._found) > 1:
            self.size -= _bytes(self._found.popitem(last=False)[1])


KEPT = Kept()


def keep_outputs(model: Any, settings: Model, kept: Kept = KEPT) -> None:
    """Let a model take the outputs of its frozen base from ``kept``.

    Calls of the base with other arguments than token ids and their mask are left as they are.
    """
    base: nn.Module = model.base_model
    name = f"{digest(settings)} {type(model).__name__} {settings.dtype} {settings.quantize}"
    plain = base.forward
    kinds: list[Any] = []  # the type of the output

    def alone(ids: Tensor) -> Output:
        """The output for one text, in evaluation mode, as ordinary tensors: a later step may need their gradients."""
        was_training = base.training
        base.eval()
        try:
            with torch.inference_mode(False), torch.no_grad():
                ids = ids.clone()[None]
                whole = plain(input_ids=ids, attention_mask=torch.ones_like(ids))
        finally:
            base.train(was_training)
        kinds[:] = [type(whole)]
        return {field: value[0] for field, value in whole.items() if isinstance(value, Tensor)}

    def forward(input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any) -> Any:
        """The output of the base for a batch, from kept outputs of single texts; other calls go to the base itself."""
        asked = any(value is not None for key, value in others.items() if key != "return_dict")
        if input_ids is None or attention_mask is None or asked:
            return plain(input_ids=input_ids, attention_mask=attention_mask, **others)
        found = []
        for row, mask in zip(input_ids, attention_mask, strict=True):
            ids = row[mask.bool()]
            key = (name, ids.cpu().numpy().tobytes())
            output = kept.get(key) if kinds else None
            if output is None:
                output = alone(ids)
                kept.add(key, output)
            found.append(output)
        length = input_ids.shape[1]
        return kinds[0](**{field: _batch([output[field] for output in found], length) for field in found[0]})

    base.forward = forward


def _batch(values: list[Tensor], length: int) -> Tensor:
    """One tensor for a batch: values by token are padded with zeros to ``length``."""
    if values[0].dim() < 2:
        return torch.stack(values)
    out = values[0].new_zeros((len(values), length, *values[0].shape[1:]))
    for row, value in zip(out, values, strict=True):
        row[: len(value)] = value
    return out


def _bytes(output: Output) -> int:
    return sum(value.numel() * value.element_size() for value in output.values())
