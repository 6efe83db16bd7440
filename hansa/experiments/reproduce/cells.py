"""Cells: the small result of every finished run of an experiment, kept as a file that can be committed.

A cell is one run: an experiment at a scale, an arm (method and settings), a seed. Its file has the scores, the samples
seen, the bytes sent, the time, a digest of the settings and of the data, the source files that the run imported, the
commit and the date, and ``facts``: whatever else the tables need. A run whose cell is there with the same digest of
settings is not repeated. A run that diverged has a cell without scores that says so.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from os import getloadavg
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.config.federation import Federation
from hansa.experiments.reproduce import sources
from hansa.experiments.reproduce.stamp import Stamp
from hansa.runs.result import Result
from hansa.runs.results import MetricsByGroup, RunResults, Score

DIGITS = 6  # significant digits of a score
DIVERGED = "diverged"  # the fact that says why a run could not go on
WEIGHTS = ("*.safetensors", "*.json", "*.jinja")  # the files of a model's folder that decide what it computes


@dataclass(frozen=True)
class Cell:
    """The result of one run."""

    experiment: str
    scale: str
    arm: str
    seed: int
    settings: str  # digest of the federation file, with the content of the files that it names
    scores: dict[str, dict[str, float]]  # group → metric → value, on the test split
    own: dict[str, dict[str, float]]  # node → metric → value of its own model, on trees
    valid: dict[str, float]  # metric → mean over groups on the validation split, at the end
    start: dict[str, float]  # the same before training
    samples: int
    bytes_up: int
    bytes_down: int
    seconds: float
    load: float  # the machine's load average over five minutes, at the end
    sources: str  # the name of the set of source files: see `sources.keep`
    commit: str
    date: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def diverged(self) -> str:
        """Why the run could not go on, if its values became infinite; else empty."""
        return str(self.facts.get(DIVERGED, ""))

    def mean(self, metric: str, groups: list[str] | None = None) -> float:
        """The mean of a metric over groups of the test split."""
        return fmean(self.scores[group][metric] for group in groups or list(self.scores))


@dataclass(frozen=True)
class Cells:
    """The cells of one experiment at one scale, as files of a folder."""

    folder: Path  # of all cells of all experiments
    experiment: str
    scale: str

    @staticmethod
    def key(cell: Cell) -> str:
        """The name of a cell within its experiment and scale."""
        return f"{cell.arm}.{cell.seed}"

    def file(self, arm: str, seed: int) -> Path:
        """The file of a cell."""
        plain = re.sub(r"[^\w.+×√-]+", "-", arm).strip("-")
        return self.folder / f"{self.experiment}-{self.scale}" / f"{plain}.{seed}.json"

    def find(self, arm: str, seed: int, settings: str = "") -> Cell | None:
        """A finished cell; with ``settings``, only if it was made with settings of this digest."""
        file = self.file(arm, seed)
        if not file.is_file():
            return None
        cell = Cell(**json.loads(file.read_text(encoding="utf-8")))
        return cell if cell.arm == arm and settings in ("", cell.settings) else None

    def keep(self, cell: Cell) -> None:
        """Write a cell."""
        file = self.file(cell.arm, cell.seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        begun = file.with_suffix(".part")
        begun.write_text(json.dumps(asdict(cell), ensure_ascii=False) + "\n", encoding="utf-8")
        begun.rename(file)

    def all(self) -> list[Cell]:
        """Every finished cell, by name and seed."""
        files = sorted((self.folder / f"{self.experiment}-{self.scale}").glob("*.json"))
        return [Cell(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def changed(self, cell: Cell) -> list[str]:
        """The source files that have changed since a cell's run imported them."""
        return sources.changed(cell.sources, self.folder)

    def from_run(self, arm: str, seed: int, settings: str, run: Path, stamp: Stamp, **facts: Any) -> Cell:
        """Make and keep the cell of a finished run directory; ``stamp``: who made it, ``facts``: as JSON values."""
        results = RunResults.read(run)
        cell = Cell(
            experiment=self.experiment,
            scale=self.scale,
            arm=arm,
            seed=seed,
            settings=settings,
            scores=rounded(results.final),
            own=rounded(results.own),
            valid=_means(results.scores(split="valid"), last=True),
            start=_means(results.scores(split="valid"), last=False),
            samples=int(Result.read(run).rounds["seen"].sum()),
            bytes_up=results.bytes_up,
            bytes_down=results.bytes_down,
            seconds=round(results.phases.total + results.phases.evaluation, 1),
            load=round(getloadavg()[1], 1),
            sources=sources.keep(stamp.files, self.folder),
            commit=stamp.commit,
            date=stamp.date,
            facts=json.loads(json.dumps(_plain(facts | ({DIVERGED: stamp.diverged} if stamp.diverged else {})))),
        )
        self.keep(cell)
        return cell


def experiments(folder: Path) -> Iterator[Cells]:
    """The experiments that have cells below a folder."""
    for below in sorted(folder.iterdir()) if folder.is_dir() else []:
        experiment, _, scale = below.name.rpartition("-")
        if below.is_dir() and experiment:
            yield Cells(folder, experiment, scale)


def rounded(scores: MetricsByGroup) -> dict[str, dict[str, float]]:
    """Scores with `DIGITS` significant digits."""
    return {group: {metric: _short(value) for metric, value in some.items()} for group, some in scores.items()}


def settings_digest(federation: Federation, contents: Mapping[str, str] | None = None) -> str:
    """A digest of the settings of a run; files and folders that they name count by content, not by path.

    Settings at their defaults do not count, so that a new setting does not make finished runs look different.
    ``contents``: path → digest of what was there and is gone, such as the model of an earlier run.
    """
    gone = contents or {}

    def by_content(value: Any) -> Any:
        """A part of the settings with digests in place of paths."""
        if isinstance(value, dict):
            return {key: by_content(one) for key, one in value.items()}
        if isinstance(value, list):
            return [by_content(one) for one in value]
        if not isinstance(value, str) or not value.startswith("/"):
            return value
        return gone[value] if value in gone and not Path(value).exists() else content_of(value)

    settings = federation.model_dump(mode="json", exclude_defaults=True)
    plain = json.dumps(by_content(settings), sort_keys=True, ensure_ascii=False)
    return sha256(plain.encode()).hexdigest()[: sources.SHORT]


def paths_of(federation: Federation) -> list[str]:
    """The files and folders that the settings of a run name."""
    found: list[str] = []

    def look(value: Any) -> None:
        """Note the paths in a part of the settings."""
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(one)
        if isinstance(value, str) and value.startswith("/"):
            found.append(value)

    look(federation.model_dump(mode="json", exclude_defaults=True))
    return found


def content_of(path: str) -> str:
    """The digest of a file, or of the files of a model's folder; the path itself if there is neither."""
    place = Path(path)
    if place.is_file():
        return sources.digest_of(place)
    if place.is_dir():
        files = sorted(file for kind in WEIGHTS for file in place.glob(kind))
        listed = "\n".join(f"{file.name} {sources.digest_of(file)}" for file in files)
        return sha256(listed.encode()).hexdigest()[: sources.SHORT]
    return path


def _means(scores: list[Score], last: bool) -> dict[str, float]:
    """Metric → mean over groups, of the last evaluation or of the one before training."""
    if not scores:
        return {}
    at = max(score.round for score in scores) if last else 0
    values: dict[str, list[float]] = {}
    for score in scores:
        if score.round == at:
            values.setdefault(score.metric, []).append(score.value)
    return {metric: _short(fmean(some)) for metric, some in values.items()}


def _plain(value: Any) -> Any:
    """Values for JSON, with `DIGITS` significant digits."""
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
