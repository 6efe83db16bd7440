"""Score a finder of personal details against annotated texts: how much leaks, by type and by document.

A span leaks if at least one of its letters or digits is left in clear. Names that a label introduces and names in
running text are also counted apart (`labels.is_labelled`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from hansa.data.deidentification.finders import Deidentifier, find_all
from hansa.data.deidentification.kinds import TYPES, kind_of
from hansa.data.deidentification.labels import is_labelled
from hansa.data.deidentification.rules import Finding

Row = dict[str, Any]
LABELLED, RUNNING = "labelled", "in running text"  # names
AT_ONCE = 64  # texts given to the finder at once


def measure(
    rows: Iterable[Row],
    deidentifier: Deidentifier,
    language: str,
    text: str = "text",
    types: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Leak rate, precision, recall and F1 by type and overall, against rows {"text", "personal": [{"span", "type"}]}.

    - ``leak_rate`` (the headline): the fraction of entities of which a letter or digit is left in clear;
      ``documents`` has the fraction of texts with at least one such entity.
    - ``names``: the leak rate and recall of names that are labelled, and of those in running text, as
      `labels.is_labelled` tells them apart; findings belong to neither, so there is no precision.
    - ``character_recall``: the fraction of personal characters that was covered;
      ``character_precision``: the fraction of covered characters that is personal.
    - ``recall``: an entity counts as found if all its characters are covered, by findings of any type;
      ``precision``: a finding counts as correct if it overlaps an entity of any type.
    - ``exact_…``: span and type both agree with the gold annotation.
    ``types`` maps gold types to ours, beside the ones that are known (`kinds.KINDS`). Types that are none of ours,
    or that the finder leaves alone, do not count as leaks; a finding that overlaps one counts as correct. By type,
    recall refers to the gold types and precision to the types of the findings.
    """
    counts: dict[str, Counts] = {}
    names = {LABELLED: Counts(), RUNNING: Counts()}
    kept: frozenset[str] = getattr(deidentifier, "keep", frozenset())
    texts = leaking = 0
    for batch in batched(rows, AT_ONCE):
        for row, found in zip(batch, find_all(deidentifier, [row[text] for row in batch], language), strict=True):
            gold = [
                Finding(item["span"][0], item["span"][1], types.get(item["type"], kind_of(item["type"])))
                for item in row["personal"]
            ]
            texts += 1
            leaking += _count(counts, names, row[text], gold, found, kept, language) > 0
    overall = Counts()
    for one in counts.values():
        overall = overall + one
    documents = {"texts": texts, "leaking": leaking, "leak_rate": leaking / texts if texts else None}
    by_type = {kind: counts[kind].scores() for kind in sorted(counts)}
    apart = {kind: one.leaks() for kind, one in names.items() if one.gold}
    return {"overall": overall.scores(), "types": by_type, "names": apart, "documents": documents}


def batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """The rows in lists of at most ``size``."""
    rest = iter(rows)
    while batch := list(islice(rest, size)):
        yield batch


@dataclass(frozen=True)
class Counts:
    """Counts of entities, findings and characters, from which precision and recall are computed."""

    gold: int = 0
    leaked: int = 0
    covered: int = 0
    found: int = 0
    right: int = 0
    exact: int = 0
    gold_characters: int = 0
    covered_characters: int = 0
    found_characters: int = 0
    right_characters: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def leaks(self) -> dict[str, float | int | None]:
        """What can be said of entities alone, without findings: the leak rate and the two kinds of recall."""
        some = ("entities", "leaked", "leak_rate", "character_recall", "recall")
        scores = self.scores()
        return {name: scores[name] for name in some}

    def scores(self) -> dict[str, float | int | None]:
        """Precision, recall and F1 by character, by entity and by exact match."""
        made: dict[str, float | int | None] = {"entities": self.gold, "findings": self.found, "leaked": self.leaked}
        made["leak_rate"] = self.leaked / self.gold if self.gold else None
        made |= _three(
            "character_", self.right_characters, self.found_characters, self.covered_characters, self.gold_characters
        )
        made |= _three("", self.right, self.found, self.covered, self.gold)
        return made | _three("exact_", self.exact, self.found, self.exact, self.gold)


def _three(name: str, right: int, found: int, covered: int, gold: int) -> dict[str, float | None]:
    """Precision, recall and F1; None where a denominator is 0."""
    precision = right / found if found else None
    recall = covered / gold if gold else None
    f1 = None
    if precision is not None and recall is not None:
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {f"{name}precision": precision, f"{name}recall": recall, f"{name}f1": f1}


def _count(
    counts: dict[str, Counts],
    names: dict[str, Counts],
    text: str,
    gold: list[Finding],
    found: list[Finding],
    kept: frozenset[str],
    language: str,
) -> int:
    """Add the counts of one text by type, and those of its names; return how many of its entities leak."""
    leaks = 0
    is_gold, is_found = _mask(text, gold), _mask(text, found)
    gold_set = set(gold)
    for g in gold:
        if g.type not in TYPES or g.type in kept:
            continue
        covered = is_found.count(1, g.start, g.end)
        leaked = any(text[i].isalnum() and not is_found[i] for i in range(g.start, g.end))
        leaks += leaked
        one = Counts(gold=1, leaked=int(leaked), covered=int(covered == g.end - g.start))
        characters = Counts(gold_characters=g.end - g.start, covered_characters=covered)
        counts[g.type] = counts.get(g.type, Counts()) + one + characters
        if g.type == "NAME":
            kind = LABELLED if is_labelled(text, g.start, language) else RUNNING
            names[kind] = names[kind] + one + characters
    for f in found:
        right = is_gold.count(1, f.start, f.end)
        one = Counts(found=1, right=int(right > 0), exact=int(f in gold_set))
        characters = Counts(found_characters=f.end - f.start, right_characters=right)
        counts[f.type] = counts.get(f.type, Counts()) + one + characters
    return leaks


def _mask(text: str, spans: list[Finding]) -> bytearray:
    mask = bytearray(len(text))
    for span in spans:
        mask[span.start : span.end] = b"\1" * (span.end - span.start)
    return mask
