"""Annotation as annotators keep it: CoNLL columns, and BRAT's standoff files beside the texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

Parsed = Iterator[tuple[int, dict[str, Any] | None, str]]  # line number, row (or None), reason
Placed = Iterator[tuple[str, dict[str, Any] | None, str]]


def columns(stream: TextIO) -> Parsed:
    """CoNLL: a token (first column) and its tag (last) per line, a blank line after each sentence."""
    tokens: list[str] = []
    tags: list[str] = []
    reason, number = "", 0
    for number, line in enumerate(stream, 1):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            yield from _sentence(number - 1, tokens, tags, reason)
            tokens, tags, reason = [], [], ""
        elif len(cells) == 1:
            reason = reason or f"line {number} has one column, a token without a tag"
        else:
            tokens.append(cells[0])
            tags.append(cells[-1])
    yield from _sentence(number, tokens, tags, reason)


def _sentence(number: int, tokens: list[str], tags: list[str], reason: str) -> Parsed:
    if reason:
        yield number, None, reason
    elif tokens:
        yield number, {"tokens": tokens, "tags": tags}, ""


def brat(file: Path) -> Placed:
    """A BRAT document: FILE.txt and FILE.ann with T (entities), A/M (attributes) and R (relations) lines.

    An entity in several pieces counts from its first to its last; the first attribute of an entity is its assertion.
    A document with a line that cannot be read is left out whole: without that line it would say something else.
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
            _note(line, text, found, relations)
        except (ValueError, KeyError, IndexError):
            yield f"{annotation}:{number}", None, "not a BRAT annotation of this text, so its document is left out"
            return
    order = {name: i for i, name in enumerate(found)}
    joined = [{"head": order.get(h), "tail": order.get(t), "type": kind} for h, t, kind in relations]
    yield str(file), {"text": text, "entities": list(found.values()), "relations": joined}, ""


def _note(line: str, text: str, found: dict[str, dict[str, Any]], relations: list[tuple[str, str, str]]) -> None:
    name, _, rest = line.partition("\t")
    if name.startswith("T"):
        place, _, covered = rest.partition("\t")
        kind, _, places = place.partition(" ")
        pieces = [[int(x) for x in piece.split()] for piece in places.split(";")]
        if covered.split() != " ".join(text[start:end] for start, end in pieces).split():
            raise ValueError("it does not cover what it says")
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
        raise ValueError("no kind of annotation begins so")
