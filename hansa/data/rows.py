"""Rows as they were read, and the count of those that could not be used."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hansa.core.errors import DataError

ParsedRow = tuple[int, dict[str, Any] | None, str]  # row number, fields by name (None: unreadable), why unreadable
PlacedRow = tuple[str, dict[str, Any] | None, str]  # the same, with its file and line instead of a number
NUMBER = re.compile(r"\d+")
# Kinds of problems. Their names and counts leave a silo; reasons and places do not leave its organisation.
UNREADABLE = "cannot be read"
NO_TEXT = "have no text"
OTHER_LANGUAGE = "are in another language"
NOT_DEIDENTIFIED = "cannot be de-identified"
BAD_ANNOTATION = "have annotation that cannot be used"
OTHER_LABEL = "have a label that is not listed"
TOO_LONG = "do not fit into a sample"
UNUSABLE = "cannot be used"
MOSTLY = 0.5  # if more of the rows are bad, the file is probably read in a wrong way
MAX_REASONS = 4  # reasons named in a message; the others are counted


class Row(dict[str, Any]):
    """The fields of one row, by name."""

    place: str = ""  # the file and line it was read from
    names: tuple[str, ...] = ()  # of its fields, as the file has them


@dataclass
class Problems:
    """How many rows could not be used, why, and where each kind of problem was found first.

    A row that cannot be used is never dropped silently: it is counted here and reported with its file and line.
    """

    lines: int = 0  # rows read, usable or not
    bad: int = 0  # rows that could not be used
    kinds: Counter[str] = field(default_factory=Counter)  # reasons with their numbers replaced by 0 → count
    found: dict[str, str] = field(default_factory=dict)  # kind → the first place, and the reason given there
    derived: Counter[str] = field(default_factory=Counter)  # reason → samples left out that no annotation names
    released_kinds: Counter[str] = field(default_factory=Counter)  # kind of problem, as listed above → count
    shortened: int = 0  # samples that are used, with a part of their prompt left out

    def note(self, place: str, reason: str, as_kind: str = UNUSABLE) -> None:
        """Count a row that cannot be used; ``as_kind`` is one of the kinds listed above."""
        self.bad += 1
        self.released_kinds[as_kind] += 1
        kind = NUMBER.sub("0", reason)
        self.found.setdefault(kind, f"{place}: {reason}")
        self.kinds[kind] += 1

    def take(self) -> "Problems":
        """What was counted since the last call; counting begins anew."""
        taken = Problems(**vars(self))
        vars(self).update(vars(Problems()))
        return taken

    def add(self, later: "Problems") -> None:
        """Add what was counted after this: the result is that of one count."""
        self.lines += later.lines
        self.bad += later.bad
        self.shortened += later.shortened
        for mine, theirs in (
            (self.kinds, later.kinds),
            (self.derived, later.derived),
            (self.released_kinds, later.released_kinds),
        ):
            mine.update(theirs)
        for kind, where in later.found.items():
            self.found.setdefault(kind, where)

    @property
    def first(self) -> list[str]:
        """The first place and reason of each kind of problem."""
        return list(self.found.values())[:MAX_REASONS]

    def summary(self) -> list[str]:
        """One sentence for rows, and one for each reason of derived samples, that were left out; empty if none was."""
        rows = [f"{self.bad} of {self.lines} lines left out, {self._reasons}"] if self.bad else []
        return (
            rows
            + self._shortened()
            + [
                f"{count} derived samples (pairs without an annotated relation) left out: {why}"
                for why, count in self.derived.items()
            ]
        )

    def released(self) -> list[str]:
        """What may leave the silo: how many rows were left out, by kind of problem; no place, no reason, no text."""
        rows = [f"{count} of {self.lines} rows {kind}" for kind, count in sorted(self.released_kinds.items())]
        derived = sum(self.derived.values())
        return rows + self._shortened() + ([f"{derived} derived samples were left out"] if derived else [])

    def _shortened(self) -> list[str]:
        return [f"{self.shortened} samples have a shortened prompt (data.max_length)"] if self.shortened else []

    def check(self, allowed: float, what: str) -> None:
        """Raise `DataError` if more than the ``allowed`` fraction of the rows of ``what`` could not be used."""
        if self.bad > allowed * max(1, self.lines):
            share = self.bad / max(1, self.lines)
            remedy = f"correct them, or raise data.max_bad_rows above {share:.3g} to continue without them"
            if share > MOSTLY:
                names = "'text:', 'label:', 'tokens:', 'tags:' … (or --text, --label …)"
                remedy = f"check the file, and name its fields with {names}"
            raise DataError(f"{what}: {self.bad} of {self.lines} lines cannot be used, {self._reasons}; {remedy}")

    @property
    def _reasons(self) -> str:
        """The most frequent reasons, each with its count and first place."""
        named = [
            f"{f'{count} of them ' if len(self.kinds) > 1 else ''}first {self.found[kind]}"
            for kind, count in self.kinds.most_common(MAX_REASONS)
        ]
        rest = len(self.kinds) - len(named)
        return "; ".join(named) + (f"; and {rest} other reasons" if rest else "")
