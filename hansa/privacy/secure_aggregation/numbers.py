"""Numbers of any size under masks: losses, counts and sums of scores as words that add up exactly.

A number x is the integer round(x·2²⁴) in two's complement of 96 bits, cut into six limbs of 16 bits, each in a 32-bit
word of its own. Words are added modulo 2³², and a sum of at most 2¹⁶ limbs does not overflow, so the sum of the numbers
follows from the sums of the limbs exactly: whole numbers as they are, others to 2⁻²⁵ each.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

LIMBS, LIMB_BITS, FRACTION_BITS = 6, 16, 24
MAX_NUMBER = 1e15  # sums of 2¹⁶ of them still fit
Words = NDArray[np.uint32]


def to_words(numbers: Sequence[float]) -> Words:
    """The numbers as words, `LIMBS` for each; raises ValueError for one that is not finite or too large."""
    found = np.zeros((len(numbers), LIMBS), np.uint32)
    for row, number in zip(found, numbers, strict=True):
        if not isfinite(number) or abs(number) > MAX_NUMBER:
            raise ValueError("a number is not finite or too large to be summed under masks")
        whole = round(number * 2**FRACTION_BITS) % 2 ** (LIMBS * LIMB_BITS)
        row[:] = [(whole >> (LIMB_BITS * limb)) % 2**LIMB_BITS for limb in range(LIMBS)]
    return found.reshape(-1)


def from_words(words: Words) -> list[float]:
    """The numbers whose words, or sums of words, these are."""
    found, modulus = [], 2 ** (LIMBS * LIMB_BITS)
    for row in words.reshape(-1, LIMBS).tolist():
        whole = sum(limb << (LIMB_BITS * place) for place, limb in enumerate(row)) % modulus
        found.append((whole - modulus if whole >= modulus // 2 else whole) / 2**FRACTION_BITS)
    return found
