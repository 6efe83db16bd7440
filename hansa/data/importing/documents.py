"""Read documents from files: text, HTML, articles in XML, JSON, tables, clinical exchange formats, office formats, zip.

What cannot be read is counted with its place and skipped.
"""

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from hansa.data.importing.clinical import cda_text, fhir_resources, fhir_text, hl7_messages
from hansa.data.importing.files import LOOK, Meter, Stream, decoded, kind_of, opened, refusal, size_of
from hansa.data.importing.markup import html_text, needed, xml_articles
from hansa.data.importing.office import docx_text, email_text, rtf_text, table_texts, zip_members
from hansa.data.importing.tally import Piece, Settings, Tally

LARGEST = 1 << 26  # maximum size of a record (a web page, a line of JSON) that is held in memory, in bytes
LONGEST_PIECE = 1 << 18
Line = tuple[int, str]


def documents(path: Path, settings: Settings, meter: Meter, tally: Tally) -> Iterator[Piece]:
    """All documents of one file."""
    if not path.is_file():
        tally.note("files", "a link to a folder, or not a readable file", str(path))
        return
    size = size_of(path)
    try:
        tally.counts["files read"] += 1
        with opened(path, meter) as stream:
            yield from _documents(stream, str(path), settings, tally)
    except (EOFError, OSError, zlib.error) as error:
        tally.note("files", "ends early, is damaged or cannot be opened", str(path), detail=str(error))
    finally:
        meter.finish(size)


def _documents(stream: Stream, place: str, settings: Settings, tally: Tally, inside: bool = False) -> Iterator[Piece]:
    """All documents of a stream; ``inside``: it is a member of a zip file."""
    head = stream.peek(LOOK)
    kind = kind_of(place, head)
    if not head:
        tally.note("files", "the file is empty", place)
    elif not kind:
        tally.note("files", refusal(place, head), place)
    elif kind == "zip" and inside:
        tally.note("files", "a zip file in a zip file (unpack it first)", place)
    elif kind == "zip":
        for name, member in zip_members(stream, place, tally):
            try:
                yield from _documents(member, name, settings, tally, inside=True)
            except (EOFError, zlib.error, BadZipFile) as error:
                tally.note("files", "ends early, is damaged or cannot be opened", name, detail=type(error).__name__)
    else:
        for piece in _read(stream, place, kind if settings.kind == "auto" else settings.kind, settings, tally):
            yield from _parts(piece)


def _parts(piece: Piece) -> Iterator[Piece]:
    """Split a very long document into parts, preferably at line or sentence ends."""
    text, start = piece.text, 0
    while len(text) - start > 2 * LONGEST_PIECE:
        middle, end = start + LONGEST_PIECE // 2, start + LONGEST_PIECE
        cut = max(text.rfind("\n", middle, end), text.rfind(". ", middle, end)) + 1 or end
        yield piece._replace(text=text[start:cut], first=piece.first and not start)
        start = cut
    yield piece._replace(text=text[start:], first=piece.first and not start)


BINARY = {"docx": docx_text, "rtf": rtf_text, "email": email_text}


def _read(stream: Stream, place: str, kind: str, settings: Settings, tally: Tally) -> Iterator[Piece]:
    language = settings.language
    if kind in BINARY or kind == "cda":
        data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            tally.note("records", f"longer than {LARGEST >> 20} MB", place)
            return
        try:
            yield Piece(place, cda_text(data, place, tally) if kind == "cda" else BINARY[kind](data))
        except ValueError as error:
            tally.note("files", str(error), place)
    elif kind == "hl7":
        for number, text in enumerate(hl7_messages(_whole(stream, place, language, tally)), 1):
            yield Piece(f"{place}#{number}", text)
    elif kind == "csv":
        plain = (line + "\n" for _, line in _lines(decoded(stream, language, place, tally)))
        for number, text in table_texts(plain, settings.field, place, tally):
            yield Piece(f"{place}:{number}", text)
    elif kind == "xml":
        for article, text in xml_articles(stream, place, tally):
            yield Piece(article, text)
    elif kind == "html":
        if source := _whole(stream, place, language, tally):
            yield Piece(place, html_text(source))
    elif kind == "json":
        yield from _json(stream, place, settings, tally)
    elif kind == "wiki":
        yield from _pieces(_wiki(_lines(decoded(stream, language, place, tally)), place), "text")
    elif settings.documents == "files":
        for number, (_, text) in enumerate(decoded(stream, language, place, tally)):
            yield Piece(place, text, kind, number == 0)
    else:
        lines = _lines(decoded(stream, language, place, tally))
        yield from _pieces(_separated(lines, place, settings.documents == "lines"), kind)


def _whole(stream: Stream, place: str, language: str, tally: Tally) -> str:
    parts, size = [], 0
    for _, text in decoded(stream, language, place, tally):
        parts.append(text)
        size += len(text)
        if size > LARGEST:
            tally.note("records", f"longer than {LARGEST >> 20} MB", place)
            return ""
    return "".join(parts)


def _lines(blocks: Iterator[Line]) -> Iterator[Line]:
    """Numbered lines without line ends; a line longer than a block comes in several parts with the same number."""
    for first, block in blocks:
        parts = block.split("\n")
        if parts[-1] == "":
            parts.pop()
        yield from enumerate(parts, first)


def _separated(lines: Iterator[Line], place: str, each_line: bool) -> Iterator[tuple[str, str]]:
    """(place of the document, line): a document is one line, or all lines up to a blank line."""
    start = 0
    for number, line in lines:
        if not line.strip():
            start = 0
        else:
            start = number if each_line or not start else start
            yield f"{place}:{start}", line


def _wiki(lines: Iterator[Line], place: str) -> Iterator[tuple[str, str]]:
    """Lines of wikiextractor's <doc …> … </doc>; each is a paragraph. The title's repetition is skipped."""
    inside, title, empty = "", "", False
    for number, line in lines:
        if line.startswith("<doc id="):
            named = re.search(r'title="([^"]*)"', line)
            inside, title, empty = f"{place}:{number}", named.group(1) if named else "", True
        elif line.startswith("</doc>"):
            if empty:  # it is counted as an empty document
                yield inside, ""
            inside, empty = "", False
        elif inside and line.strip() != title:
            empty = False
            yield inside, line + "\n"


def _pieces(lines: Iterator[tuple[str, str]], kind: str) -> Iterator[Piece]:
    """Join consecutive lines with the same place to a document; a very long one is yielded in parts."""
    held: list[str] = []
    current, size, first = "", 0, True
    for place, line in lines:
        if place != current or size > LONGEST_PIECE:
            if held:
                yield Piece(current, "\n".join(held), kind, first)
            first, current, held, size = place != current, place, [], 0
        held.append(line)
        size += len(line)
    if held:
        yield Piece(current, "\n".join(held), kind, first)


def _json(stream: Stream, place: str, settings: Settings, tally: Tally) -> Iterator[Piece]:
    """JSON Lines if the first line is a JSON object; a list or a FHIR bundle, streamed; otherwise one JSON value."""
    head = stream.peek(LOOK)
    lists = {b"[": "item", b"{": "entry.item.resource"}
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    bundle = b'"Bundle"' in head and b'"resourceType"' in head
    if start == b"[" or (bundle and not _lines_of_json(head)):
        yield from _streamed(stream, lists[start], place, settings, tally)
    elif _is_value(head):
        for where, line in _records(stream, place, settings.language, tally):
            try:
                yield from _rows(json.loads(line), where, settings.field, tally)
            except (json.JSONDecodeError, RecursionError) as error:
                tally.note("records", "not valid JSON", where, detail=getattr(error, "msg", "too deeply nested"))
    elif source := _whole(stream, place, settings.language, tally):
        try:
            yield from _rows(json.loads(source), place, settings.field, tally)
        except (json.JSONDecodeError, RecursionError) as error:
            tally.note("records", "not valid JSON", place, detail=getattr(error, "msg", "too deeply nested"))


def _lines_of_json(head: bytes) -> bool:
    """Whether a head contains a complete first line that is a JSON object, and a second line."""
    line, end, rest = head.partition(b"\n")
    try:
        return bool(end and rest.strip()) and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _streamed(stream: Stream, prefix: str, place: str, settings: Settings, tally: Tally) -> Iterator[Piece]:
    """The items of a JSON list of any size; one item is in memory at a time."""
    ijson = needed("ijson")
    if stream.peek(3)[:3] == b"\xef\xbb\xbf":
        stream.read(3)
    number = 0
    try:
        for number, one in enumerate(ijson.items(stream, prefix, use_float=True), 1):
            yield from _rows(one, f"{place}#{number}", settings.field, tally)
    except (ijson.JSONError, UnicodeDecodeError) as error:  # its message may quote the text
        tally.note("records", "not valid JSON (the rest of the list is not read)", f"{place}#{number + 1}",
                   detail=type(error).__name__)  # fmt: skip


def _is_value(head: bytes) -> bool:
    line, _, rest = head.partition(b"\n")
    if not rest and len(line) >= LOOK:  # the line is longer than the head: JSON Lines, unless it begins a list
        return line.lstrip().startswith(b"{")
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return line.rstrip().endswith(b"}") and line.startswith(b"{")


def _records(stream: Stream, place: str, language: str, tally: Tally) -> Iterator[tuple[str, str]]:
    parts: list[str] = []
    number, size = 0, 0
    for number_now, part in _lines(decoded(stream, language, place, tally)):
        if number_now != number:
            if 0 < size <= LARGEST:
                yield f"{place}:{number}", "".join(parts)
            number, parts, size = number_now, [], 0
        size += len(part.strip())
        if size <= LARGEST:
            parts.append(part)
        elif parts:
            parts = []
            tally.note("records", f"longer than {LARGEST >> 20} MB", f"{place}:{number}")
    if 0 < size <= LARGEST:
        yield f"{place}:{number}", "".join(parts)


def _rows(value: Any, place: str, name: str, tally: Tally) -> Iterator[Piece]:
    """The documents of a JSON value: a row with a text, a study, or a (possibly wrapped) list of them."""
    if isinstance(value, dict):
        value = value.get("FullStudiesResponse", value)
        value = value.get("studies", value.get("FullStudies", value)) if name not in value else value
    if isinstance(value, list):
        for number, one in enumerate(value, 1):
            yield from _rows(one, f"{place}#{number}", name, tally)
    elif not isinstance(value, dict):
        tally.note("records", "not a JSON object", place)
    elif isinstance(value.get(name), str):
        yield Piece(place, value[name])
    elif "resourceType" in value:
        for resource in fhir_resources(value):
            if text := fhir_text(resource):
                yield Piece(place, text)
            else:
                tally.note("records", "a FHIR resource without text", place, detail=str(resource["resourceType"])[:40])
    elif (protocol := _protocol(value)) is not None:
        yield Piece(place, "\n\n".join(_study(protocol)))
    else:
        tally.note("records", f"no field '{name}' (name it with --field)", place, detail=", ".join(list(value)[:8]))


def _protocol(study: dict[str, Any]) -> dict[str, Any] | None:
    """The protocol of a ClinicalTrials.gov study, in the current format or the older one with capital letters."""
    for wrapper in ("FullStudy", "Study"):
        study = study[wrapper] if isinstance(study.get(wrapper), dict) else study
    found = study.get("protocolSection", study.get("ProtocolSection"))
    return found if isinstance(found, dict) else None


STUDY = (
    ("identificationModule", "officialTitle"),
    ("identificationModule", "briefTitle"),
    ("descriptionModule", "briefSummary"),
    ("descriptionModule", "detailedDescription"),
    ("eligibilityModule", "eligibilityCriteria"),
)


def _study(protocol: dict[str, Any]) -> Iterator[str]:
    for module, name in STUDY:
        section = protocol.get(module) or protocol.get(module[0].upper() + module[1:])
        if isinstance(section, dict):
            text = section.get(name) or section.get(name[0].upper() + name[1:])
            if isinstance(text, str):
                yield text
