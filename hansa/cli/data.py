"""`hansa data`: what stands before a federation. One thin command per verb."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.cli.deidentification_report import show_finder, show_preview, show_problems, show_scores
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
        """Print the file and the number of rows of each language."""
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
        """Print the statistics of each file or folder; leave out those that are empty or zero."""
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
    kind: Annotated[
        str,
        typer.Option(help="auto, text, pdf (its text), html, xml, json, wiki, csv, cda, hl7, rtf, docx, email, zip"),
    ] = "auto",
    documents: Annotated[str, typer.Option(help="in text, a document is one of: files, blocks, lines")] = "files",
    field: Annotated[str, typer.Option(help="the field of JSON, or column of a table, with the text")] = "text",
    valid: Annotated[float, typer.Option(min=0, max=1, help="share of documents for validation")] = 0.05,
    test: Annotated[float, typer.Option(min=0, max=1, help="share of documents for testing")] = 0.1,
    shortest: Annotated[int, typer.Option(min=1, help="characters of the shortest sentence kept")] = 10,
    longest: Annotated[int, typer.Option(min=1, help="characters of the longest sentence kept")] = 1000,
    near: Annotated[float, typer.Option(min=0, max=1, help="documents as alike as this are duplicates; 0: off")] = 0.8,
    keep_citations: Annotated[bool, typer.Option("--keep-citations", help="keep brackets such as [12, 13]")] = False,
    keep_other_languages: Annotated[bool, typer.Option("--keep-other-languages", help="do not check")] = False,
    deidentify: Annotated[
        str, typer.Option(metavar="SPEC", help="replace personal details of the cleaned text, e.g. rules+lists")
    ] = "",
    keep: Annotated[str, typer.Option(help="types of personal details to leave alone, e.g. AGE,PROFESSION")] = "",
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
        keep_details=_listed(keep),
        key=read_key(key_file) if key_file else "",
        style=style,
    )
    with bar(language) as progress:
        report = import_text(paths, out, settings, progress)
    finish(format, report, lambda: show(report, str(out)))
    if not report["documents"]["kept"]:
        errors.print("Nothing was kept: see why above, or in report.json", highlight=False)
        raise typer.Exit(1)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@data.command("deidentify")
def data_deidentify(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help="files or folders of texts")],
    out: Annotated[Path | None, typer.Option(help="the folder to write to")] = None,
    language: Annotated[str, typer.Option(help="of the rows that have no 'lang'")] = "",
    text: Annotated[str, typer.Option(help="the field that holds the text")] = "text",
    style: Annotated[str, typer.Option(help="surrogates, or tags such as [NAME]")] = "surrogates",
    finder: Annotated[
        str,
        typer.Option("--with", metavar="SPEC", help="rules, lists, model:FOLDER, presidio, module:Class, or A+B"),
    ] = "rules+lists",
    keep: Annotated[str, typer.Option(help="types to leave alone, e.g. AGE,PROFESSION")] = "",
    also: Annotated[str, typer.Option(help="types that are not found by default: RELATIVE")] = "",
    age_limit: Annotated[int, typer.Option(min=0, metavar="N", help="find ages above N; 0: all ages")] = 89,
    patient: Annotated[
        str, typer.Option(help="field that says which neighbouring rows are about one patient")
    ] = "patient",
    key_file: Annotated[Path | None, typer.Option(help="the secret behind the surrogates")] = None,
    preview: Annotated[int, typer.Option(min=0, help="only show the first N details that would be replaced")] = 0,
    measure: Annotated[bool, typer.Option("--measure", help="only score against annotated files")] = False,
    types: Annotated[str, typer.Option("--map", help="types of the annotation, e.g. WARD=HOSPITAL,NHS=ID")] = "",
    format: FormatOption = Format.text,
) -> None:
    """Replace names, dates, numbers, places and more, or measure how many of them leak."""
    from hansa.data.cache import cache_folder
    from hansa.data.deidentification import files as whole
    from hansa.data.deidentification.deidentify import check_style
    from hansa.data.deidentification.finders import load
    from hansa.data.deidentification.keys import surrogate_key

    check_style(style)
    chosen = load(finder, _listed(keep), _listed(also), age_limit)
    if measure:
        scores = whole.score_files(paths, text, language, chosen, _mapped(types))
        finish(format, scores, lambda: show_scores(scores))
        return
    if preview:
        found = list(whole.preview_files(paths, text, language, chosen, preview))
        finish(format, {"details": found}, lambda: show_preview(found))
        return
    if out is None:
        raise UserError("hansa data deidentify: say where to write with --out FOLDER, or score with --measure")
    key = surrogate_key(key_file, cache_folder(), out)
    report = whole.deidentify_files(
        paths, out, text, language, chosen, key, style, lambda line: errors.print(line, highlight=False), patient
    )

    def show() -> None:
        """Print how many details of each type were replaced, and what was skipped or copied unread."""
        rows = [[kind, f"{count:,}"] for kind, count in report["replaced"].items()]
        output.print(table(["", "replaced"], rows, f"{report['texts']:,} texts: {out}"))
        for file in report["skipped"]:
            output.print(f"Skipped, because its format is not read: {file}", highlight=False, markup=False)
        if report["copied_fields"]:
            names = ", ".join(report["copied_fields"])
            output.print(f"Copied as they are, unread: the fields {names}; give one with --text, or leave them out")
        show_problems(report)

    finish(format, report, show)


def _mapped(text: str) -> dict[str, str]:
    pairs = [part.split("=") for part in _listed(text)]
    if any(len(pair) != 2 for pair in pairs):
        raise UserError(f"--map '{text}' cannot be read; write pairs such as WARD=HOSPITAL,NHS=ID")
    return {name.strip(): kind.strip().upper() for name, kind in pairs}


@data.command("train-finder")
def data_train_finder(
    out: Annotated[Path, typer.Option(help="the folder for the finder, new or empty")],
    corpora: Annotated[list[Path] | None, typer.Argument(metavar="CORPUS…", help="annotated texts of your own")] = None,
    language: Annotated[str, typer.Option(help="of rows of the corpora that have no 'lang'")] = "",
    languages: Annotated[str, typer.Option(help="of the generated notes; default all eleven")] = "",
    notes: Annotated[int, typer.Option(min=1, help="generated notes per language")] = 600,
    passes: Annotated[int, typer.Option(min=1, help="passes over the notes")] = 4,
    federated: Annotated[bool, typer.Option("--federated", help="a silo per language and corpus")] = False,
    workers: Annotated[int, typer.Option(min=0, help="processes of a federated run")] = 0,
    seed: int = 0,
    format: FormatOption = Format.text,
) -> None:
    """Train a finder of personal details on generated notes and annotated corpora (about eight minutes on one core)."""
    from hansa.report.progress import Progress
    from hansa.runs.finder import FinderSettings, train_finder

    chosen = _listed(languages) or FinderSettings.languages
    progress = Progress(errors, "finder")
    try:
        settings = FinderSettings(chosen, notes, passes, federated=federated, workers=workers, seed=seed)
        report = train_finder(out, corpora or [], language, settings, [progress])
    finally:
        progress.stop()
    finish(format, report, lambda: show_finder(report, str(out)))
