"""Encoding of updates in fewer bytes: some of the tensors, some of their values, in small numbers.

An `EncodedTensor` is what leaves of one tensor: values (float32, bfloat16, or int8, int4 and int2 with a scale for
every `BLOCK` of them) and, where not all of it leaves, their positions. `EncodedUpdate` is encoded tensors as they
travel: a line of JSON that describes them, then their bytes side by side. Positions are written as one bit per value
of the tensor, or as the gaps between them, whichever is shorter. Decoding does not trust the sender: an update that
does not fit the model is refused with a reason.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hansa.core.errors import HansaError
from hansa.core.tensors import Layout, Tensors

BLOCK = 256  # whole numbers: values that share a scale
SMALL = {"int4": 4, "int2": 2}  # int8 from −7 to 7, or from −1 to 1, that travel two or four in a byte: bits of each
SMALL_NAMES = {bits: name for name, bits in SMALL.items()}
FORMS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
NAMES = {dtype: name for name, dtype in FORMS.items()}
SKIP = 255  # in a list of gaps: so many values are passed over, and none stands here
WORD = 4


class EncodingError(HansaError):
    """An encoded update that does not fit the model."""


@dataclass(frozen=True, eq=False)
class EncodedTensor:
    """What leaves of one tensor.

    ``where``: which units leave, ascending; all if None. A unit is ``width`` values. ``bits``: of an
    int8 value on the wire; fewer than 8: several values travel in a byte.
    """

    shape: tuple[int, ...]
    values: Tensor
    scales: Tensor | None = None
    where: Tensor | None = None
    width: int = 1
    bits: int = 8

    @property
    def plain(self) -> bool:
        """Whether it is the whole tensor in float32."""
        return self.where is None and self.scales is None and self.values.dtype == torch.float32

    def numbers(self) -> Tensor:
        """The values as float32."""
        values = self.values.float()
        if self.scales is not None:
            values *= self.scales.repeat_interleave(BLOCK)[: len(values)]
        return values

    def dense(self) -> Tensor:
        """The whole tensor, flat, zero where nothing was sent."""
        if self.where is None:
            return self.numbers()
        out = torch.zeros(prod(self.shape))
        out.view(-1, self.width)[self.where] = self.numbers().view(-1, self.width)
        return out


@dataclass(frozen=True, eq=False)
class EncodedUpdate:
    """Parts as they travel. The bytes are held as 32-bit words, because that is what links move."""

    text: str
    words: Tensor

    @staticmethod
    def of(parts: Mapping[str, EncodedTensor]) -> "EncodedUpdate":
        """Encode tensors for the wire."""
        entries, chunks = [], []
        for name, part in parts.items():
            form = SMALL_NAMES.get(part.bits) or NAMES[part.values.dtype]
            entry: list[Any] = [name, part.shape, form, len(part.values)]
            if part.where is not None:
                positions, kind = _write_positions(part.where, prod(part.shape) // part.width)
                chunks.append(positions)
                entry += [kind, part.width, len(positions)]
            if part.scales is not None:
                chunks.append(_bytes(part.scales))
            chunks.append(_together(part.values, part.bits) if part.bits < 8 else _bytes(part.values))
            entries.append(entry)
        chunks.append(torch.zeros(-sum(map(len, chunks)) % WORD, dtype=torch.uint8))
        return EncodedUpdate(
            json.dumps(entries, ensure_ascii=False, separators=(",", ":")), torch.cat(chunks).view(torch.float32)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of which something leaves."""
        return tuple(entry[0] for entry in json.loads(self.text))

    def open(self, layout: Layout) -> Tensors:
        """The tensors that were sent, whole, in the layout's order; `EncodingError` where they do not fit it."""
        try:
            named = {name: part.dense() for name, part in self._parts(layout)}
        except (ValueError, TypeError, IndexError, KeyError, RuntimeError, OverflowError) as error:
            raise EncodingError(f"its coded update cannot be read ({type(error).__name__})") from None
        sent = layout.only(named)
        return Tensors(sent, torch.cat([named[name] for name in sent.names]) if named else torch.zeros(0))

    def _parts(self, layout: Layout) -> Iterator[tuple[str, EncodedTensor]]:
        known = dict(zip(layout.names, layout.shapes, strict=True))
        data, at, seen = self.words.view(torch.uint8), 0, set()

        def take(count: int) -> Tensor:
            """A copy of the next ``count`` bytes; raises `ValueError` if fewer are left."""
            nonlocal at
            at += count
            if count < 0 or at > len(data):
                raise ValueError("the bytes end too early")
            return data[at - count : at].clone()  # of its own: a view as wider numbers needs its own alignment

        for name, sizes, form, count, *positions in json.loads(self.text):
            shape = tuple(sizes)
            if name in seen or known.get(name) != shape:
                what = "twice" if name in seen else "which the model does not have"
                raise EncodingError(f"its update has {str(name)[:80]} {list(shape)}, {what}")
            seen.add(name)
            where, width, units = None, 1, prod(shape)
            if positions:
                kind, width, length = positions
                if width < 1 or prod(shape) % width:
                    raise EncodingError(f"its update has {name} in rows of {width}, which do not fit {list(shape)}")
                units = prod(shape) // width
                where = _read_positions(take(length), kind, units)
                units = len(where)
            if count != units * width:
                raise EncodingError(f"its update has {count} values of {name}, where {units * width} belong")
            scales = take(WORD * -(-count // BLOCK)).view(torch.float32) if form in ("int8", *SMALL) else None
            bits = SMALL.get(form, 8)
            if bits < 8:
                values = _apart(take(-(-count * bits // 8)), count, bits)
            else:
                values = take(count * FORMS[form].itemsize).view(FORMS[form])
            yield name, EncodedTensor(shape, values, scales, where, width, bits)
        if len(data) - at >= WORD:
            raise EncodingError(f"its coded update has {len(data) - at} bytes too many")


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _together(values: Tensor, bits: int) -> Tensor:
    """Values of a few bits each, several in a byte, the first in its lowest bits."""
    several = 8 // bits
    shifted = np.pad(values.numpy() + (1 << bits - 1), (0, -len(values) % several)).astype(np.uint8)
    columns = [shifted[i::several] << i * bits for i in range(several)]
    return torch.from_numpy(np.bitwise_or.reduce(columns))


def _apart(data: Tensor, count: int, bits: int) -> Tensor:
    packed = data.numpy()
    columns = [packed >> i * bits & (1 << bits) - 1 for i in range(8 // bits)]
    values = np.stack(columns, axis=1).reshape(-1)[:count]
    return torch.from_numpy(values.astype(np.int8) - (1 << bits - 1))


def _write_positions(where: Tensor, units: int) -> tuple[Tensor, str]:
    """One bit per unit, or the gaps between units in bytes."""
    positions = where.numpy()
    gaps = np.diff(positions, prepend=-1) - 1
    skips = gaps // SKIP
    if len(gaps) + skips.sum() < units / 8:
        out = np.full(len(gaps) + int(skips.sum()), SKIP, dtype=np.uint8)
        out[np.cumsum(skips + 1) - 1] = gaps % SKIP
        return torch.from_numpy(out), "gaps"
    bits = np.zeros(units, dtype=bool)
    bits[positions] = True
    return torch.from_numpy(np.packbits(bits)), "bits"


def _read_positions(data: Tensor, kind: str, units: int) -> Tensor:
    values = data.numpy()
    if kind == "bits" and len(values) == -(-units // 8):
        return torch.from_numpy(np.flatnonzero(np.unpackbits(values, count=units)))
    if kind != "gaps":
        raise EncodingError(f"its update has positions written as {str(kind)[:40]!r}, or too few of them")
    ends = np.flatnonzero(values != SKIP)
    found = np.cumsum(values, dtype=np.int64)[ends] + np.arange(len(ends))
    if len(found) and found[-1] >= units:
        raise EncodingError(f"its update has a value at {found[-1]}, where the tensor ends at {units}")
    return torch.from_numpy(found)
