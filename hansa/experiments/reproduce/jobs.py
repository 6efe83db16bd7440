"""The runs of an experiment: one after another in this process, or several at a time in other processes.

As many run at the same time as there are cores. Runs without workers share a pool of processes, because the start of a
process takes as long as many training steps. What the tables need of a run is kept in its cell, so that a run whose
cell is there is not repeated on a machine that lacks its run directory.
"""

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import RLock
from time import sleep
from types import TracebackType
from typing import Any

import torch

from hansa.config.federation import Federation
from hansa.core.device import cores
from hansa.core.errors import RunFailed
from hansa.experiments.processes import run_in_process
from hansa.experiments.reproduce import Options, Say, Unfinished, sources, stamp
from hansa.experiments.reproduce.cell_run import finished
from hansa.experiments.reproduce.cells import Cell, Cells, content_of, paths_of, settings_digest
from hansa.runs.inference import Scored, every_model, on_silos
from hansa.runs.result import Result
from hansa.runs.run import run

Fact = Callable[[Path], Any]  # reads something from a finished run directory, as JSON values
KEPT = ("model", "start")  # folders of a run directory that later runs start from: their digests are facts of the cell
# In the message of a run whose values became infinite.
DIVERGENCE = ("not finite", "its training loss is", "no node could evaluate the model")


@dataclass(frozen=True)
class Job:
    """A run that was asked for. ``facts``: what its cell needs."""

    name: str
    federation: Federation
    workers: int | None = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)


class Jobs:
    """Runs that are started in order and whose outcomes are collected by name.

    ``side_by_side``: in several processes; otherwise in this one. ``cells``: where the result of every finished run is
    kept. ``finished``: run nothing, so that runs which are not finished raise `Unfinished`; ``again``: repeat finished
    runs whose source files have changed since. A run directory has the digest of the settings in its name: an
    interrupted run is resumed with the same settings only.
    """

    def __init__(
        self, folder: Path, say: Say, side_by_side: bool, cells: Cells, finished: bool = False, again: bool = False
    ) -> None:
        self._folder, self._say, self.side_by_side, self._cells = folder.resolve(), say, side_by_side, cells
        self._finished, self._again = finished, again
        self._made: dict[str, Cell] = {}
        # Loading models is not safe in several threads of one process.
        self._threads = ThreadPoolExecutor(cores() if side_by_side else 1)
        self._processes = ProcessPoolExecutor(cores(), get_context("spawn"), _begin_process)
        self._futures: dict[str, Future[Cell]] = {}
        self._jobs: dict[str, Job] = {}
        self._homes: dict[str, Path] = {}
        self._contents: dict[str, str] = {}  # path → digest of a folder of an earlier run
        self._earlier = RLock()  # one run at a time is repeated because later ones start from it

    @staticmethod
    def of(options: Options, paper: str) -> "Jobs":
        """The runs of a paper, by the options of the command."""
        cells, side_by_side = options.cells_of(paper), options.scale != "smoke"
        return Jobs(options.out, options.say, side_by_side, cells, options.finished, options.again)

    @property
    def kept(self) -> list[Cell]:
        """The cells of the runs that are finished."""
        return list(self._made.values())

    # ── asking for runs ───────────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        name: str,
        federation: Federation,
        workers: int | None = 0,
        facts: Mapping[str, Fact] | None = None,
    ) -> None:
        """Start a run, unless its cell is there with the same settings and all facts.

        ``facts``: name → function of the run directory, a function of a module; its value is kept in the cell. What it
        depends on besides the run directory must be in its name.
        """
        job = Job(name, federation, workers, facts or {})
        self._jobs[name] = job
        self._homes[name] = self._home(job)
        self._futures[name] = self._threads.submit(self._run, job)

    def cell(self, name: str) -> Cell:
        """Wait for a run and return its cell; raises `Unfinished`, or `RunFailed` if the run failed.

        The cell of a run that diverged says so and has no scores.
        """
        self._futures[name].result()
        return self._made[name]

    def result(self, name: str) -> Result:
        """Wait for a run and return its outcome; raises `RunFailed` also if the run diverged."""
        cell = self.cell(name)
        if cell.diverged:
            raise RunFailed(cell.diverged)
        return Result(self._homes[name], cell.scores, cell.own)

    def folder(self, name: str) -> Path:
        """Wait for a run and return its directory, which need not be there if its cell is."""
        return self.result(name).folder

    def model(self, name: str) -> str:
        """Wait for a run and return the path of its final model, for later runs to start from.

        The model need not be there if all later runs are finished; else this run is repeated.
        """
        return self._kept_folder(name, "model")

    def start_folder(self, name: str) -> str:
        """Wait until a run has written its tokenizer and initial weights, or is finished; return their folder."""
        while self._is_stale(self._homes[name]) or not (start := self._homes[name] / "start").exists():
            if self._futures[name].done():
                return self._kept_folder(name, "start")
            sleep(0.2)
        return str(start)

    def _kept_folder(self, name: str, which: str) -> str:
        cell, path = self.cell(name), str(self._homes[name] / which)
        if which in cell.facts:
            self._contents[path] = cell.facts[which]
        return path

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _home(self, job: Job) -> Path:
        plain = self._cells.file(job.name, job.federation.seed).stem
        return self._folder / f"{plain}-{settings_digest(job.federation, self._contents)}"

    def _run(self, job: Job) -> Cell:
        digest, home = settings_digest(job.federation, self._contents), self._homes[job.name]
        known, made = finished(self._cells, job.name, job.federation.seed, digest, self._again), stamp.read(home)
        if self._is_stale(home):
            made = None
        enough = known is not None and (bool(known.diverged) or job.facts.keys() <= known.facts.keys())
        if known is not None and enough:
            self._say(f"{job.name}: finished before")
            self._made[job.name] = known
        elif self._finished and made is None:
            lacks = "is not finished" if known is None else "has a result, but not everything that the tables need"
            raise Unfinished(
                f"the run '{job.name}' of {self._cells.experiment} {lacks}; leave --finished out to run it"
            )
        else:
            self._execute(job)
        return self._made[job.name]

    def _is_stale(self, home: Path) -> bool:
        """Whether a finished run directory is to be made again: source files that its run imported have changed."""
        made = stamp.read(home) if self._again else None
        return made is not None and bool(sources.differing(made.files))

    def _execute(self, job: Job) -> None:
        """Run a job, or resume it, or read its finished directory; keep its cell."""
        if stamp.read(self._homes[job.name]) is None or self._is_stale(self._homes[job.name]):
            self._provide(job)
        home = self._homes[job.name] = self._home(job)
        if self._is_stale(home):
            gone = home.with_name(f"{home.name}.stale")
            shutil.rmtree(gone, ignore_errors=True)  # of an earlier session that was stopped here
            home.rename(gone)  # at once: another thread may be waiting for its files
            shutil.rmtree(gone)
        verb = "read" if stamp.read(home) else "resumed" if (home / "federation.yaml").is_file() else "started"
        self._say(f"{job.name}: {verb}")
        digest = settings_digest(job.federation, self._contents)
        if not self.side_by_side:
            cell = _work(job, home, digest, self._cells)
        else:
            if job.workers != 0 and stamp.read(home) is None:
                _elsewhere(job, home, lambda line: self._say(f"{job.name}: {line}"))
            cell = self._processes.submit(_work, job, home, digest, self._cells).result()
        self._made[job.name] = cell
        self._say(f"{job.name}: {'diverged' if cell.diverged else 'done'}")

    def _provide(self, job: Job) -> None:
        """Repeat earlier runs whose folders this one starts from and which are gone."""
        for path in map(Path, paths_of(job.federation)):
            for name, home in list(self._homes.items()):
                if name == job.name or not path.is_relative_to(home) or path.exists():
                    continue
                with self._earlier:
                    if not path.exists():
                        self._execute(self._jobs[name])
                if not path.exists():
                    raise RunFailed(
                        f"the run '{job.name}' starts from {path}, and '{name}', made again, has other settings now; "
                        "start the command once more"
                    )

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=kind is not None)
        self._processes.shutdown(wait=True, cancel_futures=kind is not None)


def matrix(share: float) -> dict[str, Fact]:
    """The fact `matrix_name`: scores of every model of a run on this share of every silo's test data."""
    return {matrix_name(share): partial(_matrix, share=share)} if share else {}


def matrix_name(share: float) -> str:
    """The name of the fact of `matrix`: model → silo → metric → value."""
    return f"matrix {share:g}"


def _matrix(folder: Path, share: float) -> dict[str, Scored]:
    return every_model(folder, lambda runtime, model: on_silos(runtime, model, share))


def _begin_process() -> None:
    torch.set_num_threads(1)
    sources.loaded()


def _work(job: Job, home: Path, digest: str, cells: Cells) -> Cell:
    """Run in this process, unless the run has ended; return its cell, which is kept."""
    made = stamp.read(home)
    if made is None:
        diverged = ""
        stamp.begin(home)
        try:
            run(job.federation, home, (home / "federation.yaml").is_file(), workers=0)
        except RunFailed as error:
            if not any(sign in str(error) for sign in DIVERGENCE):
                raise
            diverged = str(error)
        made = stamp.end(home, sources.imported(), diverged)
    facts = {} if made.diverged else {name: read(home) for name, read in job.facts.items()}
    folders = {which: content_of(str(home / which)) for which in KEPT if (home / which).is_dir()}
    return cells.from_run(job.name, job.federation.seed, digest, home, made, **folders, **facts)


def _elsewhere(job: Job, home: Path, say: Say) -> None:
    """Run a job that has workers, in a process of its own with the command line."""
    stamp.begin(home, fresh=True)
    run_in_process(job.federation, home, say, job.workers, (home / "federation.yaml").is_file())
    stamp.end(home, sources.imported())  # of this process, which has imported what makes a run
