"""`hansa data`: what stands before a federation. One thin command per verb."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.core.errors import UserError
from hansa.report.text import table

data = typer.Typer(no_args_is_help=True, help="Generate, fetch and describe data.")


@data.command("generate")
def data_generate(
    out: Annotated[Path, typer.Option(help="the folder to write to")],
    languages: Annotated[str, typer.Option(help="separated by commas; default all eleven")] = "",
    count: Annotated[int, typer.Option(min=1, help="notes per language")] = 1000,
    seed: int = 0,
    format: FormatOption = Format.text,
) -> None:
    """Clinical notes of our own making, parallel across languages, with gold annotation."""
    from hansa.data.corpora import clinical_notes as generator

    chosen = [code.strip() for code in languages.split(",") if code.strip()] or list(generator.LANGUAGES)
    for code in chosen:
        generator.language(code)  # refuse an unknown one before anything is written
    out.mkdir(parents=True, exist_ok=True)
    for code in chosen:
        with (out / f"{code}.jsonl").open("w", encoding="utf-8") as stream:
            for note in generator.notes(code, count, seed):
                stream.write(json.dumps(note, ensure_ascii=False) + "\n")
    result = {"folder": str(out), "languages": chosen, "notes": count}
    finish(format, result, lambda: output.print(f"{count:,} notes in {', '.join(chosen)}: {out}", highlight=False))


@data.command("fetch")
def data_fetch(
    corpus: Annotated[str, typer.Argument(help="icd10")],
    out: Annotated[Path, typer.Option(help="the folder to write to")] = Path("icd10"),
    format: FormatOption = Format.text,
) -> None:
    """Fetch a real corpus by name: ICD-10 disease names in nine languages, with chapters as labels."""
    from hansa.core.errors import did_you_mean
    from hansa.data.corpora import icd10

    if corpus != "icd10":
        raise UserError(f"corpus '{corpus}' is not known; {did_you_mean(corpus, ['icd10'])}")
    counts = icd10.write(out)

    def show() -> None:
        for language, count in counts.items():
            output.print(f"{out / language}.jsonl  {count:,} rows", highlight=False)

    finish(format, {"folder": str(out), "rows": counts}, show)


@data.command("describe")
def data_describe(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…")],
    text: str = "text",
    label: str = "label",
    format: FormatOption = Format.text,
) -> None:
    """Counts, lengths, languages and label shares of files or folders."""
    from hansa.data.describe import describe

    found = [describe(path, text, label) for path in paths]

    def show() -> None:
        for one in found:
            output.print(f"[bold]{one['path']}[/]", highlight=False)
            for key, value in one.items():
                if (key != "path" and value not in ({}, [], 0)) or key == "samples":
                    output.print(f"  {key.replace('_', ' ')}: {_plain(value)}", highlight=False, markup=False)

    finish(format, {"files": found}, show)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        total = sum(value.values())
        whole = all(isinstance(v, int) for v in value.values())
        return ", ".join(f"{k} {v:,} ({v / total:.1%})" if whole else f"{k} {v:,}" for k, v in list(value.items())[:25])
    return "; ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


@data.command("import")
def data_import(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="files and folders (hidden ones aside), also .gz")
    ],
    out: Annotated[Path, typer.Option(help="the folder to write to, new or empty")],
    language: Annotated[str, typer.Option(help="the language of the silo, such as it")],
    kind: Annotated[str, typer.Option(help="auto, text, pdf (its text), html, xml, json or wiki")] = "auto",
    documents: Annotated[str, typer.Option(help="in text, a document is one of: files, blocks, lines")] = "files",
    field: Annotated[str, typer.Option(help="the field of JSON that holds the text")] = "text",
    valid: Annotated[float, typer.Option(min=0, max=1, help="share of documents for validation")] = 0.05,
    test: Annotated[float, typer.Option(min=0, max=1, help="share of documents for testing")] = 0.1,
    shortest: Annotated[int, typer.Option(min=1, help="characters of the shortest sentence kept")] = 10,
    longest: Annotated[int, typer.Option(min=1, help="characters of the longest sentence kept")] = 1000,
    near: Annotated[float, typer.Option(min=0, max=1, help="documents as alike as this are duplicates; 0: off")] = 0.8,
    keep_citations: Annotated[bool, typer.Option("--keep-citations", help="keep brackets such as [12, 13]")] = False,
    keep_other_languages: Annotated[bool, typer.Option("--keep-other-languages", help="do not check")] = False,
    deidentify: Annotated[str, typer.Option(metavar="SPEC", help="replace personal details first, e.g. rules")] = "",
    key_file: Annotated[Path | None, typer.Option(help="the secret behind the surrogates")] = None,
    style: Annotated[str, typer.Option(help="surrogates or tags")] = "surrogates",
    memory: Annotated[int, typer.Option(min=1, help="MB for remembering what was seen")] = 512,
    workers: Annotated[int, typer.Option(min=1, help="processes; the result is the same for any number")] = 1,
    gzip: Annotated[bool, typer.Option("--gzip", help="pack the output")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Raw documents into clean sentences of one language, split by document, without duplicates."""
    from hansa.cli.import_report import bar, show
    from hansa.data.importing import Settings, import_text, read_key

    settings = Settings(
        language=language,
        kind=kind,
        documents=documents,
        field=field,
        valid=valid,
        test=test,
        shortest=shortest,
        longest=longest,
        near=near,
        citations=keep_citations,
        keep_other_languages=keep_other_languages,
        memory=memory,
        workers=workers,
        gzip=gzip,
        deidentify=deidentify,
        key=read_key(key_file) if key_file else "",
        style=style,
    )
    with bar(language) as progress:
        report = import_text(paths, out, settings, progress)
    finish(format, report, lambda: show(report, str(out)))


@data.command("deidentify")
def data_deidentify(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help="files or folders of texts")],
    out: Annotated[Path | None, typer.Option(help="the folder to write to")] = None,
    language: Annotated[str, typer.Option(help="of the rows that have no 'lang'")] = "",
    text: Annotated[str, typer.Option(help="the field that holds the text")] = "text",
    style: Annotated[str, typer.Option(help="surrogates, or tags such as [NAME]")] = "surrogates",
    finder: Annotated[
        str, typer.Option("--with", metavar="SPEC", help="rules, module:Class or file.py:Class")
    ] = "rules",
    key_file: Annotated[Path | None, typer.Option(help="the secret behind the surrogates")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="only score against annotated files")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Replace names, dates, phones, addresses and identifiers, or measure how many of them are found."""
    from hansa.data.deidentification import files as whole
    from hansa.data.deidentification.deidentify import check_style, load
    from hansa.data.deidentification.keys import surrogate_key

    check_style(style)
    if measure:
        scores = whole.score_files(paths, text, language, load(finder))
        finish(format, scores, lambda: _show_scores(scores))
        return
    if out is None:
        raise UserError("hansa data deidentify: say where to write with --out FOLDER, or score with --measure")
    chosen = load(finder)
    key = surrogate_key(key_file, out)
    report = whole.deidentify_files(
        paths, out, text, language, chosen, key, style, lambda line: errors.print(line, highlight=False)
    )

    def show() -> None:
        rows = [[kind, f"{count:,}"] for kind, count in report["replaced"].items()]
        output.print(table(["", "replaced"], rows, f"{report['texts']:,} texts: {out}"))
        if report["copied_fields"]:
            names = ", ".join(report["copied_fields"])
            output.print(f"Copied as they are, unread: the fields {names}; give one with --text, or leave them out")
        _show_problems(report)

    finish(format, report, show)


def _show_scores(scores: dict[str, Any]) -> None:
    shares = ("character_recall", "character_precision", "recall", "precision", "exact_recall", "exact_precision")
    rows = []
    for code, found in scores["languages"].items():
        for kind, one in {"all": found["overall"], **found["types"]}.items():
            values = ["–" if one[share] is None else f"{one[share]:.4f}" for share in shares]
            rows.append([f"{code} {kind}", f"{one['entities']:,}", f"{one['findings']:,}", *values])
    output.print(table(["", "gold", "found", *(s.replace("_", " ") for s in shares)], rows, "Personal details found"))
    output.print(
        "character recall: share of personal characters covered; recall: entities covered to the last character; "
        "precision: findings that overlap an entity; exact: same span and type",
        highlight=False,
    )
    _show_problems(scores)


def _show_problems(report: dict[str, Any]) -> None:
    if report["bad_rows"]:
        first = "; ".join(report["first_problems"])
        rows = "row" if report["bad_rows"] == 1 else "rows"
        output.print(f"{report['bad_rows']:,} {rows} could not be used: {first}", highlight=False, markup=False)
