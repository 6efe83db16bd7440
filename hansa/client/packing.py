"""Packing: several samples of a batch in one row of the inputs, each with its own positions and blind to the others.

Krell et al. (2021), Efficient Sequence Packing without Cross-contamination, Section 3.

A batch consists of the same samples as without packing, so that the step is the same but for rounding. Positions begin
at 0 for every sample; transformers finds the boundaries there and builds the block-diagonal attention mask. Not every
architecture does, so `check_packing` tries it before the first batch.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hansa.core.batch import Batch
from hansa.core.errors import ConfigError

PROBE = (3, 5, 4)  # lengths of the texts that `check_packing` puts into one row
CLOSE = 0.05  # how far packed logits may lie from the others, as a fraction of their deviation: rounding of bfloat16


def rows_for(lengths: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of each sample, and its position there: first fit, longest first; a row holds ``capacity`` tokens."""
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    filled: list[int] = []
    for i in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[i])
        at = next((r for r, used in enumerate(filled) if used + length <= capacity), len(filled))
        if at == len(filled):
            filled.append(0)
        row[i], start[i] = at, filled[at]
        filled[at] += length
    return row, start


def pack(batch: Batch, capacity: int) -> Batch:
    """A padded batch (padding on the right) with its samples in rows of at most ``capacity`` tokens."""
    ids, mask = batch.inputs["input_ids"].numpy(), batch.inputs["attention_mask"].numpy()
    lengths = mask.sum(axis=1)
    row, start = rows_for(lengths, max(capacity, int(lengths.max(initial=1))))
    width = int((start + lengths).max(initial=1))
    new_ids, positions = (np.zeros((int(row.max(initial=0)) + 1, width), np.int64) for _ in range(2))
    sample, column = np.nonzero(mask)
    new_ids[row[sample], start[sample] + column] = ids[sample, column]
    positions[row[sample], start[sample] + column] = column
    assert batch.rows is not None
    old = batch.rows.numpy()
    which = old // ids.shape[1]
    moved = row[which] * width + start[which] + old % ids.shape[1]
    inputs = {"input_ids": torch.from_numpy(new_ids), "position_ids": torch.from_numpy(positions)}
    return Batch(inputs, torch.from_numpy(moved), batch.targets, batch.bytes, packed=len(ids))


def check_packing(model: Any) -> None:
    """Raise `ConfigError` if the model lets packed texts see one another, or reads them differently."""
    was_training = model.training
    model.eval()
    try:
        problem = _contamination(model)
    finally:
        model.train(was_training)
    if problem:
        raise ConfigError(
            f"train.packing: {type(model).__name__} {problem}, so that what it learns would change: leave it out"
        )


@torch.inference_mode()
def _contamination(model: Any) -> str:
    device = next(model.parameters()).device
    positions = torch.cat([torch.arange(n) for n in PROBE])[None].to(device)
    ids = torch.arange(7, 7 + sum(PROBE), device=device)[None] % model.config.vocab_size
    changed = ids.clone()
    changed[:, : PROBE[0]] = (changed[:, : PROBE[0]] + 11) % model.config.vocab_size
    try:
        one, other = (model(input_ids=x, position_ids=positions, use_cache=False).logits[0] for x in (ids, changed))
    except (TypeError, ValueError):
        return "takes no positions"
    rest = slice(PROBE[0], None)
    scale = float(one.float().std())
    if float((one[rest] - other[rest]).float().abs().max()) > 1e-6 * scale:
        return "lets texts in one row see one another"
    alone = model(input_ids=ids[:, PROBE[0] : PROBE[0] + PROBE[1]], use_cache=False).logits[0]
    if float((one[PROBE[0] : PROBE[0] + PROBE[1]] - alone).float().abs().max()) > CLOSE * scale:
        return "reads texts that share a row differently"
    return ""
