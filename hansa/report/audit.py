"""The findings of privacy audits as tables and charts, for the terminal and the report."""

from collections.abc import Callable, Sequence
from typing import Any

from hansa.report.charts import lines

SHOWN = (1, 5, 10, 30, 90)  # guesses per position
WHERE = {"same": "at its position", "any": "at any position"}


def sections(audits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The report's section of every audit of a run."""
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
    """The tables of an audit, by its kind."""
    if found["kind"] in ONE_TABLE:
        return [ONE_TABLE[found["kind"]](found)]
    return [_hits(found, where) for where in WHERE] + [_sizes(found)]


def series(found: dict[str, Any]) -> list[str]:
    """The names of the curves of an audit, in the order in which they are drawn."""
    return list(found["curves"]) if "curves" in found else []


def charts(found: dict[str, Any]) -> list[str]:
    """The charts of an audit: hits over guesses, or scores over recovered tokens."""
    if found["kind"] == "price":
        drawn = [(name, list(map(tuple, points))) for name, points in found["curves"].items()]
        title = f"{found['metric']} over tokens recovered"
        return [lines(title, drawn, "share of tokens recovered at their position")]
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
    for what in ("Hits@1 at position", "Hits@1 anywhere", "rare tokens recovered"):
        columns += [what, "(frequent)"]
    title = "By cluster size, beside a guess of the most frequent tokens"
    return {"title": title, "columns": columns, "rows": rows}


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
    return {"title": f"Tokens recovered from one update of {found['silo']}", "columns": columns, "rows": rows}


def _price(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [
            row["defence"],
            f"{row['score']:.4f}" + (f" ± {row['spread']:.4f}" if row["spread"] is not None else ""),
            f"{row['cost']:+.4f}",
            percent(row["same"]),
            percent(row["rare"]),
            percent(row["same_frequent"]),
            f"{row['shared']:,}",
            f"{row['withheld']:,}",
            "–" if row["epsilon"] is None else f"{row['epsilon']:,.3g}",
        ]
        for row in found["rows"]
    ]
    columns = ["defence", found["metric"], "cost", "recovered at position", "rare recovered", "(frequent)"]
    columns += ["centroids shared", "withheld", "ε"]
    return {"title": "The cost of each defence, and what an attack still recovers", "columns": columns, "rows": rows}


def _crafted(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [
            row["defence"],
            str(row["texts"]),
            f"{row['tokens']:,}",
            percent(row["recovered"]),
            percent(row["placed"]),
            percent(row["right"]),
            percent(row["frequent"]),
            f"{row['distance']:,.2g}",
            _epsilon(row["epsilon"]),
        ]
        for row in found["rows"]
    ]
    columns = ["defence", "texts", "tokens", "recovered", "with position", "of guesses right", "(frequent)"]
    title = f"Tokens that a crafted model reads from one update of {found['silo']}"
    return {"title": title, "columns": [*columns, "distance", "ε"], "rows": rows}


def _membership(found: dict[str, Any]) -> dict[str, Any]:
    def row(name: str, one: dict[str, Any]) -> list[str]:
        """The cells of one attack: AUC, its interval, and the share of members found."""
        return [name, f"{one['value']:.3f}", f"{one['low']:.3f} to {one['high']:.3f}", percent(one.get("found"))]

    rows = [row(one["attack"], one) for one in found["rows"]]
    rows += [row(f"loss, model of round {one['round']}", one) for one in found["rounds"]]
    if found["control"]:
        rows.append(row("(control: the silo alone)", found["control"]))
    columns = ["attack", "AUC", "95% interval", "members found at 5% false positives"]
    title = f"Membership of rows of {found['silo']}: {found['members']} members, {found['others']} non-members"
    return {"title": title, "columns": columns, "rows": rows}


def _canary(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [row["protection"], *(f"{bits:.1f}" for bits in row["exposure"].values()), _epsilon(row["epsilon"])]
        for row in found["rows"]
    ]
    columns = ["protection", *(f"{times}×" for times in found["rows"][0]["exposure"]), "ε"]
    title = f"Exposure in bits of {found['canaries']} canaries of {found['silo']} by repetitions"
    return {"title": f"{title}, among {found['candidates']:,} candidates", "columns": columns, "rows": rows}


def _backdoor(found: dict[str, Any]) -> dict[str, Any]:
    rows = [
        [row["defence"], percent(row["success"]), f"{row['accuracy']:.4f}", _epsilon(row["epsilon"])]
        for row in found["rows"]
    ]
    title = f"A backdoor of {found['silo']}, one malicious silo of {found['silos']}"
    return {"title": title, "columns": ["defence", "success of the trigger", "accuracy", "ε"], "rows": rows}


def _epsilon(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3g}"


ONE_TABLE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "gradient-inversion": _updates,
    "price": _price,
    "crafted-model": _crafted,
    "membership": _membership,
    "canary": _canary,
    "backdoor": _backdoor,
}


def percent(share: float | None) -> str:
    """A share as a percentage; a dash if there is none."""
    return "–" if share is None else f"{share:.1%}"
