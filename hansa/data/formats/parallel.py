"""Parallel text: two aligned text files, TMX translation memories, gettext catalogues.

Each row has a source side (the field ``text``) and a target side (``target``), selected by the languages that the
federation file names. Untranslated, fuzzy and obsolete entries of a catalogue are skipped, as gettext does.
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from hansa.core.errors import DataError, UserError
from hansa.data.rows import ParsedRow, PlacedRow
from hansa.data.source import Source

XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def aligned(file: Path, beside: Path, streams: tuple[TextIO, TextIO], source: Source) -> Iterator[PlacedRow]:
    """Line n of one file with line n of the other; raises `DataError` if the files differ in length."""
    number = 0
    for number, (left, right) in enumerate(zip_longest(*streams), 1):
        if left is None or right is None:
            longer = number + sum(1 for _ in streams[0 if right is None else 1])
            counts = (longer, number - 1) if right is None else (number - 1, longer)
            raise DataError(
                f"{file} has {counts[0]:,} lines, but {beside} has {counts[1]:,}: line n of the one must be the "
                "translation of line n of the other; align them again"
            )
        if "\ufffd" in left + right:
            yield f"{file}:{number}", None, "not valid UTF-8"
        else:
            yield f"{file}:{number}", {source.text: left.strip(), source.target: right.strip()}, ""


def tmx(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """A translation memory: each unit has the same text in two or more languages."""
    number = 0
    try:
        inside: list[ElementTree.Element] = []  # the elements that are open
        for event, element in ElementTree.iterparse(stream.buffer, ("start", "end")):
            if event == "start":
                inside.append(element)
                continue
            inside.pop()
            if element.tag.rpartition("}")[2] == "tu":
                number += 1
                yield number, *_sides(_variants(element), source)
                for parent in inside[-1:]:
                    parent.clear()  # or the units that were read would stay in memory
    except ElementTree.ParseError as error:
        yield number + 1, None, f"not valid XML ({error})"


def _variants(unit: ElementTree.Element) -> dict[str, str]:
    found = {}
    for variant in unit.iter("tuv"):
        language = variant.get(XML_LANGUAGE) or variant.get("lang") or ""
        segment = variant.find("seg")
        if segment is not None:
            found[language] = " ".join("".join(segment.itertext()).split())
    return found


def _sides(variants: dict[str, str], source: Source) -> tuple[dict[str, Any] | None, str]:
    if not source.language or not source.target_language:
        return None, "a translation memory has several languages: name two with 'language:' and 'target_language:'"
    sides = {}
    for field, wanted in ((source.text, source.language), (source.target, source.target_language)):
        matching = [text for language, text in variants.items() if primary(language) == primary(wanted)]
        if not matching:
            return None, f"it has no text in '{wanted}' (only in {', '.join(sorted(variants)) or 'none'})"
        sides[field] = matching[0]
    return sides, ""


def primary(language: str) -> str:
    """The primary language subtag, without region, script or encoding: de of de-AT and de_AT.UTF-8."""
    return re.split(r"[-_.@]", language.lower())[0]


def gettext_catalogue(stream: TextIO, source: Source) -> Iterator[ParsedRow]:
    """A gettext catalogue. Its header names the language of msgstr (`Language: de`): this gives the source side."""
    polib = _polib()
    try:
        entries = polib.pofile(stream.read())
    except (OSError, ValueError) as error:
        yield 1, None, f"not a gettext catalogue ({error})"
        return
    language = primary(entries.metadata.get("Language", ""))
    wanted = primary(source.language), primary(source.target_language)
    if language and all(wanted) and language not in wanted:
        reason = f"the catalogue's language is '{language}', but the silo translates {wanted[0]} to {wanted[1]}"
        yield 1, None, reason
        return
    backwards = bool(language) and language == wanted[0] and language != wanted[1]
    for entry in entries:
        if entry.translated() and not entry.obsolete:
            for original, translation in _forms(entry):
                left, right = (translation, original) if backwards else (original, translation)
                yield entry.linenum, {source.text: left, source.target: right}, ""


def _forms(entry: Any) -> Iterator[tuple[str, str]]:
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr
        return
    forms = [entry.msgstr_plural[i] for i in sorted(entry.msgstr_plural)]
    yield entry.msgid, forms[0]
    if len(forms) > 1:
        yield entry.msgid_plural, forms[-1]


def _polib() -> Any:
    try:
        import polib
    except ImportError:
        raise UserError("gettext catalogues (.po) need polib: pip install 'hansa[translation]'") from None
    return polib
