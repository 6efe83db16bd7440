"""Sparsification and quantisation of updates: fewer values, or fewer bits for each.

rows     of tables of embeddings, the share ``keep`` of the rows that moved most; 1: all that moved, which is exact
top-k    of every tensor, the share ``keep`` of its values that are largest
         (Stich et al. (2018), Sparsified SGD with Memory, Definition 2.2; per tensor)
bf16     the upper half of each float32, rounded to the nearest
int8     round(x·127/m) with m the largest |x| of 256 values, kept beside them as a float32
         (Dettmers (2016), 8-Bit Approximations for Parallelism in Deep Learning, Section 3; linear, in blocks)
int4     the same with 7 for 127, two in a byte
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

Kept = Annotated[float, Field(gt=0.0, le=1.0)]


@dataclass(frozen=True)
class TopRows:
    """Of tables of embeddings, the rows that moved most."""

    keep: float = 1.0
    kind: ClassVar[Kind] = "values"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
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
    """Of every tensor, the values that are largest."""

    keep: float
    kind: ClassVar[Kind] = "values"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        return {name: self._largest(part) for name, part in tensors.items()}

    def _largest(self, part: EncodedTensor) -> EncodedTensor:
        count = ceil(self.keep * len(part.values))
        if part.where is not None or count == len(part.values):
            return part
        where = part.values.abs().topk(count).indices.sort().values
        return replace(part, values=part.values[where], where=where)


@dataclass(frozen=True)
class Bf16:
    """Every value as bfloat16."""

    kind: ClassVar[Kind] = "numbers"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        return {name: replace(part, values=part.values.to(torch.bfloat16)) for name, part in tensors.items()}


@dataclass(frozen=True)
class Quantize:
    """Whole numbers from −``most`` to ``most``, times a scale."""

    most: int
    kind: ClassVar[Kind] = "numbers"
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        return {name: self._rounded(part) for name, part in tensors.items()}

    def _rounded(self, part: EncodedTensor) -> EncodedTensor:
        values, most = part.values, self.most
        blocks = torch.nn.functional.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales: Tensor = blocks.abs().amax(dim=1) / most
        steps = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(-most, most)
        rounded = steps.to(torch.int8).view(-1)[: len(values)].clone()
        return replace(part, values=rounded, scales=scales, halved=most < 8)


@COMPRESSORS.register("rows")
class RowsSettings(Section):
    keep: Kept = 0.25

    def build(self) -> Compressor:
        return TopRows(self.keep)


@COMPRESSORS.register("top-k")
class TopKSettings(Section):
    keep: Kept = 0.1

    def build(self) -> Compressor:
        return TopK(self.keep)


@COMPRESSORS.register("bf16")
class Bf16Settings(Section):
    def build(self) -> Compressor:
        return Bf16()


@COMPRESSORS.register("int8")
class Int8Settings(Section):
    def build(self) -> Compressor:
        return Quantize(127)


@COMPRESSORS.register("int4")
class Int4Settings(Section):
    def build(self) -> Compressor:
        return Quantize(7)
