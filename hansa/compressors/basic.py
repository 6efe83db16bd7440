"""Sparsification and quantisation of updates: fewer values, or fewer bits for each.

rows     of embedding tables, the fraction ``keep`` of the rows that moved most; 1: all that moved, which is lossless
top-k    of every tensor, the fraction ``keep`` of its values that are largest in magnitude
         (Stich et al. (2018), Sparsified SGD with Memory, Definition 2.2; per tensor)
bf16     each float32 rounded to the nearest bfloat16
int8     round(x·127/m) with m the largest |x| of 256 values; the scale m/127 of each block is sent as a float32
         (Dettmers (2016), 8-Bit Approximations for Parallelism in Deep Learning, Section 3; linear, in blocks)
int4     the same with 7 instead of 127, two values in a byte
int2     −s, 0 or s, four values in a byte: 0 where |x| ≤ t = 0.7·mean |x|, and s = mean of |x| above t, per block
         (Li et al. (2016), Ternary Weight Networks, Equations 5 and 6; in blocks). What is lost is the part of x that
         is orthogonal to what is sent, ‖x − Q(x)‖² = ‖x‖² − ‖Q(x)‖² < ‖x‖², which error feedback needs to converge
         (Karimireddy et al. (2019), Error Feedback Fixes SignSGD, Assumption A)
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hansa.core.compression import COMPRESSORS, Compressor, EncodedTensors, Kind, OutgoingUpdate
from hansa.core.encoding import BLOCK, EncodedTensor
from hansa.core.settings import Section

THRESHOLD = 0.7  # int2: of the mean magnitude, below which a value becomes 0
Kept = Annotated[float, Field(gt=0.0, le=1.0)]  # a fraction to keep


@dataclass(frozen=True)
class TopRows:
    """Keeps, of embedding tables, the rows that moved most."""

    keep: float = 1.0
    kind: ClassVar[Kind] = "values"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Keep the rows that moved most of each embedding table; leave all other tensors whole."""
        return {name: self._rows(part) if name in update.embeddings else part for name, part in tensors.items()}

    def _rows(self, part: EncodedTensor) -> EncodedTensor:
        if len(part.shape) != 2 or not part.values.numel():
            return part
        rows = part.values.view(part.shape)
        movement = rows.norm(dim=1)
        most = movement.topk(ceil(self.keep * len(rows))).indices
        where = most[movement[most] > 0].sort().values
        if len(where) == len(rows):
            return part
        return replace(part, values=rows[where].reshape(-1), where=where, width=part.shape[1])


@dataclass(frozen=True)
class TopK:
    """Keeps, of every tensor, the values that are largest in magnitude."""

    keep: float
    kind: ClassVar[Kind] = "values"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Keep the fraction ``keep`` of each tensor's values; tensors that are sparse already stay as they are."""
        return {name: self._largest(part) for name, part in tensors.items()}

    def _largest(self, part: EncodedTensor) -> EncodedTensor:
        count = ceil(self.keep * len(part.values))
        if part.where is not None or count == len(part.values):
            return part
        where = part.values.abs().topk(count).indices.sort().values
        return replace(part, values=part.values[where], where=where)


@dataclass(frozen=True)
class Bf16:
    """Writes values as bfloat16."""

    kind: ClassVar[Kind] = "numbers"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Round the values of every tensor to bfloat16."""
        return {name: replace(part, values=part.values.to(torch.bfloat16)) for name, part in tensors.items()}


@dataclass(frozen=True)
class Quantize:
    """Writes values as whole numbers from −``most`` to ``most``, with one scale per block."""

    most: int
    kind: ClassVar[Kind] = "numbers"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Round every tensor to integers, with a scale for each block of 256 values."""
        return {name: self._rounded(part) for name, part in tensors.items()}

    def _rounded(self, part: EncodedTensor) -> EncodedTensor:
        values, most = part.values, self.most
        blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales: Tensor = blocks.abs().amax(dim=1) / most
        steps = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(-most, most)
        rounded = steps.to(torch.int8).view(-1)[: len(values)].clone()
        return replace(part, values=rounded, scales=scales, bits=4 if most < 8 else 8)


@dataclass(frozen=True)
class Ternary:
    """Writes values as −1, 0 or 1, with one scale per block."""

    kind: ClassVar[Kind] = "numbers"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Reduce every tensor to signs and zeros, with the mean magnitude of a block's large values as its scale."""
        return {name: self._rounded(part) for name, part in tensors.items()}

    def _rounded(self, part: EncodedTensor) -> EncodedTensor:
        values = part.values
        count = torch.full((-(-len(values) // BLOCK), 1), float(BLOCK))
        if len(values) % BLOCK:
            count[-1] = len(values) % BLOCK
        sizes = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK).abs()
        kept = sizes > THRESHOLD * sizes.sum(dim=1, keepdim=True) / count
        scales = (sizes * kept).sum(dim=1) / kept.sum(dim=1).clamp_min(1)
        signs = values.sign() * kept.view(-1)[: len(values)]
        return replace(part, values=signs.to(torch.int8), scales=scales, bits=2)


@COMPRESSORS.register("rows")
class RowsSettings(Section):
    """Sends only the rows of embedding tables that moved most."""

    keep: Kept = Field(default=0.25, description="Fraction of the rows to send; 1: all rows that moved.")

    def build(self) -> Compressor:
        """The compressor that selects rows of embedding tables."""
        return TopRows(self.keep)


@COMPRESSORS.register("top-k")
class TopKSettings(Section):
    """Sends only the largest values of every tensor (Stich et al., 2018)."""

    keep: Kept = Field(default=0.1, description="Fraction of the values of each tensor to send.")

    def build(self) -> Compressor:
        """The compressor that selects the largest values of each tensor."""
        return TopK(self.keep)


@COMPRESSORS.register("bf16")
class Bf16Settings(Section):
    """Sends values as bfloat16: half of the bytes."""

    def build(self) -> Compressor:
        """The compressor that rounds to bfloat16."""
        return Bf16()


@COMPRESSORS.register("int8")
class Int8Settings(Section):
    """Sends values as 8-bit integers with a scale per block (Dettmers, 2016): a quarter of the bytes."""

    def build(self) -> Compressor:
        """The quantiser to integers from −127 to 127."""
        return Quantize(127)


@COMPRESSORS.register("int4")
class Int4Settings(Section):
    """Sends values as 4-bit integers with a scale per block: an eighth of the bytes."""

    def build(self) -> Compressor:
        """The quantiser to integers from −7 to 7."""
        return Quantize(7)


@COMPRESSORS.register("int2")
class Int2Settings(Section):
    """Sends values as −1, 0 or 1 with a scale per block (Li et al., 2016): a fifteenth of the bytes."""

    def build(self) -> Compressor:
        """The ternary quantiser, which takes two bits for a value."""
        return Ternary()
