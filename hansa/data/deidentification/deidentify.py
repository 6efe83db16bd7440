"""De-identification at the silo: find personal details, put surrogates or tags in their place, measure what was found.

The built-in `Rules` can be exchanged for another finder, for example Presidio's, by naming its class (`load`).
"""

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from hansa.core.errors import DataError, UserError, did_you_mean
from hansa.data.deidentification.rules import Finding, Rules
from hansa.data.deidentification.surrogates import Surrogates, patient

__all__ = ["Deidentifier", "Finding", "Rules", "Style", "deidentify", "load", "measure", "replace", "rewrite"]

Style = Literal["surrogates", "tags"]
Row = dict[str, Any]
# The names Presidio gives to what we have names for; all others keep theirs and are replaced letter by letter.
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
    def find(self, text: str, language: str) -> list[Finding]: ...


@dataclass(frozen=True)
class Analyzer:
    """Anything with Presidio's ``analyze(text=, language=)``, as a de-identifier."""

    engine: Any

    def find(self, text: str, language: str) -> list[Finding]:
        results = self.engine.analyze(text=text, language=language)
        return [Finding(r.start, r.end, KINDS.get(r.entity_type, r.entity_type)) for r in results]


@dataclass(frozen=True)
class Checked:
    """Somebody else's finder: what it returns is looked at before anything relies on it."""

    spec: str
    finder: Any

    def find(self, text: str, language: str) -> list[Finding]:
        try:
            given = self.finder.find(text, language)
        except Exception as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"de-identifier '{self.spec}' failed on a text in language '{language}': {first}") from None
        try:
            found = [Finding(*one) if isinstance(one, tuple) else one for one in given]
            inside = all(isinstance(f, Finding) and 0 <= f.start <= f.end <= len(text) for f in found)
        except TypeError:
            inside = False
        if not inside:
            raise UserError(
                f"de-identifier '{self.spec}': find(text, language) must return a list of (start, end, type), with "
                "places inside the text; mend it"
            )
        return found


def load(spec: str) -> Deidentifier:
    """``rules``, ``package.module:Class`` or ``path/to/file.py:Class``; the class is instantiated without arguments."""
    if spec == "rules":
        return Rules()
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise UserError(
            f"de-identifier '{spec}' is neither 'rules' nor 'module:Class'; {did_you_mean(spec, ['rules'])}"
        )
    made = _instance(spec, place, name)
    if hasattr(made, "find"):
        return Checked(spec, made)
    if hasattr(made, "analyze"):
        return Checked(spec, Analyzer(made))
    raise UserError(
        f"de-identifier '{spec}' has neither find(text, language) nor analyze(text=, language=); give it one"
    )


def _instance(spec: str, place: str, name: str) -> Any:
    try:
        module = _file_module(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        return getattr(module, name)()
    except ImportError as error:
        hint = "; pip install presidio-analyzer" if place.startswith("presidio") else "; install it, or mend the name"
        raise UserError(f"de-identifier '{spec}' cannot be imported ({error}){hint}") from None
    except AttributeError:
        raise UserError(
            f"de-identifier '{spec}': there is no '{name}' in {place}; name a class that is there"
        ) from None
    except Exception as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"de-identifier '{spec}' cannot be made without arguments ({first}); mend its class") from None


def _file_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ImportError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Edit = tuple[int, int, str]  # start, end, what stands there now


def edits(text: str, findings: list[Finding], language: str, key: str, style: str) -> list[Edit]:
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
    if style not in get_args(Style):
        raise UserError(f"style '{style}' is not known; {did_you_mean(style, get_args(Style))}")


def _disjoint(text: str, findings: list[Finding]) -> list[Finding]:
    """Overlapping findings become one that covers them all, of the type of the longest."""
    kept: list[Finding] = []
    widest = 0
    for f in sorted(findings, key=lambda f: (f.start, -f.end)):
        if not 0 <= f.start < f.end <= len(text):
            raise DataError(
                f"a finding of type {f.type} spans {f.start}–{f.end} in a text of {len(text)}; mend the finder"
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
    return _apply(text, edits(text, findings, language, key, style))


def deidentify(
    text: str, language: str, deidentifier: Deidentifier, key: str, style: str = "surrogates"
) -> tuple[str, list[Finding]]:
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
    """The row with its text replaced, and every offset into the text moved along with it."""
    text = row[field]
    findings = finder.find(text, language)
    changes = edits(text, findings, language, key, style)
    new_text = _apply(text, changes)
    moved = _Moved(text, new_text, changes)
    new_row = {**moved.mapping(row), field: new_text}
    for name in SPAN_LISTS:
        if isinstance(row.get(name), list):
            new_row[name] = [moved.span(item) for item in row[name]]
    return new_row, findings


@dataclass(frozen=True)
class _Moved:
    """Offsets of the old text in the new one."""

    text: str
    new_text: str
    changes: list[Edit]

    def offset(self, at: int, is_end: bool) -> int:
        """An offset inside a replaced span moves to its beginning, or, as the end of something, to its end."""
        shift = 0
        for start, end, new in self.changes:
            if at < start or (at == start and not (is_end and start == end)):
                break
            if at < end:
                return start + shift + (len(new) if is_end else 0)
            shift += len(new) - (end - start)
        return at + shift

    def pair(self, start: int, end: int) -> tuple[int, int]:
        if not 0 <= start <= end <= len(self.text):
            raise DataError(f"a span {start}–{end} lies outside the text of {len(self.text)} characters")
        return self.offset(start, False), self.offset(end, True)

    def mapping(self, item: Row) -> Row:
        made = dict(item)
        for first, last in PAIRS:
            start, end = item.get(first), item.get(last)
            if isinstance(start, int) and isinstance(end, int):
                made[first], made[last] = self.pair(start, end)
                self._copies(item, made, start, end)
        return made

    def span(self, item: Any) -> Any:
        """{"span": [s, e]}, {"start": s, "end": e} or [s, e, …]."""
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
        """An annotation often carries a copy of the words it spans; left alone it would give them away."""
        new_start, new_end = self.pair(start, end)
        for key, value in item.items():
            if isinstance(value, str) and start < end and value == self.text[start:end]:
                made[key] = self.new_text[new_start:new_end]


def measure(rows: Iterable[Row], deidentifier: Deidentifier, language: str, text: str = "text") -> dict[str, Any]:
    """Precision, recall and F1 against gold rows {"text", "personal": [{"span": [s, e], "type"}]}, by type and overall.

    - ``character_recall`` (the headline): the share of personal characters that was covered;
      ``character_precision``: the share of covered characters that is personal.
    - ``recall``: an entity counts as found only when every one of its characters is covered, by findings of whatever
      type; ``precision``: a finding counts as right when it overlaps an entity of whatever type.
    - ``exact_…``: span and type are both as in the gold.
    By type, recall speaks of the gold's types and precision of the findings'.
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
        made: dict[str, float | int | None] = {"entities": self.gold, "findings": self.found}
        made |= _three(
            "character_", self.right_characters, self.found_characters, self.covered_characters, self.gold_characters
        )
        made |= _three("", self.right, self.found, self.covered, self.gold)
        return made | _three("exact_", self.exact, self.found, self.exact, self.gold)


def _three(name: str, right: int, found: int, covered: int, gold: int) -> dict[str, float | None]:
    """None where nothing was found, or there was nothing to find: 0/0 is not a score."""
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
