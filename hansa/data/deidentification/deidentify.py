"""Find personal details in a text, replace them by surrogates or tags, and score a finder against annotated texts.

The built-in finder is `Rules`. `load` takes another one by the name of its class, for example Presidio's.
"""

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from hansa.core.errors import DataError, HansaError, UserError, did_you_mean, place
from hansa.data.deidentification.rules import Finding, Rules
from hansa.data.deidentification.surrogates import Surrogates, patient

__all__ = ["Deidentifier", "Finding", "Rules", "Style", "deidentify", "load", "measure", "replace", "rewrite"]

Style = Literal["surrogates", "tags"]
Row = dict[str, Any]
# Presidio's entity types → ours. Other types keep their name, and each of their letters and digits is replaced.
KINDS = {
    "PERSON": "NAME",
    "DATE_TIME": "DATE",
    "PHONE_NUMBER": "PHONE",
    "EMAIL_ADDRESS": "EMAIL",
    "LOCATION": "ADDRESS",
    "IBAN_CODE": "ID",
    "US_SSN": "ID",
    "UK_NHS": "ID",
    "MEDICAL_LICENSE": "ID",
}


@runtime_checkable
class Deidentifier(Protocol):
    """A finder of personal details."""

    def find(self, text: str, language: str) -> list[Finding]:
        """The personal details in a text of the given language."""


@dataclass(frozen=True)
class PresidioFinder:
    """A finder that calls an engine with Presidio's interface, ``analyze(text=, language=)``."""

    engine: Any

    def find(self, text: str, language: str) -> list[Finding]:
        """See `Deidentifier.find`."""
        results = self.engine.analyze(text=text, language=language)
        return [Finding(r.start, r.end, KINDS.get(r.entity_type, r.entity_type)) for r in results]


@dataclass(frozen=True)
class CheckedFinder:
    """A finder from outside the package; its results are validated."""

    spec: str
    finder: Any

    def find(self, text: str, language: str) -> list[Finding]:
        """See `Deidentifier.find`; raises `UserError` if the finder fails or returns something else."""
        try:
            given = self.finder.find(text, language)
        except Exception as error:  # its message may quote the text
            raise UserError(
                f"de-identifier '{self.spec}' failed on a text in language '{language}': {type(error).__name__} "
                f"({place(error)})"
            ) from None
        try:
            found = [Finding(*one) if isinstance(one, tuple) else one for one in given]
            inside = all(isinstance(f, Finding) and 0 <= f.start <= f.end <= len(text) for f in found)
        except TypeError:
            inside = False
        if not inside:
            raise UserError(
                f"de-identifier '{self.spec}': find(text, language) must return a list of (start, end, type) with "
                "offsets inside the text; correct the class"
            )
        return found


def load(spec: str) -> Deidentifier:
    """The finder that ``spec`` names: ``rules``, ``package.module:Class`` or ``path/to/file.py:Class``.

    The class is instantiated without arguments. Raises `UserError` if it cannot be loaded or has no suitable method.
    """
    if spec == "rules":
        return Rules()
    module, colon, name = spec.rpartition(":")
    if not colon or not module or not name:
        raise UserError(
            f"de-identifier '{spec}' is neither 'rules' nor 'module:Class'; {did_you_mean(spec, ['rules'])}"
        )
    made = _instance(spec, module, name)
    if hasattr(made, "find"):
        return CheckedFinder(spec, made)
    if hasattr(made, "analyze"):
        return CheckedFinder(spec, PresidioFinder(made))
    raise UserError(
        f"de-identifier '{spec}' has neither find(text, language) nor analyze(text=, language=); add one of them"
    )


def _instance(spec: str, place: str, name: str) -> Any:
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, name)()
    except ImportError as error:
        hint = (
            "; pip install presidio-analyzer" if place.startswith("presidio") else "; install it, or correct the name"
        )
        raise UserError(f"de-identifier '{spec}' cannot be imported ({error}){hint}") from None
    except AttributeError:
        raise UserError(
            f"de-identifier '{spec}': there is no '{name}' in {place}; name a class of that module"
        ) from None
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"de-identifier '{spec}' cannot be instantiated without arguments ({first}); correct the class"
        ) from None


def _file_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Edit = tuple[int, int, str]  # start, end, replacement


def edits(text: str, findings: list[Finding], language: str, key: str, style: str) -> list[Edit]:
    """The replacement of each finding, in the order of the text; overlapping findings are merged."""
    check_style(style)
    found = _disjoint(text, findings)
    if style == "tags":
        return [(f.start, f.end, f"[{f.type}]") for f in found]
    made = Surrogates(language, key, patient(text, found, language))
    for f in found:
        if f.type == "NAME":
            made.learn(text[f.start : f.end])
    return [(f.start, f.end, made.of(text[f.start : f.end], f.type)) for f in found]


def check_style(style: str) -> None:
    """Raise `UserError` if the style of replacement is not known."""
    if style not in get_args(Style):
        raise UserError(f"style '{style}' is not known; {did_you_mean(style, get_args(Style))}")


def _disjoint(text: str, findings: list[Finding]) -> list[Finding]:
    """Merge overlapping findings into one that covers them all and has the type of the longest."""
    kept: list[Finding] = []
    widest = 0
    for f in sorted(findings, key=lambda f: (f.start, -f.end)):
        if not 0 <= f.start < f.end <= len(text):
            raise DataError(
                f"a finding of type {f.type} spans {f.start}–{f.end} in a text of {len(text)} characters; correct the "
                "finder"
            )
        if kept and f.start < kept[-1].end:
            last = kept.pop()
            kind = f.type if f.end - f.start > widest else last.type
            widest = max(widest, f.end - f.start)
            kept.append(Finding(last.start, max(last.end, f.end), kind))
        else:
            widest = f.end - f.start
            kept.append(f)
    return kept


def replace(text: str, findings: list[Finding], language: str, key: str, style: Style = "surrogates") -> str:
    """The text with the findings replaced."""
    return _apply(text, edits(text, findings, language, key, style))


def deidentify(
    text: str, language: str, deidentifier: Deidentifier, key: str, style: str = "surrogates"
) -> tuple[str, list[Finding]]:
    """The text with its personal details replaced, and what was found."""
    findings = deidentifier.find(text, language)
    return _apply(text, edits(text, findings, language, key, style)), findings


def _apply(text: str, changes: list[Edit]) -> str:
    pieces, position = [], 0
    for start, end, new in changes:
        pieces += [text[position:start], new]
        position = end
    return "".join([*pieces, text[position:]])


PAIRS = (("start", "end"), ("h_start", "h_end"), ("t_start", "t_end"))
SPAN_LISTS = ("entities", "personal", "spans")


def rewrite(
    row: Row, field: str, language: str, finder: Deidentifier, key: str, style: str
) -> tuple[Row, list[Finding]]:
    """The row with personal details in ``field`` replaced and all offsets into the text adjusted; and the findings."""
    text = row[field]
    findings = finder.find(text, language)
    changes = edits(text, findings, language, key, style)
    new_text = _apply(text, changes)
    moved = _Offsets(text, new_text, changes)
    new_row = {**moved.mapping(row), field: new_text}
    for name in SPAN_LISTS:
        if isinstance(row.get(name), list):
            new_row[name] = [moved.span(item) for item in row[name]]
    return new_row, findings


def failure(error: Exception) -> str:
    """Why a row cannot be de-identified. The message of an unexpected error may quote the text, so it is left out."""
    return (
        str(error)
        if isinstance(error, HansaError)
        else f"de-identification failed: {type(error).__name__} ({place(error)})"
    )


@dataclass(frozen=True)
class _Offsets:
    """Maps offsets of the original text to offsets of the replaced text."""

    text: str
    new_text: str
    changes: list[Edit]

    def offset(self, at: int, is_end: bool) -> int:
        """The new offset; inside a replaced span it is the start of the span, or its end if ``is_end``."""
        shift = 0
        for start, end, new in self.changes:
            if at < start or (at == start and not (is_end and start == end)):
                break
            if at < end:
                return start + shift + (len(new) if is_end else 0)
            shift += len(new) - (end - start)
        return at + shift

    def pair(self, start: int, end: int) -> tuple[int, int]:
        """The new start and end of a span."""
        if not 0 <= start <= end <= len(self.text):
            raise DataError(f"a span {start}–{end} lies outside the text of {len(self.text)} characters")
        return self.offset(start, False), self.offset(end, True)

    def mapping(self, item: Row) -> Row:
        """A dictionary with its start and end fields adjusted."""
        made = dict(item)
        for first, last in PAIRS:
            start, end = item.get(first), item.get(last)
            if isinstance(start, int) and isinstance(end, int):
                made[first], made[last] = self.pair(start, end)
                self._copies(item, made, start, end)
        return made

    def span(self, item: Any) -> Any:
        """An annotation with its offsets adjusted: {"span": [s, e]}, {"start": s, "end": e} or [s, e, …]."""
        if isinstance(item, dict):
            made = self.mapping(item)
            if isinstance(item.get("span"), list) and len(item["span"]) == 2:
                made["span"] = list(self.pair(*item["span"]))
                self._copies(item, made, *item["span"])
            return made
        if isinstance(item, list) and len(item) > 1 and all(isinstance(i, int) for i in item[:2]):
            return [*self.pair(*item[:2]), *item[2:]]
        return item

    def _copies(self, item: Row, made: Row, start: int, end: int) -> None:
        """Replace fields that repeat the annotated words: an unchanged copy would reveal them."""
        new_start, new_end = self.pair(start, end)
        for key, value in item.items():
            if isinstance(value, str) and start < end and value == self.text[start:end]:
                made[key] = self.new_text[new_start:new_end]


def measure(rows: Iterable[Row], deidentifier: Deidentifier, language: str, text: str = "text") -> dict[str, Any]:
    """Precision, recall and F1 against gold rows {"text", "personal": [{"span": [s, e], "type"}]}, by type and overall.

    - ``character_recall`` (the headline): the fraction of personal characters that was covered;
      ``character_precision``: the fraction of covered characters that is personal.
    - ``recall``: an entity counts as found if all its characters are covered, by findings of any type;
      ``precision``: a finding counts as correct if it overlaps an entity of any type.
    - ``exact_…``: span and type both agree with the gold annotation.
    By type, recall refers to the gold types and precision to the types of the findings.
    """
    counts: dict[str, Counts] = {}
    for row in rows:
        gold = [Finding(item["span"][0], item["span"][1], item["type"]) for item in row["personal"]]
        _count(counts, row[text], gold, deidentifier.find(row[text], language))
    overall = Counts()
    for one in counts.values():
        overall = overall + one
    return {"overall": overall.scores(), "types": {kind: counts[kind].scores() for kind in sorted(counts)}}


@dataclass(frozen=True)
class Counts:
    """Counts of entities, findings and characters, from which precision and recall are computed."""

    gold: int = 0
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

    def scores(self) -> dict[str, float | int | None]:
        """Precision, recall and F1 by character, by entity and by exact match."""
        made: dict[str, float | int | None] = {"entities": self.gold, "findings": self.found}
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


def _count(counts: dict[str, Counts], text: str, gold: list[Finding], found: list[Finding]) -> None:
    is_gold, is_found = _mask(text, gold), _mask(text, found)
    gold_set = set(gold)
    for g in gold:
        covered = is_found.count(1, g.start, g.end)
        one = Counts(gold=1, covered=int(covered == g.end - g.start))
        characters = Counts(gold_characters=g.end - g.start, covered_characters=covered)
        counts[g.type] = counts.get(g.type, Counts()) + one + characters
    for f in found:
        right = is_gold.count(1, f.start, f.end)
        one = Counts(found=1, right=int(right > 0), exact=int(f in gold_set))
        characters = Counts(found_characters=f.end - f.start, right_characters=right)
        counts[f.type] = counts.get(f.type, Counts()) + one + characters


def _mask(text: str, spans: list[Finding]) -> bytearray:
    mask = bytearray(len(text))
    for span in spans:
        mask[span.start : span.end] = b"\1" * (span.end - span.start)
    return mask
