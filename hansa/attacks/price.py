"""The price of defences: runs a federation with each defence of its shared centroids, and attacks every run.

The defences are the member floor (smaller clusters, and positions that fewer texts reach, are withheld) and noise
(methods/centroid_noise.py). Every run logs the shared knowledge, and embedding inversion, the stronger of our attacks,
is applied to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hansa.attacks import centroids as leak
from hansa.client.release_log import logged_releases
from hansa.config.checks import check
from hansa.config.federation import Federation
from hansa.config.plugins import load_plugins
from hansa.core.errors import UserError
from hansa.core.method import METHODS
from hansa.core.settings import Named
from hansa.privacy.dp.prices import exchange_price
from hansa.report import html
from hansa.runs.results import RunResults, save_audit
from hansa.runs.run import run
from hansa.runs.summary import average

FLOORS = (5, 20, 50)
NOISES = (0.01, 0.1, 1.0)
CENTROIDS = 16  # attacked in each run
NONE = "none"
NOTHING: dict[str, Any] = {"same": 0.0, "rare": None, "same_frequent": None}


@dataclass(frozen=True)
class DefenceRuns:
    """One defence: its name, the federation with it, and for each seed the run's score and its `leak`."""

    defence: str
    federation: Federation
    leaks: Sequence[dict[str, Any]]  # of the runs whose release log has shared knowledge
    scores: Sequence[float]


def price_defences(
    federation: Federation, seeds: int, out: Path, workers: int | None, watch: Callable[[str], Iterable[object]]
) -> dict[str, Any]:
    """Run the federation with every defence and ``seeds`` seeds; return the findings as plain values.

    ``out``: the folder for the runs and the report; the findings are also saved in the first run. ``watch`` returns the
    callbacks of a run by its name. Raises `UserError` for a method that shares no centroids.
    """
    load_plugins(federation.plugins)
    defended = defences(federation)
    for one in defended.values():
        check(one)
    tried, runs = [], list[Path]()
    for name, one in defended.items():
        folders, scores = [], []
        for seed in range(federation.seed, federation.seed + seeds):
            folder = out / f"{name.replace(' ', '-')}-{seed}"
            outcome = run(one.model_copy(update={"seed": seed}), folder, workers=workers, callbacks=watch(folder.name))
            scores.append(average(outcome.metrics, RunResults.read(folder).task.headline) or 0.0)
            folders.append(folder)
        leaks = [leak_of(folder, CENTROIDS) for folder in folders if has_logged_knowledge(folder)]
        tried.append(DefenceRuns(name, one, leaks, scores))
        runs += folders
    metric = RunResults.read(runs[0]).task.headline
    found = findings(metric, tried, {"floor": (NONE, "floor"), "noise": (NONE, "noise")})
    save_audit(runs[0], found)
    html.write(
        [(folder.name, folder) for folder in runs], out / "report.html", f"{federation.name}: the price of defences"
    )
    return found


def findings(metric: str, tried: Sequence[DefenceRuns], kinds: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """What each defence costs, and what an attacker still reads, as plain values.

    ``tried``: the runs, first those without a defence. ``kinds``: curve → how the names of its defences begin.
    """
    rows: list[dict[str, Any]] = []
    for one in tried:
        rows.append(_row(one, rows))
    found = {
        "kind": "price",
        "metric": metric,
        "seeds": len(tried[0].scores),
        "rows": rows,
        "curves": {name: curve(rows, begins) for name, begins in kinds.items()},
    }
    return found | {"reading": reading(found)}


def has_logged_knowledge(folder: Path) -> bool:
    """Whether the release log of a run has shared knowledge."""
    return any(logged_releases(folder, "knowledge"))


def defences(federation: Federation) -> dict[str, Federation]:
    """Name → the federation with that defence, first without one; only the defence's settings of the method change."""
    method = federation.method
    known = METHODS.entries.get(method.name)
    if known is None or not {"floor", "noise"} <= set(known.model_fields):
        raise UserError(
            f"method '{method.name}' shares no centroids with these defences ('floor', 'noise'); use 'method: fedkc'"
        )

    def variant(**settings: Any) -> Federation:
        """The federation with other defence settings of its method, and a release log that contains the knowledge."""
        changed = {key: value for key, value in method.settings.items() if key not in ("floor", "noise")} | settings
        logged = federation.release_log.model_copy(update={"knowledge": True})
        return federation.model_copy(update={"method": Named(name=method.name, **changed), "release_log": logged})

    found = {NONE: variant(floor=1)}
    found |= {f"floor {floor}": variant(floor=floor) for floor in FLOORS}
    return found | {f"noise {z:g}": variant(floor=1, noise={"multiplier": z, "seeded": True}) for z in NOISES}


def leak_of(folder: Path, centroids: int) -> dict[str, Any]:
    """What the release log of a run shared and withheld, and what embedding inversion reads in ``centroids`` of it."""
    logged = list(logged_releases(folder, "knowledge"))
    shared = sum(len(one.notes["members"]) for one in logged)
    counted = {"shared": shared, "withheld": sum(one.notes["withheld"] for one in logged)}
    if not shared:
        return counted | NOTHING
    found = leak.attack_knowledge(folder, "embedding-inversion", centroids)
    return counted | {
        "same": found["curves"]["attack"]["same"][0],
        "rare": found["rare"]["attack"],
        "same_frequent": found["curves"]["most frequent tokens"]["same"][0],
    }


def _row(one: DefenceRuns, before: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float | None:
        """Mean of one figure over the attacked runs that have it; None if no run has it."""
        known = [found[key] for found in one.leaks if found[key] is not None]
        return fmean(known) if known else None

    score, cost = fmean(one.scores), exchange_price(one.federation, one.federation.rounds)
    return {
        "defence": one.defence,
        "score": score,
        "spread": stdev(one.scores) if len(one.scores) > 1 else None,
        "cost": score - before[0]["score"] if before else 0.0,
        "same": mean("same"),
        "rare": mean("rare"),
        "same_frequent": mean("same_frequent"),
        "shared": sum(found["shared"] for found in one.leaks),
        "withheld": sum(found["withheld"] for found in one.leaks),
        "epsilon": cost.epsilon if cost else None,
    }


def curve(rows: Sequence[dict[str, Any]], begins: tuple[str, ...]) -> list[tuple[float, float]]:
    """(Share of tokens recovered, score) of every defence whose name begins with one of ``begins``."""
    return sorted((row["same"], row["score"]) for row in rows if row["defence"].startswith(begins))


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    bare, *defended = found["rows"]
    spread = "one run each: differences of a point or two may be chance" if found["seeds"] == 1 else "means over seeds"
    lines = [
        f"Without a defence, {found['metric']} is {bare['score']:.4f} and inversion recovers {bare['same']:.1%} of "
        f"tokens at their position ({spread})."
    ]
    for row in defended:
        withheld = "" if row["shared"] else "; no centroid was shared"
        cost = f", ε = {row['epsilon']:,.3g}" if row["epsilon"] is not None else ""
        change = f"{found['metric']} {row['cost']:+.4f}"
        lines.append(f"{row['defence']}: {change}, {row['same']:.1%} of tokens recovered{cost}{withheld}.")
    return lines
