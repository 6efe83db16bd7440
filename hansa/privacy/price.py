"""What a defence of exchanged centroids costs, and what it leaves to an attacker: the same federation, run with each.

Defences are the member floor (smaller clusters, and positions that fewer texts reach, are withheld) and noise
(release.py). Every run records what its silos told, and embedding inversion, the stronger of our attacks, is set on it.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hansa.checks import check
from hansa.config import Federation, Named
from hansa.errors import UserError
from hansa.methods import METHODS
from hansa.privacy import leak
from hansa.privacy.release import spent
from hansa.record import releases
from hansa.registry import load_plugins
from hansa.report import audit, html
from hansa.run import run
from hansa.watch import Watcher

FLOORS = (5, 20, 50)
NOISES = (0.01, 0.1, 1.0)
CENTROIDS = 16  # attacked in each run
NOTHING: dict[str, Any] = {"same": 0.0, "rare": None, "same_frequent": None}


def price(
    federation: Federation, seeds: int, out: Path, workers: int | None, watch: Callable[[str], Watcher]
) -> dict[str, Any]:
    """Run every defence with so many seeds; the findings as plain values, kept with the first run."""
    load_plugins(federation.uses)
    defended = defences(federation)
    for one in defended.values():
        check(one)
    rows: list[dict[str, Any]] = []
    folders = []
    for name, one in defended.items():
        scores, leaks = [], []
        for seed in range(federation.seed, federation.seed + seeds):
            folder = out / f"{name.replace(' ', '-')}-{seed}"
            outcome = run(one.model_copy(update={"seed": seed}), folder, workers=workers, watcher=watch(folder.name))
            scores.append(html.average(outcome.metrics, html.see(folder).task.headline) or 0.0)
            leaks.append(_leak(folder))
            folders.append((folder.name, folder))
        rows.append(_row(name, one, scores, leaks, rows))
    found = {
        "kind": "price",
        "metric": html.see(folders[0][1]).task.headline,
        "seeds": seeds,
        "rows": rows,
        "curves": curves(rows),
    }
    found |= {"reading": reading(found)}
    audit.keep(folders[0][1], found)
    html.write(folders, out / "report.html", f"{federation.name}: the price of defences")
    return found


def defences(federation: Federation) -> dict[str, Federation]:
    """The federation without a defence, then with each; of the method's settings only those of the defence change."""
    method = federation.method
    known = METHODS.entries.get(method.name)
    if known is None or not {"floor", "noise"} <= set(known.model_fields):
        raise UserError(
            f"method '{method.name}' exchanges no centroids, so there is nothing to price; use it with 'method: fedkc'"
        )

    def variant(**settings: Any) -> Federation:
        changed = {key: value for key, value in method.settings.items() if key not in ("floor", "noise")} | settings
        recorded = federation.record.model_copy(update={"offers": True})
        return federation.model_copy(update={"method": Named(name=method.name, **changed), "record": recorded})

    found = {"no defence": variant(floor=1)}
    found |= {f"floor {floor}": variant(floor=floor) for floor in FLOORS}
    return found | {f"noise {z:g}": variant(floor=1, noise={"multiplier": z}) for z in NOISES}


def _leak(folder: Path) -> dict[str, Any]:
    offers = list(releases(folder, "offer"))
    told = sum(len(one.notes["members"]) for one in offers)
    counted = {"told": told, "withheld": sum(one.notes["withheld"] for one in offers)}
    if not told:
        return counted | NOTHING
    found = leak.attack(folder, "embedding-inversion", CENTROIDS)
    return counted | {
        "same": found["curves"]["attack"]["same"][0],
        "rare": found["rare"]["attack"],
        "same_frequent": found["curves"]["most frequent tokens"]["same"][0],
    }


def _row(
    name: str, one: Federation, scores: list[float], leaks: list[dict[str, Any]], before: list[dict[str, Any]]
) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        known = [found[key] for found in leaks if found[key] is not None]
        return fmean(known) if known else None

    score, cost = fmean(scores), spent(one, one.rounds)
    return {
        "defence": name,
        "score": score,
        "spread": stdev(scores) if len(scores) > 1 else None,
        "cost": score - before[0]["score"] if before else 0.0,
        "same": mean("same"),
        "rare": mean("rare"),
        "same_frequent": mean("same_frequent"),
        "told": sum(found["told"] for found in leaks),
        "withheld": sum(found["withheld"] for found in leaks),
        "epsilon": cost.epsilon if cost else None,
    }


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """For floors and for noise: (share of tokens named, score), each beginning without a defence."""
    return {
        kind: sorted((row["same"], row["score"]) for row in rows if row["defence"].startswith(("no", kind)))
        for kind in ("floor", "noise")
    }


def reading(found: dict[str, Any]) -> list[str]:
    bare, *defended = found["rows"]
    spread = "one run each: differences of a point or two may be chance" if found["seeds"] == 1 else "means over seeds"
    lines = [
        f"Without a defence, {found['metric']} is {bare['score']:.4f} and inversion names {bare['same']:.1%} of "
        f"tokens at their position ({spread})."
    ]
    for row in defended:
        told = "" if row["told"] else "; nothing was told, so nothing was exchanged"
        price = f", ε = {row['epsilon']:,.3g}" if row["epsilon"] is not None else ""
        lines.append(f"{row['defence']}: {found['metric']} {row['cost']:+.4f}, {row['same']:.1%} named{price}{told}.")
    return lines
