"""Labels that are probably one label in two spellings: `Disease` in one silo, `DISEASE` in another."""

import re
import unicodedata
from collections.abc import Mapping
from difflib import SequenceMatcher

PREFIX = re.compile(
    r"^(?:__label__|label[_:\- ]+|[biloesu]-)", re.IGNORECASE
)  # fastText's, and those of tagging schemes
MOST = 5  # warnings
ALIKE = 0.8  # similarity of two words, at least, that may mean the same


def plain(label: str) -> str:
    """A label without what spellings differ in: case, accents, spaces and hyphens, a prefix."""
    text = unicodedata.normalize("NFKD", PREFIX.sub("", label.strip()))
    bare = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    return re.sub(r"[\W_]+", "", bare) or label


def spelling_warnings(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for every group of labels that differ in their spelling alone.

    ``counts``: silo → label → rows that have it; 0: the number of rows is not known (between organisations it does not
    leave the silo).
    """
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for silo, labels in counts.items():
        for label, rows in labels.items():
            groups.setdefault(plain(label), {}).setdefault(label, {})[silo] = rows
    found = [_sentence(spellings) for spellings in groups.values() if len(spellings) > 1] + _alike(counts)
    return [*found[:MOST], *([f"{len(found) - MOST} more labels have several spellings"] if len(found) > MOST else [])]


def _alike(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for every label of one silo alone that is like a label which all other silos have, and it has not."""
    found = []
    for silo, labels in counts.items():
        others = [set(other) for name, other in counts.items() if name != silo]
        common = set.intersection(*others) - set(labels) if len(others) > 1 else set()  # of two silos, which is odd?
        for label in sorted(set(labels).difference(*others)):
            near = [one for one in sorted(common) if _similar(plain(label), plain(one))]
            if near:
                found.append(
                    f"the label {label!r} occurs in one silo alone ({_where({silo: labels[label]})}), which has no "
                    f"{near[0]!r} as the others have: rename it in the data if they mean the same"
                )
    return found


def _similar(a: str, b: str) -> bool:
    """Whether two words are alike but not the same; words that differ in their numbers are different codes."""
    if a == b or re.sub(r"\d+", "", a) == re.sub(r"\d+", "", b):
        return False
    return SequenceMatcher(None, a, b).ratio() >= ALIKE


def _sentence(spellings: Mapping[str, Mapping[str, int]]) -> str:
    said = [f"{label!r} ({_where(silos)})" for label, silos in sorted(spellings.items())]
    return (
        f"the labels {', '.join(said[:-1])} and {said[-1]} differ only in {_difference(list(spellings))} and count as "
        f"{len(said)} different labels: rename them in the data if they mean the same"
    )


def _where(silos: Mapping[str, int]) -> str:
    shown = [f"{silo}: {rows:,} row{'s' * (rows != 1)}" if rows else silo for silo, rows in silos.items()]
    return ", ".join(shown[:6]) + (f" and {len(shown) - 6} other silos" if len(shown) > 6 else "")


def _difference(labels: list[str]) -> str:
    """What the spellings differ in, in words."""

    def same(change: object) -> bool:
        """Whether a change makes all spellings equal."""
        return len({change(label) for label in labels}) == 1  # type: ignore[operator]

    def unaccented(label: str) -> str:
        """The label without accents and other combining characters."""
        return "".join(c for c in unicodedata.normalize("NFKD", label) if not unicodedata.combining(c))

    kinds = {
        "upper and lower case": str.casefold,
        "accents": unaccented,
        "spaces and punctuation": lambda label: re.sub(r"[\W_]+", "", label),
        "a prefix": lambda label: PREFIX.sub("", label),
    }
    for name, change in kinds.items():
        if same(change):
            return name
    return "case, accents, spaces or a prefix"
