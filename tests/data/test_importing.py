"""Importing raw documents: every kind of input, bad input, duplicates, splits, bounded memory."""

import gzip
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hansa.core.errors import DataError, UserError
from hansa.data.corpora import clinical_notes as generator
from hansa.data.importing import Settings, import_text, read_key
from hansa.data.importing.clean import clean
from hansa.data.importing.documents import documents
from hansa.data.importing.duplicates import Fingerprints, NearDuplicates, signatures
from hansa.data.importing.files import Meter
from hansa.data.importing.sentences import WINDOW, other_language, splitter
from hansa.data.importing.tally import Tally

ONE = "La paziente lamenta dolore toracico da tre giorni."
TWO = "Non riferisce febbre né perdita di peso negli ultimi mesi."
THREE = "Si consiglia un controllo cardiologico entro la prossima settimana."


def run(tmp_path, sources, language="it", **options):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return again(folder, tmp_path / "out", language, **options)


def again(folder, out, language="it", **options):
    report = import_text([folder], out, Settings(language, **({"memory": 2} | options)))
    files = {side: out / f"{language}.{side}.jsonl" for side in ("train", "valid", "test")}
    return report, {side: [json.loads(line) for line in file.read_text().splitlines()] for side, file in files.items()}


def texts(sides):
    return [row["text"] for side in sides.values() for row in side]


def reasons(report):
    return {one["reason"]: one for level in report["dropped"].values() for one in level}


def italian(count, seed=0):
    return [note["text"] for note in generator.notes("it", count, seed)]


def study(older):
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
KINDS = {
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
def test_every_kind_gives_the_same_sentences(tmp_path, name, packed):
    content = KINDS[name] if isinstance(KINDS[name], bytes) else KINDS[name].encode()
    source = {f"{name}.gz": gzip.compress(content)} if packed else {name: content}
    report, sides = run(tmp_path, source)
    assert sorted(texts(sides)) == sorted([ONE, TWO, THREE])
    assert {row["lang"] for side in sides.values() for row in side} == {"it"}
    assert report["bytes_in"] == (tmp_path / "in" / next(iter(source))).stat().st_size


@pytest.mark.parametrize(("what", "documents_read"), [("files", 1), ("blocks", 2), ("lines", 3)])
def test_what_a_document_is_in_plain_text(tmp_path, what, documents_read):
    report, sides = run(tmp_path, {"a.txt": f"{ONE}\n{TWO}\n\n{THREE}\n"}, documents=what)
    assert report["documents"]["read"] == report["documents"]["kept"] == documents_read
    assert sorted(texts(sides)) == sorted([ONE, TWO, THREE])


def test_bad_files_are_reported_and_the_rest_is_imported(tmp_path):
    whole = gzip.compress("\n".join(italian(400, seed=9)).encode())
    report, sides = run(
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
    assert seen["binary, not text (extract the text of a PDF or Word file first)"]["count"] == 2
    assert seen["ends early, is damaged or cannot be opened"]["places"][0].startswith(str(tmp_path / "in/cut.txt.gz"))
    assert seen["XML of an unknown kind (known are JATS and PubMed)"]["count"] == 1
    assert seen["not valid JSON"]["count"] == 2
    assert any(place.startswith(f"{tmp_path / 'in/g.jsonl'}:2 (") for place in seen["not valid JSON"]["places"])
    assert seen["no field 'text' (name it with --field)"]["places"] == [f"{tmp_path / 'in/g.jsonl'}:4 (txt)"]
    assert seen["not a JSON object"]["count"] == 1
    assert "e.xml" in seen["not well-formed XML"]["places"][0]
    assert seen["no bytes in it"]["places"] == [str(tmp_path / "in/a/empty.txt")]
    assert seen["empty"]["places"] == [str(tmp_path / "in/a/blank.txt")]
    assert {ONE, TWO, "Il decorso è regolare e il paziente torna a casa domani."} <= set(texts(sides))
    assert len(texts(sides)) > 500, "what stood before the damage is kept"


def test_links_that_lead_nowhere_or_back_are_reported(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text(ONE)
    (tmp_path / "in/back").symlink_to(tmp_path / "in")
    (tmp_path / "in/nowhere").symlink_to(tmp_path / "no")
    report, sides = again(tmp_path / "in", tmp_path / "out")
    assert texts(sides) == [ONE]
    assert len(reasons(report)["a link to a folder, or not a file that can be read"]["places"]) == 2


def test_a_broken_article_does_not_take_the_others_with_it(tmp_path):
    _, sides = run(tmp_path, {"a.xml": PUBMED.replace("</Abstract></Article>", "</Article>")})
    assert THREE in texts(sides)


def test_entities_of_xml_are_neither_expanded_nor_fetched(tmp_path):
    (tmp_path / "secret").write_text("Segreto che non deve uscire da questo file.")
    body = f"<article><body><p>{ONE}</p><p>&e9;</p><p>&s;</p></body></article>"
    outside = f'<!DOCTYPE article [<!ENTITY s SYSTEM "file://{tmp_path}/secret"><!ENTITY e9 "Espansione del testo.">]>'
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    inside = f'<!DOCTYPE article [<!ENTITY e0 "Espansione enorme. ">{bomb}]>'
    report, sides = run(tmp_path, {"a.xml": outside + body, "b.xml": inside + body, "c.xml": PUBMED})
    assert sorted(texts(sides)) == sorted([ONE, TWO, THREE])
    assert "b.xml" in reasons(report)["not well-formed XML"]["places"][0]


def test_mixed_encodings_in_one_file_are_read_line_by_line(tmp_path):
    lines = [TWO.encode(), "Però la tosse è già più lieve di ieri mattina.".encode("cp1252"), ONE.encode()]
    report, sides = run(tmp_path, {"a.txt": b"\n".join(lines)})
    assert sorted(texts(sides)) == sorted([TWO, ONE, "Però la tosse è già più lieve di ieri mattina."])
    [place] = reasons(report)["not UTF-8: read in the code page of the language"]["places"]
    assert place.endswith("a.txt:2 (cp1252)")


def test_the_code_page_follows_the_language(tmp_path):
    said = "Пациентка жалуется на боль в груди в течение трёх дней."
    report, sides = run(tmp_path, {"a.txt": said.encode("cp1251")}, "ru")
    assert texts(sides) == [said]
    assert "needs --documents blocks or lines" in report["notes"][0], "one document cannot fill three sides"


def test_a_document_in_another_language_is_dropped_unless_asked_for(tmp_path):
    english = "The patient was admitted to hospital with chest pain and shortness of breath."
    report, sides = run(tmp_path, {"a.txt": f"{ONE} {TWO}", "b.txt": english})
    assert english not in texts(sides)
    [place] = reasons(report)["in another language"]["places"]
    assert "b.txt (en" in place
    assert report["documents"] == {"read": 2, "kept": 1}
    _, kept = again(tmp_path / "in", tmp_path / "all", keep_other_languages=True)
    assert english in texts(kept)


@pytest.mark.parametrize("language", generator.LANGUAGES)
def test_no_document_is_taken_for_another_language_wrongly(language):
    notes = [note["text"] for note in generator.notes(language, 60, seed=4)]
    assert [other_language(text, language) for text in notes] == [""] * 60
    other = "de" if language != "de" else "fr"
    assert all(other_language(text, other) for text in notes)


def test_a_language_unknown_to_the_splitter_falls_back_and_says_so(tmp_path):
    report, sides = run(tmp_path, {"a.txt": f"{ONE} {TWO}"}, "xx")
    assert sorted(texts(sides)) == sorted([ONE, TWO])
    assert "no rules of its own for 'xx'" in report["notes"][0]
    assert "no document was checked" in report["notes"][1]


def test_documents_that_cannot_be_used_are_counted_to_the_last(tmp_path):
    content = {f"{n}.txt": text for n, text in enumerate([*italian(60), *italian(10), "12345 678 90. 1.", "ok.", ""])}
    report, sides = run(tmp_path, content)
    lost = sum(one["count"] for one in report["dropped"]["documents"])
    assert report["documents"]["read"] == 72
    assert report["documents"]["kept"] + lost == 72
    dropped = sum(one["count"] for one in report["dropped"]["sentences"])
    assert report["sentences"]["kept"] == len(texts(sides)) == report["sentences"]["read"] - dropped
    assert reasons(report)["near-duplicate of an earlier document"]["count"] == 10


def test_unfit_sentences_are_counted_by_reason(tmp_path):
    many = "parola " * 200
    report, sides = run(tmp_path, {"a.txt": f"Sì.\n\n{ONE}\n\n+39 011 555 1234 / 22-10-2020 (12.5).\n\n{many}fine.\n"})
    assert texts(sides) == [ONE]
    expected = {"too short": 1, "too long": 1, "too few letters": 1}
    assert {reason: one["count"] for reason, one in reasons(report).items()} == expected


def test_no_sentence_stands_on_two_sides_or_twice(tmp_path):
    notes = italian(600)
    mixed = "".join(json.dumps({"text": t if n % 9 else t.upper()}) + "\n" for n, t in enumerate(notes))
    report, sides = run(tmp_path, {"a.jsonl": mixed}, valid=0.2, test=0.3)
    said = ["".join("0" if c.isdigit() else c for c in text.lower()) for text in texts(sides)]
    assert len(said) == len(set(said))
    raw = [s for text in notes for s in splitter("it")(text)]
    assert len(set(raw)) < len(raw), "the input does repeat itself"
    owners = [{row["doc"] for row in side} for side in sides.values()]
    assert not owners[0] & (owners[1] | owners[2])
    assert report["splits"]["test"]["documents"] == pytest.approx(180, abs=50)
    assert report["splits"]["valid"]["documents"] == pytest.approx(120, abs=40)


def test_the_side_of_a_document_depends_on_its_content_alone(tmp_path):
    notes = italian(80)
    _, sides = run(tmp_path, {f"{n:03}.txt": text for n, text in enumerate(notes)}, test=0.4)
    (tmp_path / "other").mkdir()
    _, turned = run(tmp_path / "other", {f"{n:03}.txt": text for n, text in enumerate(reversed(notes))}, test=0.4)

    def side_of(found):
        return {row["doc"]: side for side, rows in found.items() for row in rows}

    first, second = side_of(sides), side_of(turned)
    assert len(first) > 70
    assert all(second[doc] == side for doc, side in first.items() if doc in second)


def test_near_duplicates_are_dropped_and_different_documents_are_not(tmp_path):
    long = " ".join(italian(6))
    changed = long.replace(long.split()[20], "sostituito", 1)
    report, _ = run(tmp_path, {"a.txt": long, "b.txt": changed, "c.txt": " ".join(italian(6, seed=8))})
    assert reasons(report)["near-duplicate of an earlier document"]["places"] == [str(tmp_path / "in/b.txt")]
    off, _ = again(tmp_path / "in", tmp_path / "off", near=0.0)
    assert off["documents"]["kept"] == 3, "with --near 0 the changed sentence of the second document stays"


@given(st.integers(0, 60), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_near_duplicates_by_the_true_jaccard_similarity(changed, seed):
    rng = np.random.default_rng(seed)
    words = [f"w{n}" for n in rng.integers(0, 10**9, 120)]
    other = [f"v{n}" if n < changed else word for n, word in enumerate(words)]
    marks = signatures([" ".join(words).encode(), " ".join(other).encode()], "it")
    near = NearDuplicates(0.1, 0.8)
    assert not near.seen(marks.marks[0], marks.bands[0].tolist())
    common = 118 - changed
    similarity = common / (2 * 118 - common)
    found = near.seen(marks.marks[1], marks.bands[1].tolist())
    if similarity > 0.97:
        assert found
    if similarity < 0.55:
        assert not found


@given(st.lists(st.lists(st.integers(1, 300), max_size=40), max_size=8))
def test_the_table_of_fingerprints_is_a_set(batches):
    table, seen = Fingerprints(0.003), set()  # 393 places: full enough to collide
    for batch in batches:
        prints = np.array([n * 0x9E3779B97F4A7C15 % 2**64 for n in batch], np.uint64)
        expected = [n not in seen and n not in batch[:i] for i, n in enumerate(batch)]
        assert table.fresh(prints).tolist() == expected
        seen.update(batch)
    assert table.count == len(seen)
    assert not table.full


def test_a_full_table_is_reported_and_keeps_the_sides_apart(tmp_path, monkeypatch):
    from hansa.data.importing import writing

    monkeypatch.setattr(writing, "Fingerprints", lambda megabytes: Fingerprints(0.01))
    monkeypatch.setattr("hansa.data.importing.BATCH", 4000)
    content = "".join(json.dumps({"text": text}) + "\n" for text in italian(600))
    report, sides = run(tmp_path, {"a.jsonl": content}, valid=0.2, test=0.3)
    assert any("table of sentences was full" in note for note in report["notes"])
    assert reasons(report)["due for valid or test after the table of sentences was full (raise --memory)"]["count"] > 10
    held_out = {row["text"].lower() for side in ("valid", "test") for row in sides[side]}
    assert held_out
    assert not held_out & {row["text"].lower() for row in sides["train"]}


def test_one_giant_line_passes_in_blocks(tmp_path):
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


@pytest.mark.parametrize("language", ["it", "en", "ru"])
def test_a_long_paragraph_splits_the_same_through_windows(language):
    from sentencex import segment

    text = " ".join(note["text"] for note in generator.notes(language, 40, seed=2))
    assert len(text) > 5 * WINDOW
    assert splitter(language)(text) == [sentence.strip() for sentence in segment(language, text)]


def test_a_character_is_never_cut_in_two(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("日本語" * 200_000, encoding="utf-8")
    tally = Tally()
    pieces = list(documents(path, Settings("ja"), Meter(), tally))
    assert "".join(piece.text for piece in pieces) == "日本語" * 200_000
    assert len(pieces) > 3
    assert not tally.reasons


def test_any_number_of_workers_gives_the_same_files(tmp_path, monkeypatch):
    content = {f"{n}.jsonl": "".join(json.dumps({"text": t}) + "\n" for t in italian(400, seed=n)) for n in range(2)}
    monkeypatch.setattr("hansa.data.importing.BATCH", 20_000)
    one, _ = run(tmp_path, content)
    two, _ = again(tmp_path / "in", tmp_path / "two", workers=2)
    for side in ("train", "valid", "test"):
        assert (tmp_path / f"two/it.{side}.jsonl").read_bytes() == (tmp_path / f"out/it.{side}.jsonl").read_bytes()
    assert {k: v for k, v in one.items() if "second" not in k} == {k: v for k, v in two.items() if "second" not in k}


def test_packed_output_holds_the_same_lines(tmp_path):
    run(tmp_path, {"a.txt": f"{ONE} {TWO}"})
    import_text([tmp_path / "in"], tmp_path / "packed", Settings("it", memory=2, gzip=True))
    for side in ("train", "valid", "test"):
        packed = (tmp_path / f"packed/it.{side}.jsonl.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / f"out/it.{side}.jsonl").read_bytes()


@pytest.mark.parametrize("existed", [False, True])
def test_an_interrupted_import_leaves_nothing(tmp_path, existed):
    (tmp_path / "a.txt").write_text(ONE)
    out = tmp_path / "out"
    if existed:
        out.mkdir()

    def interrupt(done, total):
        assert list(out.iterdir()), "drafts were being written"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_text([tmp_path / "a.txt"], out, Settings("it", memory=2), interrupt)
    assert out.exists() == existed
    assert not existed or not list(out.iterdir())


def test_progress_ends_at_the_size_of_the_input(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("\n".join(italian(700, seed=ord(name))))
    steps = []
    import_text(
        [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "out", Settings("it", memory=2), lambda *s: steps.append(s)
    )
    total = sum((tmp_path / f"{name}.txt").stat().st_size for name in "ab")
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_mistakes_are_said_in_one_sentence_before_anything_is_written(tmp_path):
    (tmp_path / "a.txt").write_text(ONE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "key").write_text(" \n")
    source, out = [tmp_path / "a.txt"], tmp_path / "out"
    for settings_, out_, match in (
        (Settings("it"), tmp_path / "full", "not empty"),
        (Settings("it"), tmp_path / "a.txt", "this is a file"),
        (Settings("it", kind="htm"), out, "did you mean 'html'"),
        (Settings("it", documents="line"), out, "did you mean 'lines'"),
        (Settings("../it"), out, "not a language code"),
        (Settings("it", valid=0.5, test=0.5), out, "nothing to train on"),
        (Settings("it", deidentify="rules"), out, "--key-file"),
    ):
        with pytest.raises(UserError, match=match):
            import_text(source, out_, settings_)
    with pytest.raises(UserError, match="lies inside"):
        import_text([tmp_path], out, Settings("it"))
    with pytest.raises(DataError, match="no such file"):
        import_text([tmp_path / "no"], out, Settings("it"))
    for name in ("key", "no-key"):
        with pytest.raises(UserError, match="holds a secret"):
            read_key(tmp_path / name)
    assert not out.exists()


def test_a_missing_package_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(
        UserError, match=r"'sentencex', which is missing here; install it with: pip install 'hansa\[prep"
    ):
        run(tmp_path, {"a.txt": ONE})
    assert not (tmp_path / "out").exists()


def test_personal_details_are_replaced_before_anything_else(tmp_path):
    said = "Contattare la sig.ra Giulia Ferraro al numero 079 3978799 oppure a giulia.ferraro12@example.com."
    report, sides = run(tmp_path, {"a.txt": said}, deidentify="rules", key="secret", style="tags")
    assert report["personal_details_replaced"] >= 1
    assert not any("3978799" in text for text in texts(sides))
    _, plain = again(tmp_path / "in", tmp_path / "plain")
    assert any("3978799" in text for text in texts(plain))


def test_the_command_prints_a_report_and_refuses_in_one_sentence(tmp_path):
    (tmp_path / "a.txt").write_text(f"{ONE} {TWO}")
    command = [sys.executable, "-m", "hansa", "data", "import", str(tmp_path / "a.txt"), "--language", "it"]
    command += ["--out", str(tmp_path / "out"), "--memory", "2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads((tmp_path / "out/report.json").read_text())
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("cafe\u0301 al\u00ad la\u200bvoro", "caf\u00e9 al lavoro"),
        ("a\u00a0\tb   c\x07", "a b c"),
        ("si veda <b>qui</b> &amp; l\u00e0", "si veda qui & l\u00e0"),
        ("come noto [12, 13] da [4\u20136] tempo", "come noto da tempo"),
        ("[[Roma|la capitale]] di '''oggi''' {{cita}}", "la capitale di oggi "),
        ("x \ud800 y", "x y"),
    ],
)
def test_cleaning(raw, cleaned):
    assert clean(raw, "text", citations=False) == cleaned
    assert "[" not in raw or "[" in clean("[1] " + raw, "text", citations=True)


def test_headings_and_items_are_not_joined_but_wrapped_lines_are():
    text = (
        f"ANAMNESI\n{ONE[:45]}\n{ONE[45:]}\nAllergie\nNessuna nota\n---\nPagina 3 di 10\nhttps://x.org/a\n© 2020 Casa\n"
    )
    expected = ["ANAMNESI", f"{ONE[:45]} {ONE[45:]}", "Allergie", "Nessuna nota"]
    assert [part for part in clean(text, "text", False).split("\n\n") if part] == expected


@given(st.text(max_size=300))
def test_cleaning_takes_any_text_and_leaves_no_control_characters(text):
    for kind in ("text", "pdf"):
        found = clean(text, kind, citations=False)
        found.encode()
        assert "\n" not in found.replace("\n\n", "")
        assert not any(ord(c) < 32 and c != "\n" for c in found)
        assert "  " not in found
