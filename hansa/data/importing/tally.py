"""The settings of an import, the documents passed between its steps, and its counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

PLACES = 5  # places that the report names for each reason


@dataclass(frozen=True)
class Settings:
    """The options of `hansa data import`."""

    language: str
    kind: str = "auto"  # of the files: auto, or one of `files.KINDS`
    documents: str = "files"  # what a document is in text files: files, blocks or lines
    field: str = "text"  # of JSON objects, or the column of a table
    valid: float = 0.05  # fraction of the documents
    test: float = 0.1
    shortest: int = 10  # characters of a sentence
    longest: int = 1000
    near: float = 0.8  # similarity from which documents are duplicates; 0: they are not compared
    citations: bool = False  # keep brackets such as [12, 13]
    keep_other_languages: bool = False
    memory: int = 512  # of the tables that find duplicates, in MB
    workers: int = 1
    gzip: bool = False
    deidentify: str = ""  # the finder of personal details; empty: none
    keep_details: tuple[str, ...] = ()  # types of personal details that are left alone
    key: str = ""  # of the surrogates
    style: str = "surrogates"


def primary_language(language: str) -> str:
    """The language without its region: pt of pt-BR."""
    return language.split("-")[0]


class Piece(NamedTuple):
    """A document as it was read, or one part of a very long document; ``first`` marks the first part."""

    place: str
    text: str
    kind: str = "text"
    first: bool = True


@dataclass
class Tally:
    """Counts by name ("documents kept"), and for each reason of a drop the first few places."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, what: str, reason: str, place: str, count: int = 1, detail: str = "") -> None:
        """Count ``what`` under a reason; ``detail``, such as an error message, is stored with the place only."""
        self.reasons.setdefault(what, Counter())[reason] += count
        named = self.places.setdefault(reason, [])
        described = f"{place} ({detail})" if detail else place
        if len(named) < PLACES and described not in named:
            named.append(described)

    def merge(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.counts.update(other.counts)
        for what, reasons in other.reasons.items():
            self.reasons.setdefault(what, Counter()).update(reasons)
        for reason, places in other.places.items():
            named = self.places.setdefault(reason, [])
            named.extend([place for place in places if place not in named][: PLACES - len(named)])

    def dropped(self) -> dict[str, list[dict[str, object]]]:
        """For each level (files, records, documents, sentences), the reasons in descending frequency."""
        return {
            what: [{"reason": r, "count": n, "places": self.places[r]} for r, n in reasons.most_common()]
            for what, reasons in self.reasons.items()
        }
