"""A random rotation that spreads a vector's large values over many: the randomised Hadamard transform, block by block.

Kairouz, Liu and Steinke (2021), Algorithm 1, line "flatten": x ↦ H·D·x, with H the Hadamard matrix over √B, so that it
is orthogonal, and D a diagonal of random signs. Any value of the result is sub-Gaussian with variance ‖x‖²/B.

Deviations: blocks of B = 4,096 values (fewer where the vector is shorter) instead of one power of two, and the same
signs for every block: the bound on a value needs the signs of its own block only. Values at the end that fill no block
are not padded: the last B values are rotated once more, with other signs, over the result of the first pass. A
composition of rotations is a rotation, and every value has then been in a whole block.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.core.seeds import stream

BLOCK = 1 << 12
BATCH = 256  # blocks at a time, which stay in the processor's cache
Values = NDArray[np.float32]


def block_size(size: int) -> int:
    """B: the values that are rotated together, of a vector with ``size`` values."""
    return min(BLOCK, 1 << max(0, size.bit_length() - 1))


@dataclass(frozen=True)
class Rotation:
    """The rotation of one round, of vectors with ``size`` values. All silos and the server know it.

    ``seed`` and ``round`` determine the signs. They are public: privacy does not depend on them.
    """

    size: int
    seed: int
    round: int

    def forward(self, values: Values) -> Values:
        """Rotate a vector, in place; returns it."""
        whole = self._whole
        self._turn(values[:whole], self._signs[0], inverse=False)
        if whole < self.size:
            self._turn(values[self.size - self._block :], self._signs[1], inverse=False)
        return values

    def inverse(self, values: Values) -> Values:
        """Undo `forward`, in place, up to the rounding of float32; returns the vector."""
        whole = self._whole
        if whole < self.size:
            self._turn(values[self.size - self._block :], self._signs[1], inverse=True)
        self._turn(values[:whole], self._signs[0], inverse=True)
        return values

    @property
    def _block(self) -> int:
        return block_size(self.size)

    @property
    def _whole(self) -> int:
        """How many values lie in whole blocks."""
        return self.size - self.size % self._block

    @cached_property
    def _signs(self) -> tuple[Tensor, Tensor]:
        drawn = stream(self.seed, self.round, "rotation").integers(0, 2, (2, self._block))
        first, second = torch.from_numpy((2 * drawn - 1).astype(np.float32))
        return first, second

    def _turn(self, values: Values, signs: Tensor, inverse: bool) -> None:
        """H·D·x (inverse: D·H·x) of every block: H of a block is a Kronecker product, so two small matrices do it."""
        left, right = _factors(self._block)
        blocks = torch.from_numpy(values).view(-1, self._block)
        if not inverse:
            blocks.mul_(signs)
        squares = blocks.view(-1, len(left), len(right))
        for begin in range(0, len(squares), BATCH):
            some = squares[begin : begin + BATCH]
            some.copy_(left @ (some @ right))
        if inverse:
            blocks.mul_(signs)


@lru_cache
def _factors(block: int) -> tuple[Tensor, Tensor]:
    """Two Hadamard matrices whose Kronecker product is that of ``block`` rows, each orthogonal."""
    bits = block.bit_length() - 1
    return _hadamard(bits // 2), _hadamard(bits - bits // 2)


def _hadamard(bits: int) -> Tensor:
    """The Hadamard matrix with 2^``bits`` rows (Sylvester's construction), scaled to be orthogonal."""
    matrix = torch.ones(1, 1)
    for _ in range(bits):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / sqrt(2**bits)
