"""Annotated rows: tokens with tags, texts with spans, single mentions, pairs of mentions.

    {"tokens": […], "tags": ["O", "B-Disease", …]}                                    token/tag JSON Lines, CoNLL
    {"text": …, "entities": [{"span": [s, e], "type": …, "assertion": …}], "relations": [{"head", "tail", "type"}]}
    {"text": …, "spans": [{"start": s, "end": e, "label": …}]}                        spans; BRAT gives `entities`
    {"text": …, "start": s, "end": e, "label": …}                                     one mention and its class
    {"text": …, "h_start", "h_end", "t_start", "t_end", "label"}                      two mentions and their relation

Offsets count characters. An invalid row raises `BadRow` with the reason; the caller counts and reports it. Reasons
never quote the row.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

WORD = re.compile(r"\w+|[^\w\s]")
OUTSIDE = "O"
TAG = re.compile(r"O|[BIESLU]-.+")
SAME_IN_BIO = {"E": "I", "L": "I", "S": "B", "U": "B"}
Overlaps = Literal["drop", "outer"]
NO_RELATION = "NONE"
LONGEST_LABEL = 64  # characters; label names leave the silo, so a text must not be taken for a label


class BadRow(Exception):
    """Why a row cannot be used."""


@dataclass(frozen=True)
class Entity:
    """An annotated span of a text."""

    start: int
    end: int
    type: str
    assertion: str = ""


def entities(row: Mapping[str, Any], field: str = "text") -> list[Entity]:
    """The row's annotated spans, in the order given."""
    given = row.get("entities", row.get("spans"))
    if not isinstance(given, list):
        raise BadRow("it has neither 'tokens' and 'tags' nor a list of 'entities' or 'spans'")
    return [_entity(one, str(row[field])) for one in given]


def _entity(given: Any, text: str) -> Entity:
    if not isinstance(given, dict):
        raise BadRow(f"an annotation is {type(given).__name__}, not an object with a span and a type")
    pair = given["span"] if "span" in given else [given.get("start"), given.get("end")]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise BadRow("a span is not a pair of character offsets")
    span = _span(text, *pair)
    kind = given.get("type", given.get("label"))
    if not isinstance(kind, str) or not kind:
        raise BadRow(f"the annotation at {list(span)} has no 'type'")
    return Entity(*span, kind, str(given.get("assertion") or ""))


def _span(text: str, start: Any, end: Any) -> tuple[int, int]:
    if type(start) is not int or type(end) is not int:
        raise BadRow("a span is not a pair of character offsets")
    if not 0 <= start < end <= len(text):
        raise BadRow(f"span [{start}, {end}] does not lie in the text, which has {len(text)} characters")
    return start, end


# ── tokens and tags ───────────────────────────────────────────────────────────────────────────────────────────────


def words_and_tags(
    row: Mapping[str, Any], field: str = "text", overlaps: Overlaps = "drop"
) -> tuple[list[str], list[str]]:
    """The row as words, each with its BIO tag; IOBES and BILOU tags are converted.

    ``overlaps``: what happens to a row whose spans overlap: "drop" raises `BadRow`, "outer" keeps the outermost spans.
    """
    if "tokens" not in row:
        found = entities(row, field)
        return _cut(str(row[field]), outermost(found) if overlaps == "outer" else found)
    words, tags = row["tokens"], row.get("tags")
    if tags is None:
        fields = ", ".join(getattr(row, "names", ()) or map(str, row))
        raise BadRow(f"it has 'tokens' and no 'tags'; name the field with the tags with 'tags:' (fields: {fields})")
    if not isinstance(words, list) or not isinstance(tags, list):
        raise BadRow("its 'tokens' and 'tags' are not two lists")
    if len(words) != len(tags):
        raise BadRow(f"it has {len(words)} tokens but {len(tags)} tags")
    if any(isinstance(tag, int) for tag in tags):
        raise BadRow("its tags are numbers: write the names that they stand for, such as B-TYPE, I-TYPE and O")
    for tag in tags:
        if not isinstance(tag, str) or not TAG.fullmatch(tag):
            raise BadRow("it has a tag that is not BIO (O, B-TYPE, I-TYPE), IOBES or BILOU")
    return list(map(str, words)), [as_bio(tag) for tag in tags]


def as_bio(tag: str) -> str:
    """A tag of IOBES or BILOU as BIO: the end of an entity (E, L) is inside it, a single word (S, U) begins one."""
    return SAME_IN_BIO.get(tag[0], tag[0]) + tag[1:]


def outermost(found: list[Entity]) -> list[Entity]:
    """The entities without those that overlap an earlier or a longer one that begins at the same place."""
    kept: list[Entity] = []
    for entity in sorted(found, key=lambda e: (e.start, -e.end)):
        if not kept or entity.start >= kept[-1].end:
            kept.append(entity)
    return kept


def _cut(text: str, found: list[Entity]) -> tuple[list[str], list[str]]:
    """Words and tags of a text; a word is split where a span begins or ends inside it."""
    ordered = sorted(found, key=lambda e: e.start)
    for one, other in pairwise(ordered):
        if other.start < one.end:
            raise BadRow(f"spans [{one.start}, {one.end}] and [{other.start}, {other.end}] overlap")
    words, tags, position = [], [], 0
    for entity in ordered:
        before = WORD.findall(text, position, entity.start)
        inside = WORD.findall(text, entity.start, entity.end)
        if not inside:
            raise BadRow(f"span [{entity.start}, {entity.end}] contains no word")
        words += [*before, *inside]
        tags += [OUTSIDE] * len(before) + [f"{'I' if i else 'B'}-{entity.type}" for i in range(len(inside))]
        position = entity.end
    rest = WORD.findall(text, position)
    return [*words, *rest], [*tags, *[OUTSIDE] * len(rest)]


def bio_spans(tags: list[str]) -> list[tuple[int, int, str]]:
    """(first, past the last, type) of every entity in a BIO sequence; an I- that continues no entity begins one."""
    found: list[tuple[int, int, str]] = []
    open_type, start = "", 0
    for i, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        if open_type and (prefix != "I" or kind != open_type):
            found.append((start, i, open_type))
            open_type = ""
        if kind and not open_type:
            open_type, start = kind, i
    return found


# ── mentions and pairs ────────────────────────────────────────────────────────────────────────────────────────────


def mentions(row: Mapping[str, Any], label: str, field: str = "text") -> Iterator[tuple[Entity, str]]:
    """The mentions of a row with their class: the row's own mention, or all entities with their assertions."""
    if "start" in row:
        yield Entity(*_span(str(row[field]), row["start"], row.get("end")), ""), label_of(row, label)
        return
    for entity in entities(row, field):
        if not entity.assertion:
            raise BadRow(f"the entity at [{entity.start}, {entity.end}] has no 'assertion'")
        yield entity, entity.assertion


def pairs(
    row: Mapping[str, Any], label: str, field: str = "text", unrelated: str = NO_RELATION
) -> Iterator[tuple[Entity, Entity, str]]:
    """Pairs of mentions with their relation: the row's own pair, or every ordered pair of its entities.

    Pairs without a relation in that direction get the label ``unrelated``.
    """
    if "h_start" in row:
        text = str(row[field])
        head = Entity(*_span(text, row["h_start"], row.get("h_end")), str(row.get("h_type", "")))
        tail = Entity(*_span(text, row.get("t_start"), row.get("t_end")), str(row.get("t_type", "")))
        yield head, tail, label_of(row, label)
        return
    found = entities(row, field)
    related = _relations(row.get("relations") or [], len(found))
    for i, head in enumerate(found):
        for j, tail in enumerate(found):
            if i != j:
                yield head, tail, related.get((i, j), unrelated)


def _relations(given: Any, entities: int) -> dict[tuple[int, int], str]:
    related: dict[tuple[int, int], str] = {}
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise BadRow("its 'relations' are not a list of objects with head, tail and type")
    for one in given:
        head, tail, kind = one.get("head"), one.get("tail"), label_of(one, "type")
        if type(head) is not int or type(tail) is not int or not (0 <= head < entities and 0 <= tail < entities):
            raise BadRow(f"a relation refers to an entity that does not exist: the row has {entities}")
        if head == tail:
            raise BadRow(f"a relation connects entity {head} with itself")
        if related.setdefault((head, tail), kind) != kind:
            raise BadRow(f"entities {head} and {tail} have two different relations")
    return related


def label_of(row: Mapping[str, Any], field: str) -> str:
    """The label in a field; raises `BadRow` if it is missing or longer than a label may be."""
    if row.get(field) is None:
        raise BadRow(f"no field '{field}' (fields: {', '.join(list(row)[:8])})")
    if not isinstance(row[field], str | int):
        raise BadRow(f"field '{field}' contains a {type(row[field]).__name__} instead of a label")
    label = str(row[field])
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise BadRow(f"field '{field}' contains text of {len(label)} characters instead of a label")
    return label


def mark(text: str, head: Entity, tail: Entity | None = None) -> tuple[str, tuple[int, int]]:
    """The text with ``@ head @`` and ``# tail #`` marked, and the start and end of the marked part.

    Zhou & Chen (2022), An Improved Baseline for Sentence-level Relation Extraction: punctuation marks work as well as
    special tokens, and every tokenizer has them.
    """
    marks = [(head.start, "@ "), (head.end, " @")]
    if tail is not None:
        marks += [(tail.start, "# "), (tail.end, " #")]
    first, last = min(m[0] for m in marks), max(m[0] for m in marks)
    for position, sign in sorted(marks, reverse=True):
        text = text[:position] + sign + text[position:]
    return text, (first, last + sum(len(sign) for _, sign in marks))
