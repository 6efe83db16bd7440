"""Documents from every kind of file: content, damage, links, encodings, bounded memory."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hansa.data.importing import Settings
from hansa.data.importing.documents import documents
from hansa.data.importing.files import Meter
from hansa.data.importing.tally import Tally
from tests.data.importing.texts import ONE, THREE, TWO, again, italian, reasons, run, texts


def study(older: Any) -> Any:
    modules = {
        "identificationModule": {"briefTitle": "Studio"},
        "descriptionModule": {"briefSummary": ONE, "detailedDescription": TWO},
        "eligibilityModule": {"eligibilityCriteria": THREE},
    }
    if not older:
        return {"protocolSection": modules}
    capital = {k[0].upper() + k[1:]: {n[0].upper() + n[1:]: t for n, t in v.items()} for k, v in modules.items()}
    return {"FullStudiesResponse": {"FullStudies": [{"Study": {"ProtocolSection": capital}}]}}


JATS = f"""<?xml version="1.0"?><article xmlns:xlink="http://www.w3.org/1999/xlink"><front><article-meta>
<title-group><article-title>{ONE}</article-title></title-group><abstract><p>{TWO}</p></abstract></article-meta></front>
<body><sec><title>x</title><p>Si consiglia un <italic>controllo</italic> cardiologico<xref ref-type="bibr">3</xref>
entro la prossima settimana.</p>
<table-wrap><p>Tabella che non appartiene al testo corrente.</p></table-wrap></sec></body></article>"""
PUBMED = f"""<PubmedArticleSet><PubmedArticle><MedlineCitation><Article><ArticleTitle>{ONE}</ArticleTitle><Abstract>
<AbstractText Label="A">{TWO}</AbstractText></Abstract></Article><OtherAbstract Language="eng">
<AbstractText>An abstract in another language.</AbstractText></OtherAbstract></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><Article><ArticleTitle>{THREE}</ArticleTitle></Article></MedlineCitation></PubmedArticle>
</PubmedArticleSet>"""
HTML = f"""<!DOCTYPE html><html><head><title>x</title><style>p {{}}</style></head><body>
<form><nav>Vai alla pagina principale del sito.</nav><select><option>Roma<option>Milano</select>
<script>var a = "<p>Questo è codice e non testo.</p>";</script>
<p>La paziente <b>lamenta</b> dolore toracico da tre giorni.</p><ul><li>{TWO}<li>{THREE}</ul>
<footer>Tutti i diritti riservati.</footer></form></body></html>"""
WIKI = f'<doc id="1" url="u" title="Voce">\nVoce\n\n{ONE}\n{TWO}\n</doc>\n'
WIKI += f'<doc id="2" url="u" title="B">\n{THREE}\n</doc>\n'
PAGES = ["La paziente lamenta dolore tora-\ncico da tre giorni. Non riferisce febbre né"]
PAGES += ["perdita di peso negli ultimi mesi.", THREE]
PDF = "\f".join(f"Ospedale Civile  Referto\n{page}\n\n{number}\n" for number, page in enumerate(PAGES, 1))
ROWS = "".join(json.dumps({"id": "1", "title": "t", "text": text}) + "\n" for text in (ONE, TWO, THREE))
KINDS: dict[str, str | bytes] = {
    "a.txt": f"{ONE} {TWO}\n\n{THREE}\n",
    "wrapped.txt": f"{ONE} {TWO} {THREE}".replace("dolore ", "dolore\n").replace("perdita ", "perdita\n"),
    "a.jsonl": ROWS,
    "wiki_00": ROWS,
    "AA/wiki_01": WIKI,
    "a.html": HTML,
    "page": HTML,
    "a.nxml": JATS,
    "a.xml": PUBMED,
    "new.json": json.dumps(study(older=False), indent=1),
    "page.json": json.dumps({"studies": [study(older=False)]}),
    "old.json": json.dumps(study(older=True)),
    "pdf.txt": PDF,
    "wide.txt": f"{ONE} {TWO}\r\n\r\n{THREE}\r\n".encode("utf-16"),
    "bom.txt": b"\xef\xbb\xbf" + f"{ONE} {TWO} {THREE}".encode(),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_the_same_sentences(tmp_path: Path, name: str, packed: bool) -> None:
    kind = KINDS[name]
    content = kind if isinstance(kind, bytes) else kind.encode()
    source = {f"{name}.gz": gzip.compress(content)} if packed else {name: content}
    report, splits = run(tmp_path, source)
    assert sorted(texts(splits)) == sorted([ONE, TWO, THREE])
    assert {row["lang"] for side in splits.values() for row in side} == {"it"}
    assert report["bytes_in"] == (tmp_path / "in" / next(iter(source))).stat().st_size


@pytest.mark.parametrize(("what", "documents_read"), [("files", 1), ("blocks", 2), ("lines", 3)])
def test_what_a_document_is_in_plain_text(tmp_path: Path, what: Any, documents_read: Any) -> None:
    report, splits = run(tmp_path, {"a.txt": f"{ONE}\n{TWO}\n\n{THREE}\n"}, documents=what)
    assert report["documents"]["read"] == report["documents"]["kept"] == documents_read
    assert sorted(texts(splits)) == sorted([ONE, TWO, THREE])


def test_bad_files_are_reported_and_the_rest_is_imported(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(italian(400, seed=9)).encode())
    report, splits = run(
        tmp_path,
        {
            "a/empty.txt": "",
            "a/blank.txt": " \n\n ",
            "b.pdf": b"%PDF-1.4 \x00\x01",
            "c.txt": b"\x00\x01\x02" * 100,
            "cut.txt.gz": whole[: len(whole) // 2],
            "d.xml": "<html-like><x/></html-like>",
            "e.xml": PUBMED.replace("</Article><Other", "</Artikel><Other"),
            "f.json": '{"text": ',
            "g.jsonl": f'{{"text": "{ONE}"}}\n{{"text": \n["x"]\n{{"txt": "x"}}\n{{"text": "{TWO}"}}\n',
            "z.txt": "Il decorso è regolare e il paziente torna a casa domani.",
        },
    )
    seen = reasons(report)
    assert seen["binary, not text"]["count"] == 1
    assert any("a PDF" in reason for reason in seen)
    assert seen["ends early, is damaged or cannot be opened"]["places"][0].startswith(str(tmp_path / "in/cut.txt.gz"))
    assert seen["XML of an unknown kind (known are JATS and PubMed)"]["count"] == 1
    assert seen["not valid JSON"]["count"] == 2
    assert any(place.startswith(f"{tmp_path / 'in/g.jsonl'}:2 (") for place in seen["not valid JSON"]["places"])
    assert seen["no field 'text' (name it with --field)"]["places"] == [f"{tmp_path / 'in/g.jsonl'}:4 (txt)"]
    assert seen["not a JSON object"]["count"] == 1
    assert "e.xml" in seen["not well-formed XML"]["places"][0]
    assert seen["the file is empty"]["places"] == [str(tmp_path / "in/a/empty.txt")]
    assert seen["empty"]["places"] == [str(tmp_path / "in/a/blank.txt")]
    assert {ONE, TWO, "Il decorso è regolare e il paziente torna a casa domani."} <= set(texts(splits))
    assert len(texts(splits)) > 500, "text before the damage is kept"


def test_dangling_and_cyclic_links_are_reported(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text(ONE)
    (tmp_path / "in/back").symlink_to(tmp_path / "in")
    (tmp_path / "in/nowhere").symlink_to(tmp_path / "no")
    report, splits = again(tmp_path / "in", tmp_path / "out")
    assert texts(splits) == [ONE]
    assert len(reasons(report)["a link to a folder, or not a readable file"]["places"]) == 2


def test_articles_after_a_malformed_one_are_read(tmp_path: Path) -> None:
    _, splits = run(tmp_path, {"a.xml": PUBMED.replace("</Abstract></Article>", "</Article>")})
    assert THREE in texts(splits)


def test_entities_of_xml_are_neither_expanded_nor_fetched(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("Segreto che non deve uscire da questo file.")
    body = f"<article><body><p>{ONE}</p><p>&e9;</p><p>&s;</p></body></article>"
    outside = f'<!DOCTYPE article [<!ENTITY s SYSTEM "file://{tmp_path}/secret"><!ENTITY e9 "Espansione del testo.">]>'
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    inside = f'<!DOCTYPE article [<!ENTITY e0 "Espansione enorme. ">{bomb}]>'
    report, splits = run(tmp_path, {"a.xml": outside + body, "b.xml": inside + body, "c.xml": PUBMED})
    assert sorted(texts(splits)) == sorted([ONE, TWO, THREE])
    assert "b.xml" in reasons(report)["not well-formed XML"]["places"][0]


def test_mixed_encodings_in_one_file_are_read_line_by_line(tmp_path: Path) -> None:
    lines = [TWO.encode(), "Però la tosse è già più lieve di ieri mattina.".encode("cp1252"), ONE.encode()]
    report, splits = run(tmp_path, {"a.txt": b"\n".join(lines)})
    assert sorted(texts(splits)) == sorted([TWO, ONE, "Però la tosse è già più lieve di ieri mattina."])
    [place] = reasons(report)["not UTF-8: the encoding was detected"]["places"]
    assert place.endswith("a.txt:2 (cp1252)")


def test_the_code_page_follows_the_language(tmp_path: Path) -> None:
    said = "Пациентка жалуется на боль в груди в течение трёх дней."
    report, splits = run(tmp_path, {"a.txt": said.encode("cp1251")}, "ru")
    assert texts(splits) == [said]
    assert "use --documents blocks or lines" in report["notes"][0], "one document is in one split"


def test_a_very_long_line_is_read_in_blocks(tmp_path: Path) -> None:
    notes = " ".join(italian(200))
    path = tmp_path / "a.txt"
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(50_000_000 // len(notes)):
            stream.write(notes + " ")
    tracemalloc.start()
    sizes = [len(piece.text) for piece in documents(path, Settings("it"), Meter(), Tally())]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(sizes) > 48_000_000
    assert max(sizes) < 600_000
    assert peak < 5_000_000
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": notes * 20}))
    parts = list(documents(tmp_path / "b.jsonl", Settings("it"), Meter(), Tally()))
    assert "".join(part.text for part in parts) == notes * 20
    assert [part.first for part in parts] == [True] + [False] * (len(parts) - 1)
    assert max(len(part.text) for part in parts) < 600_000 < len(notes * 20)


def test_a_character_is_never_split(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("日本語" * 200_000, encoding="utf-8")
    tally = Tally()
    pieces = list(documents(path, Settings("ja"), Meter(), tally))
    assert "".join(piece.text for piece in pieces) == "日本語" * 200_000
    assert len(pieces) > 3
    assert not tally.reasons
