"""Settings of an import, what goes from one step to the next, and the count of everything that happened."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

PLACES = 5  # how many places the report names per reason


@dataclass(frozen=True)
class Settings:
    language: str
    kind: str = "auto"
    documents: str = "files"
    field: str = "text"
    valid: float = 0.05
    test: float = 0.1
    shortest: int = 10
    longest: int = 1000
    near: float = 0.8
    citations: bool = False
    keep_other_languages: bool = False
    memory: int = 512
    workers: int = 1
    gzip: bool = False
    deidentify: str = ""
    key: str = ""
    style: str = "surrogates"


def primary_language(language: str) -> str:
    """The language without its region: pt of pt-BR."""
    return language.split("-")[0]


class Piece(NamedTuple):
    """A document as it was read, or, of a document too long to hold, one part; ``first`` opens a document."""

    place: str
    text: str
    kind: str = "text"
    first: bool = True


@dataclass
class Tally:
    """Counts by what they count ("documents kept"), and per reason the first few places where it came up."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, reason: str, place: str, count: int = 1, detail: str = "") -> None:
        """``detail`` (an error's own words) stands with the place, so that reasons stay few."""
        self.reasons.setdefault(what, Counter())[reason] += count
        named = self.places.setdefault(reason, [])
        described = f"{place} ({detail})" if detail else place
        if len(named) < PLACES and described not in named:
            named.append(described)

    def merge(self, other: "Tally") -> None:
        self.counts.update(other.counts)
        for what, reasons in other.reasons.items():
            self.reasons.setdefault(what, Counter()).update(reasons)
        for reason, places in other.places.items():
            named = self.places.setdefault(reason, [])
            named.extend([place for place in places if place not in named][: PLACES - len(named)])

    def dropped(self) -> dict[str, list[dict[str, object]]]:
        """Per level (files, records, documents, sentences), the reasons, most frequent first."""
        return {
            what: [{"reason": r, "count": n, "places": self.places[r]} for r, n in reasons.most_common()]
            for what, reasons in self.reasons.items()
        }
