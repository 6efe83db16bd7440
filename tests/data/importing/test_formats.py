"""Encodings and file formats: what is read, what is refused by name, and that memory does not grow with the input."""

import base64
import io
import json
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hansa.cli.data import data as command
from hansa.data.corpora import clinical_notes as generator
from hansa.data.importing.encodings import detect
from tests.data.importing.texts import ONE, THREE, TWO, reasons, run, texts

ENCODED = {
    "ru": ("koi8_r", "iso8859_5", "mac_cyrillic", "cp1251", "cp866"),
    "uk": ("koi8_u", "cp1251"),
    "ar": ("iso8859_6", "cp1256"),
    "he": ("cp1255", "cp862"),
    "fr": ("cp1252", "mac_roman", "cp850"),
}
JAPANESE = "患者は昨日から発熱と咳があり、胸部レントゲンで肺炎の所見を認めた。"
CHINESE = "患者昨日开始发热咳嗽，胸片显示肺炎。"  # noqa: RUF001


@pytest.mark.parametrize("code", ENCODED)
def test_the_encoding_is_detected(code: str) -> None:
    text = "\n".join(note["text"] for note in generator.notes(code, 20))
    for name in ENCODED[code]:
        written = text.encode(name, "ignore")
        assert written.decode(detect(written, code)) == written.decode(name), name
    wrong = text.encode(ENCODED[code][0], "ignore")
    assert wrong.decode(ENCODED[code][1], "replace") != wrong.decode(ENCODED[code][0]), "the control: it matters"


def test_encodings_of_japanese_and_chinese() -> None:
    assert detect(JAPANESE.encode("euc_jp"), "ja") == "euc_jp"
    assert detect(JAPANESE.encode("cp932"), "ja") == "cp932"
    assert detect(CHINESE.encode("gb2312"), "zh") == "gb18030"


def test_a_file_is_read_with_one_encoding(tmp_path: Path) -> None:
    notes = [note["text"] for note in generator.notes("ru", 10)]
    report, splits = run(tmp_path, {"a.txt": "\n".join(notes).encode("koi8_r", "ignore")}, "ru", documents="lines")
    assert report["documents"]["kept"] > 5
    assert "пациент" in " ".join(texts(splits)).lower()
    assert "koi8_r" in reasons(report)["not UTF-8: the encoding was detected"]["places"][0]


def docx(paragraphs: list[str]) -> bytes:
    import docx as library

    document = library.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    table = document.add_table(rows=1, cols=1)
    table.rows[0].cells[0].text = THREE
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


FHIR = {
    "resourceType": "Bundle",
    "entry": [
        {"resource": {"resourceType": "Composition", "section": [{"text": {"div": f"<div><p>{ONE}</p></div>"}}]}},
        {
            "resource": {
                "resourceType": "DocumentReference",
                "content": [
                    {"attachment": {"contentType": "text/plain", "data": base64.b64encode(TWO.encode()).decode()}}
                ],
            }
        },
        {"resource": {"resourceType": "Observation", "note": [{"text": THREE}]}},
        {"resource": {"resourceType": "Patient", "name": [{"family": "Borkelmund"}]}},
    ],
}
CDA = f"""<?xml version="1.0"?><ClinicalDocument xmlns="urn:hl7-org:v3"><recordTarget>Borkelmund</recordTarget>
<component><structuredBody><component><section><title>Anamnesi</title><text><paragraph>{ONE}</paragraph>
<list><item>{TWO}</item></list></text></section></component></structuredBody></component></ClinicalDocument>"""
HL7 = f"MSH|^~\\&|LAB|X|||20200101||ORU^R01|1|P|2.5\rPID|1||7||Borkelmund^Ugo\rOBX|1|TX|1||{ONE}\rNTE|1||{TWO}\r"
EMAIL = f"From: ugo@borkelmund.example\nSubject: Referto\nContent-Type: text/plain; charset=utf-8\n\n{ONE} {TWO}\n"
RTF = r"{\rtf1\ansi La paziente lamenta dolore toracico da tre giorni.\par}"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", json.dumps(FHIR), [ONE, TWO, THREE]),
        ("a.json", json.dumps(FHIR, indent=1), [ONE, TWO, THREE]),
        ("a.xml", CDA, [ONE, TWO]),
        ("a.hl7", HL7, [ONE, TWO]),
        ("a.eml", EMAIL, [ONE, TWO]),
        ("a.rtf", RTF, [ONE]),
        ("a.docx", docx([ONE, TWO]), [ONE, TWO, THREE]),
        ("a.csv", f'id,text\n1,"{ONE}"\n2,"{TWO}"\n', [ONE, TWO]),
        ("a.tsv", f"id\ttext\n1\t{ONE}\n2\t{TWO}\n", [ONE, TWO]),
        ("a.csv", f"id;text\n1;{ONE}\n2;{TWO}\n", [ONE, TWO]),
        ("a.zip", zipped({"x/a.txt": ONE.encode(), "b.docx": docx([TWO])}), [ONE, TWO, THREE]),
        ("a.json", json.dumps([{"text": ONE}, {"text": TWO}]), [ONE, TWO]),
    ],
)
def test_formats_are_read(tmp_path: Path, name: str, content: Any, expected: list[str]) -> None:
    report, splits = run(tmp_path, {name: content}, keep_other_languages=True)
    found = texts(splits)
    assert set(expected) <= set(found), (found, report["dropped"])
    assert "Borkelmund" not in " ".join(found), "who it is about is not part of the text"


def test_what_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    sources = {
        "a.pdf": b"%PDF-1.4",
        "b.doc": b"\xd0\xcf\x11\xe0\xa1",
        "c.xlsx": zipped({"x": b"1"}),
        "d.csv": "id,body\n1,x\n",
        "e.zip": zipped({"bomb.txt": b"a" * 3_000_000, "f.zip": zipped({"a.txt": b"x"})}),
        "g.txt": ONE,
    }
    report, splits = run(tmp_path, sources)
    seen = " · ".join(reasons(report))
    for said in ("a PDF", "old Office", "a .xlsx file", "no column 'text'", "200 times its size", "zip file in a zip"):
        assert said in seen
    assert texts(splits) == [ONE]


def test_a_long_list_is_streamed(tmp_path: Path) -> None:
    """40 MB on one line, with a peak far below what holding the list takes (about 100 MB)."""
    file = tmp_path / "in" / "list.json"
    file.parent.mkdir()
    with file.open("w") as stream:
        stream.write("[")
        for number in range(40_000):
            stream.write(("," if number else "") + json.dumps({"text": f"{ONE} Caso numero {number}.", "x": "y" * 900}))
        stream.write("]")
    from hansa.data.importing import Settings
    from hansa.data.importing.documents import documents
    from hansa.data.importing.files import Meter
    from hansa.data.importing.tally import Tally

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(1 for _ in documents(file, Settings("it"), Meter(), Tally()))
    assert count == 40_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # kB


def test_nothing_kept_ends_with_code_1(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,x\n")
    arguments = ["import", str(tmp_path / "a.csv"), "--out", str(tmp_path / "out"), "--language", "it"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 1
    assert "no column 'text'" in result.output
    (tmp_path / "b.txt").write_text(ONE)
    arguments[1], arguments[3] = str(tmp_path / "b.txt"), str(tmp_path / "out2")
    assert CliRunner().invoke(command, arguments).exit_code == 0
