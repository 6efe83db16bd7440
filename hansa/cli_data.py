"""`hansa data`: what stands before a federation. One thin command per verb."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.console import Format, FormatOption, finish, output
from hansa.errors import UserError

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
    from hansa.data import generator

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
    from hansa.data import icd10
    from hansa.errors import did_you_mean

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
