"""The loss of every row by itself, which membership inference and canary exposure compare.

For a masked language model every token is predicted once: every `APART`-th token is masked together, in `APART` passes.
So the loss depends on no random masks, which would differ between rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.attacks.statistics import Values
from hansa.client.runtime import Runtime
from hansa.core.batch import Batch
from hansa.core.seeds import stream
from hansa.data.examples import Examples
from hansa.tasks.base import as_tensors, pad
from hansa.tasks.mlm import MaskedLM
from hansa.tasks.target_rows import logits_at

SIZE = 64  # rows in a batch
APART = 6  # masked tokens: about the 15% of training


def row_losses(runtime: Runtime, model: Any, held: Examples, rows: Sequence[int]) -> Values:
    """The mean loss of each row over its own targets; 0 for a row without any."""
    found: list[Tensor] = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(rows), SIZE):
            some = np.array(rows[start : start + SIZE])
            sums = [each_loss(model, batch.to(model.device)) for batch in _batches(runtime, held, some)]
            total = sum((losses for losses, _ in sums), torch.zeros(len(some)))
            targets = sum((counts for _, counts in sums), torch.zeros(len(some)))
            found.append(total / targets.clamp_min(1.0))
    losses: Values = torch.cat(found).double().numpy() if found else np.zeros(0)
    return losses


def _batches(runtime: Runtime, held: Examples, rows: NDArray[np.int64]) -> Iterator[Batch]:
    """The questions about some rows: one batch, or for a masked language model one for each pass."""
    task, vocabulary = runtime.task, runtime.vocabulary
    if not isinstance(task, MaskedLM):
        yield task.batch(held, rows, stream(runtime.federation.seed, "row losses"), vocabulary)
        return
    ids, mask = pad(held, rows, vocabulary.pad)
    ordinary = ~vocabulary.special[ids]
    for turn in range(APART):
        chosen = np.flatnonzero(ordinary & (np.arange(ids.shape[1]) % APART == turn))
        if len(chosen):
            asked = ids.copy().reshape(-1)
            targets = asked[chosen].copy()
            asked[chosen] = vocabulary.mask
            inputs = as_tensors(input_ids=asked.reshape(ids.shape), attention_mask=mask)
            yield Batch(inputs, torch.from_numpy(chosen), torch.from_numpy(targets))


def each_loss(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of every sample of a batch: the summed loss of its targets, and their number."""
    size, positions = batch.inputs["input_ids"].shape
    if batch.rows is None:
        losses = nn.functional.cross_entropy(model(**batch.inputs).logits, batch.targets, reduction="none")
        return losses.cpu(), torch.ones(size)
    losses = nn.functional.cross_entropy(logits_at(model, batch), batch.targets, reduction="none").cpu()
    sample = (batch.rows // positions).cpu()
    return torch.zeros(size).index_add_(0, sample, losses), torch.bincount(sample, minlength=size).float()
