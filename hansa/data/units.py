"""Counts by unit: in how many rows, documents or patients something occurs, however often it occurs in each.

What a silo releases by its frequency (words, label names) is counted in this way: a surname that the notes of one
patient repeat does not become frequent by that.
"""

from collections import Counter
from collections.abc import Hashable, Iterable


class UnitCounts:
    """The number of units in which each item occurs."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seen: dict[Hashable, set[str]] = {}

    def add(self, items: Iterable[str], unit: Hashable | None = None) -> None:
        """Count the items of a row. ``unit``: what the row belongs to, such as a patient; None: the row is a unit."""
        new = set(items)
        if unit is not None:
            seen = self._seen.setdefault(unit, set())
            new -= seen
            seen |= new
        self._counts.update(new)

    def at_least(self, floor: int) -> dict[str, int]:
        """The items that occur in at least ``floor`` units, with their numbers of units, in alphabetical order."""
        return {item: count for item, count in sorted(self._counts.items()) if count >= floor}

    def __len__(self) -> int:
        return len(self._counts)
