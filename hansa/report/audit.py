"""What audits found, as tables and curves: the same in the terminal and in the report."""

import json
from pathlib import Path
from typing import Any

from hansa.report.charts import lines

SHOWN = (1, 5, 10, 30, 90)  # guesses per position
WHERE = {"same": "at its position", "any": "at any position"}


def folder(run: Path) -> Path:
    """Where a run keeps what audits found."""
    return run / "audit"


def keep(run: Path, found: dict[str, Any]) -> Path:
    folder(run).mkdir(exist_ok=True)
    file = folder(run) / f"{found['kind']}.json"
    file.write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")
    return file


def sections(run: Path) -> list[dict[str, Any]]:
    """What the report shows of every audit that a run has had."""
    audits = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder(run).glob("*.json"))]
    return [
        {
            "title": found["kind"].capitalize().replace("-", " "),
            "tables": tables(found),
            "charts": charts(found),
            "series": series(found),
            "reading": found["reading"],
        }
        for found in audits
    ]


def tables(found: dict[str, Any]) -> list[dict[str, Any]]:
    if found["kind"] == "gradient-inversion":
        return [_updates(found)]
    if found["kind"] == "price":
        return [_price(found)]
    return [_hits(found, where) for where in WHERE] + [_sizes(found)]


def series(found: dict[str, Any]) -> list[str]:
    return list(found["curves"]) if "curves" in found else []


def charts(found: dict[str, Any]) -> list[str]:
    if found["kind"] == "price":
        drawn = [(name, list(map(tuple, points))) for name, points in found["curves"].items()]
        return [lines(f"{found['metric']} over tokens named", drawn, "share of tokens named at their position")]
    return [
        lines(
            f"Hits@N {words}",
            [(name, list(enumerate(curve[where], 1))) for name, curve in found["curves"].items()],
            "N guesses per position",
        )
        for where, words in WHERE.items()
        if "curves" in found
    ]


def _hits(found: dict[str, Any], where: str) -> dict[str, Any]:
    rows = [[name, *(percent(curve[where][n - 1]) for n in SHOWN)] for name, curve in found["curves"].items()]
    layers = "all layers" if found["layers"] == "all" else "the last layer"
    title = f"Hits@N {WHERE[where]}: {found['kind']} of {found['centroids']} centroids ({layers})"
    return {"title": title, "columns": ["", *(f"@{n}" for n in SHOWN)], "rows": rows}


def _sizes(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [
            size["members"],
            str(size["centroids"]),
            percent(size["same"]),
            percent(size["same_frequent"]),
            percent(size["any"]),
            percent(size["any_frequent"]),
            percent(size["rare"]),
            percent(size["rare_frequent"]),
        ]
        for size in found["sizes"]
    ]
    columns = ["members", "centroids"]
    for what in ("Hits@1 at position", "Hits@1 anywhere", "rare tokens named"):
        columns += [what, "(frequent)"]
    return {"title": "By the size of the cluster, beside the most frequent tokens", "columns": columns, "rows": rows}


def _updates(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [
            row["defence"],
            row["amount"],
            f"{row['tokens']:,}",
            percent(row["rows"]),
            percent(row["span"]),
            percent(row["frequent"]),
            "–" if row["epsilon"] is None else f"{row['epsilon']:,.3g}",
        ]
        for row in found["rows"]
    ]
    columns = ["defence", "trained on", "tokens", "by rows", "by span", "(frequent)", "ε"]
    return {"title": f"Tokens read from one update of {found['silo']}", "columns": columns, "rows": rows}


def _price(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [
            row["defence"],
            f"{row['score']:.4f}" + (f" ± {row['spread']:.4f}" if row["spread"] is not None else ""),
            f"{row['cost']:+.4f}",
            percent(row["same"]),
            percent(row["rare"]),
            percent(row["same_frequent"]),
            f"{row['told']:,}",
            f"{row['withheld']:,}",
            "–" if row["epsilon"] is None else f"{row['epsilon']:,.3g}",
        ]
        for row in found["rows"]
    ]
    columns = ["defence", found["metric"], "cost", "named at position", "rare named", "(frequent)"]
    columns += ["centroids told", "withheld", "ε"]
    return {"title": "What each defence costs, and what it leaves to an attacker", "columns": columns, "rows": rows}


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
