"""Annotated text as annotation tools store it: CoNLL columns, and BRAT's standoff files beside the texts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hansa.data.formats.annotated import TAG
from hansa.data.rows import ParsedRow, PlacedRow
from hansa.data.source import Source


def conll(stream: Iterable[str], source: Source) -> Iterator[ParsedRow]:
    """CoNLL: a token (first column) and its tag (last column) per line, a blank line after each sentence.

    Comments (lines that begin with a number sign, before the first token of a sentence) are skipped.
    """
    tokens: list[str] = []
    tags: list[str] = []
    reason, number = "", 0
    for number, line in enumerate(stream, 1):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            yield from _sentence(number - 1, tokens, tags, reason)
            tokens, tags, reason = [], [], ""
        elif not tokens and line.startswith("#") and not TAG.fullmatch(cells[-1]):
            continue
        elif len(cells) == 1:
            reason = reason or f"line {number} has one column, a token without a tag"
        else:
            tokens.append(cells[0])
            tags.append(cells[-1])
    yield from _sentence(number, tokens, tags, reason)


def looks_tagged(lines: Iterable[str]) -> bool:
    """Whether lines are CoNLL columns: at least two tokens, each with a tag in the last column."""
    rows = [line.split() for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    return len(rows) > 1 and all(len(cells) > 1 and TAG.fullmatch(cells[-1]) for cells in rows)


def _sentence(number: int, tokens: list[str], tags: list[str], reason: str) -> Iterator[ParsedRow]:
    if reason:
        yield number, None, reason
    elif tokens:
        yield number, {"tokens": tokens, "tags": tags}, ""


def brat(file: Path) -> Iterator[PlacedRow]:
    """A BRAT document: FILE.txt and FILE.ann with T (entities), A/M (attributes) and R (relations) lines.

    A discontinuous entity spans from its first to its last fragment; the first attribute of an entity is its assertion.
    A document with an unreadable annotation line is left out entirely, because it would be annotated incompletely.
    """
    annotation = file.with_suffix(".ann")
    try:
        text = file.read_bytes().decode("utf-8")
        lines = annotation.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError:
        yield str(file), None, "not valid UTF-8"
        return
    found: dict[str, dict[str, Any]] = {}
    relations: list[tuple[str, str, str]] = []
    for number, line in enumerate(lines, 1):
        try:
            _parse(line, text, found, relations)
        except (ValueError, KeyError, IndexError):
            yield f"{annotation}:{number}", None, "not a BRAT annotation of this text, so its document is left out"
            return
    order = {name: i for i, name in enumerate(found)}
    joined = [{"head": order.get(h), "tail": order.get(t), "type": kind} for h, t, kind in relations]
    yield str(file), {"text": text, "entities": list(found.values()), "relations": joined}, ""


def _parse(line: str, text: str, found: dict[str, dict[str, Any]], relations: list[tuple[str, str, str]]) -> None:
    """Add the entity, attribute or relation of one annotation line."""
    name, _, rest = line.partition("\t")
    if name.startswith("T"):
        place, _, covered = rest.partition("\t")
        kind, _, places = place.partition(" ")
        pieces = [[int(x) for x in piece.split()] for piece in places.split(";")]
        if covered.split() != " ".join(text[start:end] for start, end in pieces).split():
            raise ValueError("the quoted text differs from the text at its offsets")
        offsets = [x for piece in pieces for x in piece]
        found[name] = {"span": [min(offsets), max(offsets)], "type": kind}
    elif name.startswith(("A", "M")):
        kind, target, *value = rest.split()
        if target.startswith("T"):  # events have attributes too
            found[target].setdefault("assertion", value[0] if value else kind)
    elif name.startswith("R"):
        kind, *arguments = rest.split()
        head, tail = (argument.split(":")[1] for argument in arguments[:2])
        relations.append((head, tail, kind))
    elif line.strip() and not name.startswith(("E", "N", "#", "*")):  # events, normalisations, notes, equivalences
        raise ValueError("unknown kind of annotation")
