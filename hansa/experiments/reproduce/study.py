"""A study of arms over a grid of learning rates and several seeds, made of cells.

The whole grid of a tuned arm is run with the first seed. The rate with the best validation figure is then run with all
seeds; the run of the first seed is the one of the grid. Arms that are not tuned take the rate of an arm that is.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from hansa.config.federation import Federation
from hansa.core.device import cores
from hansa.experiments.reproduce import Claim, Options, Table, stamp
from hansa.experiments.reproduce.cell_run import finished, run_cell
from hansa.experiments.reproduce.cells import Cell, Cells, settings_digest
from hansa.experiments.reproduce.verdict import spread
from hansa.report import html

Build = Callable[[str, float, int], Federation]  # arm, learning rate, seed → the settings of a run
BASE = "base"  # the arm that is not trained: one run
NO_RATE = 1e-3  # in the settings of an arm that is not trained


@dataclass(frozen=True)
class Study:
    """The arms of an experiment: which of their cells are finished, and in which order the others are run."""

    options: Options
    cells: Cells
    build: Build
    rates: Mapping[str, Sequence[float]]  # tuned arm → its grid
    follows: Mapping[str, str]  # arm → the tuned arm whose rate it takes
    seeds: int
    metric: str = "loss"  # on validation data
    better: Literal["low", "high"] = "low"
    prefix: str = ""  # of the names of the cells, where several studies share them
    select: Build | None = None  # of runs that are tested on validation data and select rates, beside the others

    @property
    def arms(self) -> list[str]:
        """All arms, the most telling first."""
        return [BASE, *self.rates, *self.follows]

    def run(self) -> None:
        """Run what is not finished, as many cells at a time as there are cores.

        First the middle of each grid, then the rest of the grids, then all seeds, of the tuned arms first.
        """
        middles = [(arm, 0, rates[len(rates) // 2]) for arm, rates in self.rates.items()]
        grids = [(arm, 0, rate) for arm, rates in self.rates.items() for rate in rates]
        self._run_all([(BASE, 0, NO_RATE)])
        self._run_all(list(dict.fromkeys(middles + grids)), selecting=True)
        for arms in (self.rates, self.follows):
            self._run_all([(arm, seed, self.rate(arm)) for seed in range(self.seeds) for arm in arms])

    def _run_all(self, asked: Sequence[tuple[str, int, float]], selecting: bool = False) -> None:
        """Run different cells, given by arm, seed and rate; raises `RunFailed` if one fails, after the others."""
        with ThreadPoolExecutor(1 if self.options.scale == "smoke" else cores()) as threads:
            for done in [threads.submit(self.cell, *one, selecting) for one in asked]:
                done.result()

    def cell(self, arm: str, seed: int, rate: float = NO_RATE, selecting: bool = False) -> Cell | None:
        """A cell: finished, or run now; with ``options.finished``, None if it is not finished.

        ``selecting``: a run of the grid, which is another one than that of the figures if there is ``select``.
        """
        apart = selecting and self.select is not None
        settings = self.select(arm, rate, seed) if self.select is not None and apart else self.build(arm, rate, seed)
        name = self.prefix + (arm if arm == BASE else f"{arm} lr {rate:g}") + (", selection" if apart else "")
        if self.options.finished:
            return finished(self.cells, name, seed, settings_digest(settings), self.options.again)
        options, here = self.options, self.options.scale == "smoke"  # seconds, less than a process takes to start
        return run_cell(self.cells, name, seed, settings, options.out / "runs", options.say, options.again, here)

    def grid(self, arm: str) -> dict[float, float]:
        """Rate → figure on validation data, of the first seed, of an arm or of the arm that it follows."""
        found = {rate: self.cell(self._tuned(arm), 0, rate, selecting=True) for rate in self.rates[self._tuned(arm)]}
        apart = self.select is not None
        return {
            rate: cell.mean(self.metric) if apart else cell.valid[self.metric]
            for rate, cell in found.items()
            if cell is not None
        }

    def rate(self, arm: str) -> float:
        """The best learning rate of an arm among those that are finished; the middle of the grid if none is."""
        rates, grid = self.rates[self._tuned(arm)], self.grid(arm)
        best = min if self.better == "low" else max
        return best(grid, key=lambda rate: grid[rate]) if grid else rates[len(rates) // 2]

    def of(self, arm: str) -> list[Cell]:
        """The finished cells of an arm with its rate."""
        if arm == BASE:
            found = [self.cell(BASE, 0)]
        else:
            found = [self.cell(arm, seed, self.rate(arm)) for seed in range(self.seeds)]
        return [cell for cell in found if cell is not None]

    def rate_table(self) -> Table:
        """The grids, and what was selected from them."""
        rows = []
        for arm, rates in self.rates.items():
            grid = self.grid(arm)
            tried = ", ".join(f"{rate:g}: {value:.4f}" for rate, value in grid.items()) or "–"
            rows.append([arm, tried, f"{self.rate(arm):g}" if len(grid) == len(rates) else "not finished"])
        title = (
            f"{self.prefix}learning rates: {self.metric.replace('_', ' ')} on data that selects settings, first seed"
        )
        title = title[0].upper() + title[1:]
        return Table(title, ["", "tried", "chosen"], rows)

    def _tuned(self, arm: str) -> str:
        return self.follows.get(arm, arm)


def written(options: Options, tables: Sequence[Table], claims: Sequence[Claim]) -> Path:
    """Write tables and claims as a report in Markdown; return its file. No run directories are left to compare."""
    file = options.out / "report.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [*(f"- {claim.line}" for claim in claims), "", *(table.markdown() for table in tables)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def report_of(
    options: Options, shown: Sequence[tuple[str, Path]], title: str, claims: Sequence[Claim], tables: Sequence[Table]
) -> Path:
    """Write the report of the runs, given by name and directory; without those whose directory is gone.

    If none is left, tables and claims are written in Markdown. Returns the file.
    """
    there = [(name, folder) for name, folder in shown if stamp.read(folder) is not None]
    if not there:
        return written(options, tables, claims)
    return html.write(there, options.out / "report.html", title, [claim.line for claim in claims], tables)


def figure(values: Sequence[float], digits: int = 4) -> str:
    """Mean ± spread over seeds; a mark where there are fewer than three."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}¹"
    return f"{fmean(values):.{digits}f} ± {spread(values):.{digits}f}" + ("²" if len(values) == 2 else "")


SEEDS = "¹: one seed, ²: two seeds, others three."
