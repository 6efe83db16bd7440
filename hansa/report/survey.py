"""A survey as tables: in the terminal, and as one page of HTML."""

from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console

from hansa.report.text import table
from hansa.runs.survey import Pair, Survey

WIDTH = 160  # of the page, in characters
MAX_COLUMNS = 12  # silos beside one another; with more, pairs are listed
MAX_PAIRS = 30


def print_survey(console: Console, seen: Survey) -> None:
    """Print the figures of a survey, and what left the silos for them."""
    few = f"<{seen.floor}"
    columns = list(seen.silos.columns)
    rows = [[str(name), *(_cell(value, few) for value in line)] for name, *line in seen.silos.itertuples()]
    console.print(table(["silo", *columns], rows, f"{seen.federation}: {len(seen.figures)} silos"))
    for what, title in (("words", "Words per text"), ("languages", "Languages"), ("labels", "Labels")):
        counts = seen.counts(what)
        if not counts.shape[1]:
            continue
        total = counts.sum(axis=1)
        heads = [f"{key}–{2 * key - 1}" if what == "words" and key else str(key) for key in counts.columns]
        none = {name: few if what in one.withheld else "0" for name, one in seen.figures.items()}
        shares = [
            [name, *(none[name] if value != value or value is None else f"{value / total[name]:.1%}" for value in line)]
            for name, *line in counts.itertuples()
        ]
        console.print(table(["silo", *heads], shares, f"{title}: share of the rows that are counted"))
    _pairs(console, seen.overlap, "Overlap of vocabularies (Jaccard similarity, estimated)", "–", ".0%")
    shown = (
        f"Near-duplicates: documents of a line's silo that a column's silo has too (similarity ≥ {seen.similarity:g})"
    )
    _pairs(console, seen.duplicates, shown, few, ",")
    for name, reason in seen.failures.items():
        console.print(f"{name}: {reason}", highlight=False, markup=False)
    console.print("[bold]What left the silos[/]")
    for line in seen.releases:
        console.print(f"  · {line}", highlight=False, markup=False)


def _cell(value: object, few: str) -> str:
    if isinstance(value, str):
        return value
    missing = value is None or value != value
    return few if missing else f"{int(value):,}"  # type: ignore[call-overload]


def _pairs(console: Console, pairs: Mapping[Pair, float | None], title: str, missing: str, shape: str) -> None:
    """A square of silos, or the largest pairs where there are many silos."""
    if not pairs:
        return
    names = list(dict.fromkeys(name for pair in pairs for name in pair))

    def cell(pair: Pair) -> str:
        """The value of a pair as text: empty if the pair is not compared, ``missing`` if its value is not known."""
        value = pairs.get(pair, None)
        return "" if pair not in pairs else missing if value is None else format(value, shape)

    if len(names) <= MAX_COLUMNS:
        console.print(table(["", *names], [[a, *(cell((a, b)) for b in names)] for a in names], title))
        return
    known = sorted((pair for pair in pairs if pairs[pair]), key=lambda pair: -(pairs[pair] or 0))
    rows = [[a, b, cell((a, b))] for a, b in known[:MAX_PAIRS]]
    console.print(table(["silo", "other silo", ""], rows, f"{title}: the largest {len(rows)} of {len(pairs):,} pairs"))


def survey_page(seen: Survey) -> str:
    """A page of HTML with the same tables; it loads nothing from outside."""
    console = Console(file=StringIO(), width=WIDTH, soft_wrap=True, record=True, force_jupyter=False)
    print_survey(console, seen)
    return console.export_html(inline_styles=True)


def write_page(seen: Survey, file: Path) -> Path:
    """Write the page of a survey; returns its file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(survey_page(seen), encoding="utf-8")
    return file
