"""What `hansa data deidentify` and `hansa data train-finder` print for people."""

from typing import Any

from hansa.cli.console import output
from hansa.report.text import table

SHARES = ("leak_rate", "character_recall", "character_precision", "recall", "precision")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def show_scores(scores: dict[str, Any]) -> None:
    """Print leak rates by language and type, and by document."""
    rows = []
    for code, found in scores["languages"].items():
        for kind, one in _classes(found).items():
            values = [_share(one.get(share)) for share in SHARES]
            found_here = f"{one['findings']:,}" if "findings" in one else "–"  # told apart by type only
            rows.append([f"{code} {kind}", f"{one['entities']:,}", f"{one['leaked']:,}", found_here, *values])
    columns = ["", "gold", "leaked", "found", *(s.replace("_", " ") for s in SHARES)]
    output.print(table(columns, rows, "Personal details that leak"))
    for code, found in scores["languages"].items():
        one = found["documents"]
        output.print(f"{code}: {one['leaking']:,} of {one['texts']:,} texts leak at least one detail", highlight=False)
    output.print(
        "leak rate: share of details with a letter or digit left in clear; character recall: share of personal "
        "characters covered; recall: details covered to the last character; precision: findings that overlap a detail; "
        "a name is labelled if a label with a colon, or a header field, stands before it on its line",
        highlight=False,
    )
    show_problems(scores)


def _classes(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The scores of all details and of every type; after names, those of labelled names and names in running text."""
    shown = {"all": found["overall"]}
    for kind, one in found["types"].items():
        shown[kind] = one
        if kind == "NAME":
            shown |= {f"NAME, {which}": some for which, some in found["names"].items()}
    return shown


def show_preview(details: list[dict[str, str]]) -> None:
    """Print details that would be replaced, in their context."""
    for one in details:
        before, after = (one[side].replace("\n", " ") for side in ("before", "after"))
        output.print(
            f"{one['place']}  {one['type']:<10} …{before}[[{one['found']}]]{after}…", highlight=False, markup=False
        )


def show_finder(report: dict[str, Any], folder: str) -> None:
    """Print the leak rates of a trained finder on held-back generated notes."""
    kinds = sorted({kind for rates in report["leaks"].values() for kind in rates})
    rows = [[code, *(_share(rates.get(kind)) for kind in kinds)] for code, rates in report["leaks"].items()]
    output.print(
        table(["", *kinds], rows, f"Leak rates on held-back generated notes, without rules and lists: {folder}")
    )
    output.print(
        f"use it: hansa data deidentify FILE… --with rules+lists+model:{folder}", highlight=False, markup=False
    )


def show_problems(report: dict[str, Any]) -> None:
    """Print how many rows could not be used, and why."""
    if report["bad_rows"]:
        first = "; ".join(report["first_problems"])
        rows = "row" if report["bad_rows"] == 1 else "rows"
        output.print(f"{report['bad_rows']:,} {rows} could not be used: {first}", highlight=False, markup=False)
