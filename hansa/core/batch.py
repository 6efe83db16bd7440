"""A batch of model inputs and targets."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Model inputs, the rows (of batch × position, flattened) whose output counts, and the targets there."""

    inputs: dict[str, Tensor]
    rows: Tensor | None
    targets: Tensor
    bytes: int = 0  # of text that the targets stand for, where a task counts them
    packed: int = 0  # samples, where several of them share a row of the inputs

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.packed or len(next(iter(self.inputs.values())))

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; itself if it is there."""
        if self.targets.device == device:
            return self
        inputs = {name: values.to(device) for name, values in self.inputs.items()}
        rows = None if self.rows is None else self.rows.to(device)
        return Batch(inputs, rows, self.targets.to(device), self.bytes, self.packed)
