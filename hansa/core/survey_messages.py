"""The messages of a survey (`hansa survey`): agreement on a key that the coordinator does not know, then figures.

Requests: `OfferSurveyKey`, `SealSurveyKey`, `TakeSurvey`. Replies: `SurveyKeys`, `SealedSurveyKey`, `SurveyReport`. All
replies name the silos that they come from, so that a region passes on those of the silos below it as one reply.
"""

from dataclasses import dataclass, field

Roster = dict[str, tuple[str, ...]]  # silo → its public key in hexadecimal and its signature


@dataclass(frozen=True)
class OfferSurveyKey:
    """Make a key pair for this survey and return the public key."""


@dataclass(frozen=True)
class SurveyKeys:
    """The reply to `OfferSurveyKey`."""

    keys: Roster


@dataclass(frozen=True)
class SealSurveyKey:
    """The silo ``leader`` draws the key of the sketches and encrypts it for every silo on the roster."""

    roster: Roster
    leader: str


@dataclass(frozen=True)
class SealedSurveyKey:
    """The reply to `SealSurveyKey`: silo → the key, encrypted for it; empty from other silos than the leader."""

    sealed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TakeSurvey:
    """Count. No figure leaves for which fewer than ``floor`` rows (or patients) stand.

    ``labels``: also the shares of the labels. ``roster``, ``leader`` and ``sealed``: the agreement on the key; without
    them no sketches are made.
    """

    floor: int
    labels: bool = False
    roster: Roster = field(default_factory=dict)
    leader: str = ""
    sealed: dict[str, str] = field(default_factory=dict)


SurveyRequest = OfferSurveyKey | SealSurveyKey | TakeSurvey


@dataclass(frozen=True)
class SiloFigures:
    """Counts of rows; a figure that is too small to leave is missing, and ``withheld`` names what it belongs to."""

    rows: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    words: dict[int, int] = field(default_factory=dict)  # least number of words of a bin → rows; a bin ends at twice it
    characters: dict[int, int] = field(default_factory=dict)  # the same for characters
    languages: dict[str, int] = field(default_factory=dict)
    vocabulary: int = 0  # different words that at least so many rows have as the floor says
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiloSketches:
    """Keyed MinHash sketches in base64: of the words that enough rows have, and of every document."""

    vocabulary: str = ""
    documents: str = ""
    count: int = 0  # documents that were sketched
    of: int = 0  # documents long enough to be compared


@dataclass(frozen=True)
class SurveyReport:
    """The reply to `TakeSurvey`, by silo."""

    figures: dict[str, SiloFigures]
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    sketches: dict[str, SiloSketches] = field(default_factory=dict)


SurveyReply = SurveyKeys | SealedSurveyKey | SurveyReport


def merged(first: SurveyReply, other: SurveyReply) -> SurveyReply:
    """Replies of different silos as one; raises TypeError if they do not answer the same request."""
    match first, other:
        case SurveyKeys(), SurveyKeys():
            return SurveyKeys(first.keys | other.keys)
        case SealedSurveyKey(), SealedSurveyKey():
            return SealedSurveyKey(first.sealed | other.sealed)
        case SurveyReport(), SurveyReport():
            labels, sketches = first.labels | other.labels, first.sketches | other.sketches
            return SurveyReport(first.figures | other.figures, labels, sketches)
        case _:
            raise TypeError(f"cannot merge {type(first).__name__} with {type(other).__name__}")
