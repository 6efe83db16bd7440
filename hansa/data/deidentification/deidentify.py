"""Replace the personal details that a finder finds by surrogates or tags, and move annotations along."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hansa.core.errors import DataError, HansaError, UserError, did_you_mean, place
from hansa.data.deidentification.finders import Deidentifier, load
from hansa.data.deidentification.rules import Finding, Rules
from hansa.data.deidentification.surrogates import Surrogates, patient

__all__ = ["Deidentifier", "Finding", "Rules", "Style", "deidentify", "load", "replace", "rewrite"]

Style = Literal["surrogates", "tags"]
Row = dict[str, Any]
Edit = tuple[int, int, str]  # start, end, replacement


def edits(
    text: str, findings: list[Finding], language: str, key: str, style: str, subject: str | None = None
) -> list[Edit]:
    """The replacement of each finding, in the order of the text; overlapping findings are merged.

    ``subject`` identifies the patient, whose dates all move by the same time; by default it is taken from the text.
    """
    check_style(style)
    found = _disjoint(text, findings)
    if style == "tags":
        return [(f.start, f.end, f"[{f.type}]") for f in found]
    made = Surrogates(language, key, patient(text, found, language) if subject is None else subject)
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
    return rewrite_together([row], field, language, finder, key, style)[0]


def rewrite_together(
    rows: Sequence[Row], field: str, language: str, finder: Deidentifier, key: str, style: str
) -> list[tuple[Row, list[Finding]]]:
    """As `rewrite`, for rows that are one document, or documents of one patient: they are searched as one text.

    A name found in one row is replaced in all of them, and their dates move by the same time.
    """
    whole = "\n".join(row[field] for row in rows)
    found = finder.find(whole, language)
    subject = patient(whole, _disjoint(whole, found), language)
    made, start = [], 0
    for row in rows:
        end = start + len(row[field])
        here = [
            Finding(max(f.start, start) - start, min(f.end, end) - start, f.type)
            for f in found
            if f.start < end and f.end > start
        ]
        made.append((_rewritten(row, field, edits(row[field], here, language, key, style, subject)), here))
        start = end + 1
    return made


def _rewritten(row: Row, field: str, changes: list[Edit]) -> Row:
    text = row[field]
    new_text = _apply(text, changes)
    moved = _Offsets(text, new_text, changes)
    new_row = {**moved.mapping(row), field: new_text}
    for name in SPAN_LISTS:
        if isinstance(row.get(name), list):
            new_row[name] = [moved.span(item) for item in row[name]]
    return new_row


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
