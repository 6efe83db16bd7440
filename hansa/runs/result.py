"""The result of a run, for notebooks and scripts: scores as data frames, models as transformers objects, a plot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa.core.errors import ConfigError, UserError
from hansa.models import tokenizer
from hansa.runs import inference
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import OWN, Ledger
from hansa.runs.results import RunResults, lower_is_better
from hansa.runs.shares import silo_shares

SCORE_COLUMNS = ["round", "silo", "language", "split", "metric", "value"]
ALL_SILOS = "all"  # in the column `silo`: scores that no silo released by itself, such as those under masks


@dataclass(frozen=True)
class Result:
    """What a run came to. It reads the run directory when it is asked for something."""

    folder: Path
    metrics: dict[str, dict[str, float]]  # language (or domain) → metric → value of the final model on the test sets
    own: dict[str, dict[str, float]] = field(default_factory=dict)  # on a tree: node → metric → value, own model

    @staticmethod
    def read(folder: Path) -> "Result":
        """The result of a run on disk, finished or not.

        Raises `UserError` if the folder is not a run directory, or was written by a version that cannot be read.
        """
        results = _read(folder)
        return Result(folder, results.final, results.own)

    @cached_property
    def _results(self) -> RunResults:
        return _read(self.folder)

    @property
    def headline(self) -> str:
        """The task's main metric."""
        return self._results.task.headline

    # ── data frames ───────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def scores(self) -> Any:
        """Every score of the shared model, with the columns round, silo, language, split, metric and value.

        Where silos released no scores of their own (under masks, or below a region), ``silo`` is ``all`` or the region.
        """
        query = (
            "select round, silo, grp, split, metric, value, max(share) from silo_metrics "
            "group by round, silo, grp, split, metric union all "
            f"select round, '{ALL_SILOS}', grp, split, metric, value, max(share) from metrics m "
            f"where split not like '{OWN} %' and not exists (select 1 from silo_metrics s where s.round=m.round "
            "and s.split=m.split and s.share=m.share) group by round, grp, split, metric order by 1"
        )
        rows = [row[:-1] for row in self._select(query)]
        return frame(rows, SCORE_COLUMNS)

    @cached_property
    def own_scores(self) -> Any:
        """Every score of the nodes' own models, with the columns round, node, split, metric and value."""
        query = (
            f"select round, grp, substr(split, {len(OWN) + 2}), metric, value from metrics where split like '{OWN} %'"
        )
        return frame(self._select(query), ["round", "node", "split", "metric", "value"])

    @cached_property
    def rounds(self) -> Any:
        """One line per round: training loss, samples, steps, silos asked and lost, seconds by phase."""
        columns = ["round", "loss", "seen", "steps", "cohort", "lost", "seconds", "work_seconds", "evaluate_seconds"]
        return frame(self._select(f"select {', '.join(columns)} from rounds order by round"), columns)

    @cached_property
    def traffic(self) -> Any:
        """Bytes by round and silo (``down``: to the silo), with the silo's training loss where it released one.

        ``weight``: its share of the aggregate; ``norm``: of its update; both empty where the server cannot know them.
        """
        query = "select round, node, sent, received, seen, loss, weight, norm from traffic order by round, rowid"
        return frame(self._select(query), ["round", "silo", "down", "up", "samples", "loss", "weight", "norm"])

    @cached_property
    def data(self) -> Any:
        """One line per silo: training samples, samples per round, their shares, the expected weight, test samples."""
        columns = ["silo", "samples", "share", "per_round", "round_share", "weight", "test"]
        shares = silo_shares(self._results.federation, self._results.cards)
        return frame([[one.name, *(getattr(one, column) for column in columns[1:])] for one in shares], columns)

    @cached_property
    def personal_scores(self) -> Any:
        """Scores of the silos' personal models on their own test data: silo, model, language, metric, value, kept."""
        found = self._results.personal
        rows = [
            (silo, model, group, metric, value, model == one.kept)
            for silo, one in (found.silos if found is not None else {}).items()
            for model, groups in one.models.items()
            for group, metrics in groups.items()
            for metric, value in metrics.items()
        ]
        return frame(rows, ["silo", "model", "language", "metric", "value", "kept"])

    @property
    def tables(self) -> dict[str, Any]:
        """Every table of the run by name, as data frames; those without rows are left out."""
        names = ("scores", "own_scores", "personal_scores", "data", "rounds", "traffic", "events")
        found = {name: getattr(self, name) for name in names}
        return {name: one for name, one in found.items() if len(one)}

    @property
    def personal(self) -> dict[str, dict[str, float]]:
        """Silo → kind of model → the task's main metric on the silo's own test data, averaged over its languages."""
        found = self._results.personal
        return {
            silo: {
                model: fmean(values)
                for model, groups in one.models.items()
                if (values := [metrics[self.headline] for metrics in groups.values() if self.headline in metrics])
            }
            for silo, one in (found.silos if found is not None else {}).items()
        }

    @cached_property
    def events(self) -> Any:
        """What went wrong or was refused: round, silo, kind and text."""
        query = "select round, node, kind, text from events order by at"
        return frame(self._select(query), ["round", "silo", "kind", "text"])

    @property
    def summary(self) -> Any:
        """The scores on the whole test sets: one line per language (or domain), one column per metric."""
        columns = list(dict.fromkeys(metric for values in self.metrics.values() for metric in values))
        rows = [[values.get(metric) for metric in columns] for values in self.metrics.values()]
        return frame(rows, columns, list(self.metrics))

    @property
    def by_silo(self) -> dict[str, dict[str, float]]:
        """The scores on the whole test set: silo → metric → value; of several languages, metrics by language."""
        test = self.scores[self.scores["split"] == "test"]
        last = test[test["round"] == test["round"].max()]
        several = last.groupby("silo")["language"].nunique().to_dict()
        found: dict[str, dict[str, float]] = {}
        for row in last.itertuples(index=False):
            name = f"{row.metric} ({row.language})" if several[row.silo] > 1 else row.metric
            found.setdefault(row.silo, {})[name] = row.value
        order = {metric: place for place, metric in enumerate(self.summary.columns)}  # as in the table by language
        return {
            silo: dict(sorted(values.items(), key=lambda one: order.get(one[0].partition(" (")[0], len(order))))
            for silo, values in found.items()
        }

    # ── models ────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def model(self) -> Any:
        """The final shared model, a transformers object; of a run that has not ended, that of its last checkpoint.

        Raises `UserError` if there is neither.
        """
        newest = RunDirectory(self.folder).checkpoints()[-1:]
        ended = (self.folder / "model").is_dir()
        return inference.load(self.folder, checkpoint=newest[0] if newest and not ended else None)[1]

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model, a transformers object."""
        return tokenizer.load(str(self.folder / "start"))

    def silo_model(self, silo: str) -> Any:
        """The model of a silo's own, where the run made one; raises `UserError` if there is none."""
        return inference.load(self.folder, silo)[1]

    # ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def plot(self, metric: str = "") -> Any:
        """A matplotlib figure of a metric over the rounds, one line per silo; by default of the task's main metric.

        Raises `UserError` if matplotlib is not installed, or nothing has that metric.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise UserError("plot needs matplotlib: pip install 'hansa[notebook]'") from None
        task, scores = self._results.task, self.scores
        metric = metric or task.headline
        during = scores[(scores["metric"] == metric) & (scores["split"] == scores["split"].iloc[:1].squeeze())]
        if during.empty:
            known = ", ".join(sorted(scores["metric"].unique())) or "none"
            raise UserError(f"{self.folder}: the run has no scores '{metric}'; it has: {known}")
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for (silo, language), line in during.groupby(["silo", "language"], sort=False):
            label = silo if language in (silo, "") else f"{silo} ({language})"
            axes.plot(line["round"], line["value"], marker=".", label=label)
        better = "lower" if lower_is_better(task, metric) else "higher"
        axes.set_xlabel("round")
        axes.set_ylabel(f"{metric} ({better} is better)")
        axes.set_title(f"{self._results.name}: {during['split'].iloc[0]} data")
        axes.legend(fontsize="small", ncols=1 + during["silo"].nunique() // 12)
        return figure

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r})\n{self.summary}"

    def _repr_html_(self) -> str:
        return f"<p>Run <code>{self.folder}</code>, on the test sets:</p>{self.summary.to_html()}"

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        ledger = Ledger(self.folder)
        try:
            return ledger.select(query)
        finally:
            ledger.close()


def frame(rows: Sequence[Sequence[Any]], columns: Sequence[str], index: Sequence[str] | None = None) -> Any:
    """A pandas data frame; the library is imported when the first one is asked for."""
    import pandas

    return pandas.DataFrame(rows, index=index, columns=list(columns))


def _read(folder: Path) -> RunResults:
    """Read a run directory; of another version's, an error says which version can read it."""
    try:
        return RunResults.read(folder)
    except ConfigError as error:
        written = _written_by(folder)
        if written in ("", version("hansa")):
            raise
        raise UserError(
            f"{folder} was written by Hansa {written}, and Hansa {version('hansa')} cannot read it ({error}); open it "
            "with that version"
        ) from None


def _written_by(folder: Path) -> str:
    """The version of Hansa that wrote a run directory; empty if it does not say."""
    if not (folder / "ledger.sqlite").is_file():
        return ""
    ledger = Ledger(folder)
    try:
        return str(ledger.facts().get("versions", {}).get("hansa", ""))
    finally:
        ledger.close()
