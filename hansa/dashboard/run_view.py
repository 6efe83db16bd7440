"""What the pages show of a run, read from its directory while it goes on or after it ended.

The ledger and the journal are opened read-only. No plug-in that the run's settings name is executed.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import time
from typing import Any

import yaml

from hansa.config.federation import Federation
from hansa.core.errors import HansaError, UserError
from hansa.deploy.log_files import read_log
from hansa.deploy.run_log import RUN_LOG
from hansa.deploy.status import (
    JOURNAL,
    SERVER_FOLDER,
    NodeStatus,
    RefusalCount,
    is_running,
    read_refusals,
    read_status,
)
from hansa.runs.ledger import OWN
from hansa.tasks.base import TASKS

Point = tuple[float, float]
RECENT_SECONDS = 180.0  # since the last entry of a run without a lock, in which it counts as running
MAX_SETTINGS = 4 << 20  # bytes of federation.yaml
MAX_EVENTS, MAX_LINES = 200, 200
FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"
NO_METRIC = "loss"
_LEAST: dict[str, Any] = {"name": "x", "silos": {"x": {"train": "x"}}}  # a federation file with defaults alone


@dataclass(frozen=True)
class Curve:
    """A chart: its title, and for every series its name and its points (round, value)."""

    title: str
    series: tuple[tuple[str, tuple[Point, ...]], ...]


@dataclass(frozen=True)
class Traffic:
    """Bytes between the server and a node over the whole run, and the samples that its updates were made from."""

    node: str
    rounds: int
    down: int
    up: int
    samples: int


@dataclass(frozen=True)
class RunEvent:
    """Something that happened at a node."""

    at: float
    round: int
    node: str
    kind: str
    text: str


@dataclass(frozen=True)
class RunSummary:
    """One line of the list of runs."""

    id: str
    name: str
    task: str
    method: str
    state: str
    done: int  # rounds
    rounds: int
    silos: int
    changed: float  # when the ledger was last written, in seconds since 1970
    has_model: bool


@dataclass(frozen=True)
class RunView:
    """Everything that the page of a run shows."""

    summary: RunSummary
    model: str
    metric: str  # the task's main metric
    languages: tuple[Curve, ...]
    silos: tuple[Curve, ...]
    final: Mapping[str, Mapping[str, float]]  # group → metric → value on the whole test set
    nodes: tuple[NodeStatus, ...]
    traffic: tuple[Traffic, ...]
    weights: Mapping[str, float]  # node → share of the samples of the last round
    refusals: tuple[RefusalCount, ...]
    events: tuple[RunEvent, ...]
    log: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    seconds: float  # of all rounds together


def state_of(folder: Path, now: float) -> str:
    """Whether a run is running, finished or stopped."""
    if (folder / SERVER_FOLDER / "lock").is_file() and is_running(folder):
        return RUNNING
    if (folder / "model").is_dir():
        return FINISHED
    return RUNNING if now - changed_at(folder) < RECENT_SECONDS else STOPPED


def changed_at(folder: Path) -> float:
    """When the ledger or the journal of a run was last written, in seconds since 1970; 0 if never."""
    names = ("ledger.sqlite", "ledger.sqlite-wal", f"{SERVER_FOLDER}/{JOURNAL}", f"{SERVER_FOLDER}/{JOURNAL}-wal")
    times = []
    for name in names:
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def summary(folder: Path, id: str, now: float | None = None) -> RunSummary:
    """The line of a run; raises `UserError` if its directory cannot be read."""
    settings = read_settings(folder)
    with _ledger(folder) as db:
        [(done,)] = db.execute("select count(*) from rounds").fetchall()
    return _summary(folder, id, settings, done, time() if now is None else now)


def _summary(folder: Path, id: str, settings: Mapping[str, Any], done: int, now: float) -> RunSummary:
    return RunSummary(
        id=id,
        name=str(settings.get("name", folder.name)),
        task=_named(settings.get("task")),
        method=_named(settings.get("method")) if settings.get("kind", "federated") == "federated" else settings["kind"],
        state=state_of(folder, now),
        done=done,
        rounds=int(settings.get("rounds", 0)),
        silos=len(settings.get("silos") or {}),
        changed=changed_at(folder),
        has_model=(folder / "model").is_dir(),
    )


def read_run(folder: Path, id: str) -> RunView:
    """Everything about a run; raises `UserError` if its directory cannot be read."""
    now, settings = time(), read_settings(folder)
    networked = (folder / SERVER_FOLDER / JOURNAL).is_file()
    with _ledger(folder) as db:
        [(done, seconds)] = db.execute("select count(*), coalesce(sum(seconds), 0) from rounds").fetchall()
        metric = _headline(settings, db)
        last = db.execute("select node, seen from traffic where round=(select max(round) from traffic)").fetchall()
        return RunView(
            summary=_summary(folder, id, settings, done, now),
            model=_named(settings.get("model"), "preset", "path"),
            metric=metric,
            languages=tuple(_language_curves(db, metric)),
            silos=tuple(_silo_curves(db, metric)),
            final=_final(db),
            nodes=tuple(read_status(folder, now)) if networked else (),
            traffic=tuple(Traffic(*row) for row in db.execute(_TRAFFIC)),
            weights=_shares({node: seen for node, seen in last if seen}),
            refusals=tuple(read_refusals(folder)[:MAX_EVENTS]) if networked else (),
            events=tuple(RunEvent(*row) for row in db.execute(_EVENTS, (MAX_EVENTS,))),
            log=tuple(read_log(folder / RUN_LOG, MAX_LINES)),
            settings=settings,
            seconds=seconds,
        )


def read_settings(folder: Path) -> dict[str, Any]:
    """The run's settings as plain values, without the plug-ins that they name; raises `UserError` if unreadable."""
    file = folder / "federation.yaml"
    try:
        if file.stat().st_size > MAX_SETTINGS:
            raise UserError(f"{file} has more than {MAX_SETTINGS} bytes; it is not the file that a run wrote")
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read ({type(error).__name__}); restore it from a backup") from None
    if not isinstance(found, dict):
        raise UserError(f"{file} is not the file of a run; restore it from a backup")
    return _defaults() | found


@cache
def _defaults() -> dict[str, Any]:
    """The settings that a run's file leaves out, of those that the pages show."""
    shown: dict[str, Any] = Federation.model_validate(_LEAST).model_dump(
        mode="json", include={"task", "method", "rounds"}
    )
    return shown


# ── reading the ledger ────────────────────────────────────────────────────────────────────────────────────────────

_TRAFFIC = (
    "select node, count(*), coalesce(sum(sent), 0), coalesce(sum(received), 0), coalesce(sum(seen), 0) from traffic "
    "group by node order by node"
)
_EVENTS = "select at, round, node, kind, text from events order by at desc limit ?"
# All evaluations during training use the same data: the split and the share of the first one.
_SAME = "(split, share) = (select split, share from metrics order by rowid limit 1)"


@contextmanager
def _ledger(folder: Path) -> Iterator[sqlite3.Connection]:
    file = folder / "ledger.sqlite"
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=10.0)) as db:
            yield db
    except sqlite3.Error as error:
        raise UserError(f"{file} cannot be read ({error}); the run may have been written by another version") from None


def _headline(settings: Mapping[str, Any], db: sqlite3.Connection) -> str:
    """The main metric of the task; of a task from a plug-in, the first metric in the ledger."""
    known = [str(name) for (name,) in db.execute("select distinct metric from metrics")]
    try:
        headline = TASKS.build(Federation.model_validate({"task": settings["task"], **_LEAST}).task).headline
    except (HansaError, ValueError, KeyError, TypeError):
        headline = ""
    if headline in known or not known:
        return headline or NO_METRIC
    return known[0]


def _language_curves(db: sqlite3.Connection, metric: str) -> Iterator[Curve]:
    rows = db.execute(
        f"select grp, round, value from metrics where metric=? and split not like '{OWN} %' and {_SAME} order by round",
        (metric,),
    )
    if series := _series(rows):
        yield Curve(f"{metric} by language", series)


def _silo_curves(db: sqlite3.Connection, metric: str) -> Iterator[Curve]:
    rows = db.execute("select node, round, loss from traffic where loss is not null order by round")
    if series := _series(rows):
        yield Curve("training loss by silo", series)
    rows = db.execute(
        f"select silo, round, avg(value) from silo_metrics where metric=? and {_SAME} group by silo, round "
        "order by round",
        (metric,),
    )
    if series := _series(rows):
        yield Curve(f"{metric} by silo", series)


def _series(rows: Any) -> tuple[tuple[str, tuple[Point, ...]], ...]:
    found: dict[str, list[Point]] = {}
    for name, round, value in rows:
        if isinstance(value, int | float) and abs(value) < 1e300:
            found.setdefault(str(name), []).append((float(round), float(value)))
    return tuple((name, tuple(points)) for name, points in sorted(found.items()))


def _final(db: sqlite3.Connection) -> dict[str, dict[str, float]]:
    rows = db.execute(
        "select grp, metric, value from metrics where split='test' and share=1.0 and round="
        "(select max(round) from metrics where split='test' and share=1.0)"
    )
    found: dict[str, dict[str, float]] = {}
    for group, metric, value in rows:
        found.setdefault(str(group), {})[str(metric)] = value
    return found


def _shares(samples: Mapping[str, int]) -> dict[str, float]:
    total = sum(samples.values())
    return {node: seen / total for node, seen in samples.items()} if total else {}


def _named(value: Any, *keys: str) -> str:
    """The name in a setting that is a text, or a section with a name."""
    if isinstance(value, Mapping):
        return next((str(value[key]) for key in ("name", *keys) if value.get(key)), "")
    return str(value or "")


def mean_curve(view: RunView) -> Sequence[Point]:
    """The main metric of a run averaged over its languages, by round."""
    rounds: dict[float, list[float]] = {}
    for curve in view.languages:
        for _, points in curve.series:
            for at, value in points:
                rounds.setdefault(at, []).append(value)
    return [(at, sum(values) / len(values)) for at, values in sorted(rounds.items())]


def plain(view: RunView) -> str:
    """The settings of a run as text."""
    return json.dumps(view.settings, ensure_ascii=False, indent=1, default=str)
