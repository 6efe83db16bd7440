"""`hansa.run`, `hansa.rounds`, `hansa.compare`, `hansa.load`: running federations from Python."""

import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from hansa.api import tables
from hansa.api.federation import Federation, Settings
from hansa.config.in_memory import register_method
from hansa.config.nodes import walk
from hansa.core.errors import UserError
from hansa.core.method import Method
from hansa.core.update_copies import UpdateCopies
from hansa.methods import built_from
from hansa.report import html
from hansa.report.progress import Progress
from hansa.runs.baselines import with_same_budget
from hansa.runs.callbacks import CurrentRun, RoundRecord
from hansa.runs.compare import run_variants, variant
from hansa.runs.directory import INPUTS, RunDirectory
from hansa.runs.result import Result, frame
from hansa.runs.run import Links, Run, opened
from hansa.runs.summary import average

Described = Federation | str | Path  # a federation, or the path of a federation file


def run(
    federation: Described,
    *,
    out: str | Path | None = None,
    callbacks: Iterable[object] = (),
    workers: int | None = None,
    resume: bool = False,
    link: Links = "pool",
    progress: bool = True,
) -> Result:
    """Run a federation to its end and return the result.

    ``out``: the run directory, by default ``runs/NAME``; ``callbacks``: objects with any of the methods of
    `hansa.callbacks.CallbackMethods`; ``workers``: processes, by default one per core, 0 keeps everything in this one;
    ``resume``: continue from the newest checkpoint in ``out``; ``link``: ``pool`` (this machine) or ``ray`` (a Ray
    cluster); ``progress``: print progress to standard error. Raises `UserError` for wrong input and `RunFailed` if the
    run cannot go on; it can then be resumed.
    """
    with _opened(federation, out, callbacks, workers, resume, link, progress) as one:
        return one.go()


def rounds(
    federation: Described,
    *,
    out: str | Path | None = None,
    callbacks: Iterable[object] = (),
    workers: int | None = None,
    resume: bool = False,
    link: Links = "pool",
    progress: bool = False,
    updates: bool = True,
) -> "Rounds":
    """Run a federation round by round: iterate over the result.

    ``updates``: keep a copy of every silo's update in the record of its round. The other arguments and errors are those
    of `run`. Leaving the loop early leaves a checkpoint; `Rounds.stop` ends the run as after its last round.
    """
    opening = _opened(federation, out, callbacks, workers, resume, link, progress)
    started: list[Run] = []
    return Rounds(_steps(opening, started, updates), started)


class Rounds(Iterator[RoundRecord]):
    """The rounds of a run; every step trains one round and returns its `RoundRecord`."""

    def __init__(self, steps: Generator[RoundRecord, None, None], started: list[Run]) -> None:
        self._steps, self._started = steps, started

    def __iter__(self) -> "Rounds":
        return self

    def __next__(self) -> RoundRecord:
        return next(self._steps)

    def stop(self, reason: str = "stopped by the caller") -> None:
        """End the run: the next step evaluates and saves the model, as after the last round."""
        if self._started:
            self._started[0].current.stop(reason)

    def close(self) -> None:
        """Leave the run where it is: write a checkpoint, stop the workers."""
        self._steps.close()

    @property
    def result(self) -> Result:
        """The result so far; of a run that was left early, the model is that of its last checkpoint.

        Raises `UserError` before the first round.
        """
        if not self._started:
            raise UserError("the run has not begun: iterate over the rounds first")
        return Result.read(self._started[0].directory.path)


def _steps(opening: Any, started: list[Run], updates: bool) -> Generator[RoundRecord, None, None]:
    with opening as one:
        started.append(one)
        one.copies = UpdateCopies() if updates else None
        yield from one.rounds()


def compare(
    federation: Described,
    methods: Sequence[str | Method],
    *,
    out: str | Path | None = None,
    callbacks: Iterable[object] = (),
    workers: int | None = None,
    progress: bool = True,
) -> "Comparison":
    """Run several methods, compressors or baselines on the same data, seed and budget.

    ``methods``: `Method` objects, or names as in ``hansa compare --methods`` (``fedprox``, ``top-k+int8``, ``central``,
    ``per-silo`` …). ``out``: the folder of the runs, by default ``runs/NAME-compare``. A method that fails is in
    `Comparison.failures`; the others go on. Raises `ConfigError` before the first run if a method is refused.
    """
    fed = _described(federation)
    folder = Path(out) if out is not None else RunDirectory.unused(f"{fed.name}-compare")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder with out=")
    try:
        settings = fed.placed(folder / INPUTS)
        variants: dict[str, Settings] = {}
        for method in methods:
            if isinstance(method, str):
                name, one = method, variant(settings, method)
            else:
                name = _unused_name(method.name, variants)
                named = built_from(method) or register_method(replace(method, name=name))
                one = with_same_budget(settings, settings.model_copy(update={"method": named}))
            variants[name] = one
        display = _display(progress)
        results, failures = run_variants(
            variants, folder, workers, lambda name: [*display(name), DataWatch(fed), *callbacks]
        )
    except UserError:
        if folder.exists() and not any(folder.glob("*/ledger.sqlite")):
            shutil.rmtree(folder)
        raise
    return Comparison(folder, results, failures)


@dataclass(frozen=True)
class Comparison:
    """The results of several methods. ``failures``: method → why it has no result."""

    folder: Path
    results: Mapping[str, Result]
    failures: Mapping[str, str]

    @cached_property
    def table(self) -> Any:
        """A data frame: one line per method, with the main metric by language, its mean, samples and megabytes."""
        metric = next((one.headline for one in self.results.values()), "")
        groups = list(dict.fromkeys(group for one in self.results.values() for group in one.metrics))
        rows = []
        for one in self.results.values():
            scores = [one.metrics.get(group, {}).get(metric) for group in groups]
            up, down = one.traffic["up"].sum() / 1e6, one.traffic["down"].sum() / 1e6
            rows.append([*scores, average(one.metrics, metric), int(one.rounds["seen"].sum()), up, down])
        columns = [*(f"{metric} {group}" for group in groups), f"mean {metric}", "samples", "MB up", "MB down"]
        return frame(rows, columns, list(self.results))

    @property
    def scores(self) -> Any:
        """The scores of all runs in one data frame: those of `Result.scores`, with the column ``method`` before."""
        found = [(name, *row) for name, one in self.results.items() for row in one.scores.itertuples(index=False)]
        columns = next((list(one.scores.columns) for one in self.results.values()), [])
        return frame(found, ["method", *columns])

    def report(self) -> Path:
        """Write the report of all runs side by side; return the file."""
        return html.write([(name, one.folder) for name, one in self.results.items()], self.folder / "report.html")

    def __repr__(self) -> str:
        failed = "".join(f"\n{name} failed: {reason}" for name, reason in self.failures.items())
        return f"{self.table}{failed}"

    def _repr_html_(self) -> str:
        failed = "".join(f"<p>{name} failed: {reason}</p>" for name, reason in self.failures.items())
        return f"{self.table.to_html()}{failed}"


def load(folder: str | Path) -> Result:
    """The result of a run on disk, finished or not.

    Raises `UserError` if the folder is not a run directory, or was written by a version that cannot be read.
    """
    return Result.read(Path(folder))


# ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────


class DataWatch:
    """A callback that says once if a silo's data changes while a run goes on: files by size and time, tables by length.

    The run is not touched by it: it goes on with the samples that were prepared when it began.
    """

    def __init__(self, federation: Federation) -> None:
        self._tables = [(silo, table, tables.length(table)) for silo, table in federation.tables]
        paths = [
            (name, Path(path))
            for name, node in walk(federation.settings.silos)
            for source in node.sources
            for path in source.files().values()
        ]
        self._files = [(silo, path, _stamp(path)) for silo, path in paths if path.is_file()]

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Compare with what was there when the run began."""
        goes_on = "the run goes on with the rows it began with"
        for silo, table, before in [one for one in self._tables if tables.length(one[1]) != one[2]]:
            now = tables.length(table)
            run.say(f"silos.{silo}: the data had {before} rows when the run began and has {now} now; {goes_on}")
        for silo, path, _ in [one for one in self._files if _stamp(one[1]) != one[2]]:
            run.say(f"silos.{silo}: {path} has changed since the run began; {goes_on}")
        self._tables = [one for one in self._tables if tables.length(one[1]) == one[2]]
        self._files = [one for one in self._files if _stamp(one[1]) == one[2]]


def _stamp(file: Path) -> tuple[int, int]:
    """Size and time of a file; of one that is gone, zeros."""
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns


def _described(federation: Described) -> Federation:
    if isinstance(federation, Federation):
        return federation
    if isinstance(federation, str | Path):
        return Federation.from_yaml(federation)
    raise UserError(
        f"a {type(federation).__name__} is not a federation: give a hansa.Federation or the path of a federation file"
    )


@contextmanager
def _opened(
    federation: Described,
    out: str | Path | None,
    callbacks: Iterable[object],
    workers: int | None,
    resume: bool,
    link: Links,
    progress: bool,
) -> Iterator[Run]:
    """A run that is ready for its first round; what lives in memory is in files then."""
    fed = _described(federation)
    folder = Path(out) if out is not None else None
    watchers = [*_display(progress)(fed.name), DataWatch(fed), *callbacks]
    if not fed.in_memory():
        with opened(fed.settings, folder, resume, workers, watchers, link) as one:
            yield one
        return
    folder = folder or RunDirectory.path_for(fed.name, resume)
    if not resume:
        RunDirectory.require_empty(folder)
    try:
        with opened(fed.placed(folder / INPUTS), folder, resume, workers, watchers, link) as one:
            yield one
    except UserError:
        if not resume and not (folder / "ledger.sqlite").exists():
            shutil.rmtree(folder, ignore_errors=True)  # refused before the run began: leave nothing behind
        raise


def _display(progress: bool) -> Any:
    """The progress display of a run by its name, as plain lines; nothing if it is not wanted."""
    console = Console(stderr=True, soft_wrap=True, force_terminal=False, force_jupyter=False)
    return lambda name: [Progress(console, name)] if progress else []


def _unused_name(name: str, taken: Mapping[str, object]) -> str:
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
