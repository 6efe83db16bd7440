"""Read the text of clinical exchange formats: FHIR resources (JSON), CDA documents (XML), HL7 version 2 messages."""

import base64
import binascii
import io
from collections.abc import Iterator
from typing import Any

from hansa.data.importing.markup import html_text, needed
from hansa.data.importing.tally import Tally

HL7_TEXT = ("TX", "FT", "ST", "CF")  # value types of OBX that are text
HL7_ESCAPES = {r"\.br\\": "\n", r"\.sp\\": "\n", "\\F\\": "|", "\\S\\": "^", "\\T\\": "&", "\\R\\": "~", "\\E\\": "\\"}
# Fields of FHIR resources that contain written text.
FHIR_TEXT = ("valueString", "valueMarkdown", "conclusion", "description", "comment", "summary", "patientInstruction")
ATTACHED = ("text/plain", "text/html", "application/xhtml+xml", "text/markdown")


def fhir_resources(value: Any) -> Iterator[Any]:
    """The resources of a FHIR value: those of a bundle, else the value itself."""
    if isinstance(value, dict) and value.get("resourceType") == "Bundle":
        for entry in value.get("entry") or []:
            if isinstance(entry, dict):
                yield from fhir_resources(entry.get("resource"))
    elif isinstance(value, dict) and "resourceType" in value:
        yield value


def fhir_text(resource: dict[str, Any]) -> str:
    """The narratives, notes, strings and attached documents of a FHIR resource, as paragraphs."""
    return "\n\n".join(dict.fromkeys(part.strip() for part in _written(resource) if part and part.strip()))


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _written(one)
    elif isinstance(value, dict):
        if isinstance(value.get("div"), str):
            yield html_text(value["div"])
        if isinstance(value.get("data"), str) and str(value.get("contentType", "")).split(";")[0] in ATTACHED:
            yield _attachment(value["data"], str(value["contentType"]))
        for name, one in value.items():
            if name in FHIR_TEXT and isinstance(one, str):
                yield one
            elif name == "note" and isinstance(one, list):
                yield from (
                    note["text"] for note in one if isinstance(note, dict) and isinstance(note.get("text"), str)
                )
            elif isinstance(one, dict | list):
                yield from _written(one)


def _attachment(data: str, kind: str) -> str:
    try:
        text = base64.b64decode(data).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
    return html_text(text) if "html" in kind else text


def cda_text(source: bytes, place: str, tally: Tally) -> str:
    """The titles and narrative blocks of a CDA document; "" if it is not well-formed. Entities are not expanded."""
    etree = needed("lxml.etree")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, recover=True)
    root = etree.parse(io.BytesIO(source), parser).getroot()
    if root is None:
        tally.note("records", "not well-formed XML", place)
        return ""
    parts = []
    for section in root.iter("{*}section"):
        for block in section.findall("{*}title") + section.findall("{*}text"):
            lines = (" ".join("".join(one.itertext()).split()) for one in _blocks(block))
            parts.append("\n".join(line for line in lines if line))
    return "\n\n".join(part for part in parts if part)


def _blocks(block: Any) -> list[Any]:
    """The paragraphs, items and table rows of a narrative block; the block itself if it has none."""
    found = [one for one in block.iter("{*}paragraph", "{*}item", "{*}tr") if one is not block]
    outer = [one for one in found if not any(parent in found for parent in one.iterancestors())]
    return outer or [block]


def hl7_messages(text: str) -> Iterator[str]:
    """The text of each HL7 version 2 message: its observations with text values, and its notes."""
    hl7 = needed("hl7")
    starts = text.replace("\r\n", "\r").replace("\n", "\r").split("\rMSH|")
    for number, message in enumerate(starts):
        whole = message if number == 0 else "MSH|" + message
        try:
            segments = hl7.parse(whole.strip("\r\x0b\x1c "))
        except (hl7.HL7Exception, IndexError, ValueError):
            continue
        parts = [_field(s, 5) for s in segments if str(s[0]) == "OBX" and _field(s, 2) in HL7_TEXT]
        parts += [_field(s, 3) for s in segments if str(s[0]) == "NTE"]
        yield "\n".join(part for part in parts if part.strip())


def _field(segment: Any, number: int) -> str:
    try:
        value = str(segment[number])
    except (IndexError, KeyError):
        return ""
    for code, sign in HL7_ESCAPES.items():
        value = value.replace(code.replace("\\\\", "\\"), sign)
    return value.replace("~", "\n")
