"""Counts of rows with a floor: what fewer rows (or patients) have does not leave, and what leaves is rounded.

The total of a silo's rows leaves too. If the other counts were exact, a single missing one would be the difference
between the total and the others. Therefore every count is rounded down to a multiple of the floor: a difference of two
counts says how large a small group is only to within as many rows.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", str, int)


class FlooredCounts(Generic[T]):
    """Rows by key, such as a language; a row has one key or several."""

    def __init__(self) -> None:
        self._rows: Counter[T] = Counter()
        self._units: dict[T, set[Hashable]] = {}

    def add(self, keys: Iterable[T], unit: Hashable | None) -> None:
        """Count a row under its keys. ``unit``: the patient or document that it belongs to; None: the row itself."""
        for key in keys:
            self._rows[key] += 1
            if unit is not None:
                self._units.setdefault(key, set()).add(unit)

    def released(self, floor: int) -> tuple[dict[T, int], bool]:
        """The counts that leave, in the order of their keys, and whether others are withheld."""
        kept = {key: rounded(rows, floor) for key, rows in sorted(self._rows.items()) if self._behind(key) >= floor}
        return kept, len(kept) < len(self._rows)

    def _behind(self, key: T) -> int:
        """Different rows or units behind a count."""
        return len(self._units[key]) if key in self._units else self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)


def rounded(count: int, floor: int) -> int:
    """The largest multiple of the floor that is not above a count."""
    return count - count % floor


def length_bin(length: int) -> int:
    """The bin of a length: the largest power of two that is not above it; 0 for 0."""
    return 1 << (length.bit_length() - 1) if length else 0
