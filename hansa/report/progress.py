"""The progress of a run for people: a live table in a terminal, plain lines elsewhere."""

from datetime import datetime, timedelta
from statistics import fmean, pstdev
from time import monotonic
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hansa.core.errors import printable
from hansa.core.messages import NodeId
from hansa.report.charts import short
from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord

LINES_EVERY = 10.0  # seconds between plain lines
WIDE, NARROW = (
    80,
    50,
)  # columns of a terminal: below WIDE lines stand below each other, below NARROW figures are left out
SPLITS = {"valid": "validation", "test": "test"}
MARKS = {"working": "●", "done": "✓", "lost": "✗", "waiting": "·"}


class Progress:
    """Shows the progress of a run; a callback. ``label``: a prefix for every line."""

    def __init__(self, console: Console, label: str = "") -> None:
        self.console, self.label = console, label
        self._live: Live | None = None
        self._started = self._last_line = self._round_began = monotonic()
        self._deadline: float | None = None
        self._rounds = self._done = self._from = 0
        self._loss = float("nan")
        self._states: dict[NodeId, str] = {}
        self._samples: dict[NodeId, int] = {}
        self._scores: dict[str, float] = {}
        self._headline = self._own = self._split = ""
        self._scored = 0  # the round that the scores are of
        self._by_silo: dict[NodeId, float] = {}
        self._phase, self._phase_done, self._phase_total, self._phase_began = "", 0, 0, monotonic()
        self._lost: dict[NodeId, str] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        prefix = f"{self.label}: " if self.label else ""
        self.console.print(escape(prefix + printable(text, 1000)), style="dim", highlight=False)

    def on_message(self, run: CurrentRun, text: str) -> None:
        """Print a message of the run."""
        self.say(text)

    def on_run_start(self, run: CurrentRun) -> None:
        """The run begins, or resumes."""
        done = run.resumed_after
        self._rounds, self._done, self._from = run.federation.rounds, done, done
        self._deadline = run.federation.participation.deadline
        self._samples = dict(run.samples)
        self._states = dict.fromkeys(run.samples, "waiting")
        self._started = self._last_line = self._round_began = monotonic()
        if done:
            self.say(f"resumed after round {done}")
        if self.console.is_terminal and self._rounds:
            self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def on_silo(self, run: CurrentRun, silo: NodeId, state: str) -> None:
        """A silo's state has changed: one of `MARKS`."""
        self._states[silo] = state

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """A round has ended."""
        self._done, self._loss = record.number, record.loss
        for node, reason in record.failures.items():
            self._states[node] = "lost"
            if self._lost.get(node) != reason:
                self.say(f"round {record.number}: {node} dropped out: {reason}")
            self._lost[node] = reason
        now = self._round_began = monotonic()
        last = self._done == self._rounds
        if self._live is None and (last or now - self._last_line >= LINES_EVERY):
            self._last_line = now
            self.say(self._line())

    def on_evaluate(self, run: CurrentRun, scores: Evaluation) -> None:
        """The shared model, or every node's own, has been evaluated."""
        found = {g: m[scores.headline] for g, m in scores.metrics.items() if scores.headline in m}
        if not scores.own:
            self._headline, self._scores, self._split = scores.headline, found, scores.split
            self._scored = scores.round
            self._by_silo = {
                silo: fmean(values)
                for silo, groups in scores.silos.items()
                if (values := [m[scores.headline] for m in groups.values() if scores.headline in m])
            }
        elif found:
            values = list(found.values())
            spread = f" ± {short(pstdev(values))}" if len(values) > 1 else ""
            self._own = f"own models {short(fmean(values))}{spread} over {len(values)} nodes"

    def on_phase(self, run: CurrentRun, phase: str, done: int, total: int) -> None:
        """Work after the last round."""
        if phase != self._phase:
            self._phase, self._phase_began = phase, monotonic()
            self._states = dict.fromkeys(self._states, "waiting")
        self._phase_done, self._phase_total = done, total
        now = monotonic()
        if self._live is None and (done in (0, total) or now - self._last_line >= LINES_EVERY):
            self._last_line = now
            self.say(self._phase_line())

    def on_run_end(self, run: CurrentRun, result: object) -> None:
        """The run has ended; a baseline's last rounds may not have been shown."""
        if self._live is None and 0 < self._done < self._rounds:
            self.say(f"done, {monotonic() - self._started:.0f} s elapsed")
        self.stop()

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """The run ends with an error."""
        self.stop()

    def stop(self) -> None:
        """Stop drawing the live table."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self) -> str:
        text = f"round {self._done}/{self._rounds}"
        if self._done > self._from:
            text += f", training loss {self._loss:.3f}"
        if self._scores:
            mean = "mean " if len(self._scores) > 1 else ""
            value = short(fmean(self._scores.values()))
            text += f", {SPLITS.get(self._split, self._split)} {mean}{self._headline} {value}"
            if self._scored != self._done:
                text += f" (of round {self._scored})"
        if self._own:
            text += f", {self._own}"
        return f"{text}, {self._left()}"

    def _phase_line(self) -> str:
        text = f"{self._phase}: {self._phase_done}/{self._phase_total}"
        if not self._phase_done or self._phase_done == self._phase_total:
            return f"{text}, {monotonic() - self._phase_began:.0f} s elapsed"
        left = (monotonic() - self._phase_began) / self._phase_done * (self._phase_total - self._phase_done)
        return f"{text}, about {left:.0f} s left"

    def _left(self) -> str:
        done = self._done - self._from
        if not done or self._done == self._rounds:
            return f"{monotonic() - self._started:.0f} s elapsed"
        left = (monotonic() - self._started) / done * (self._rounds - self._done)
        return f"about {left:.0f} s left"

    def _table(self) -> Group:
        """The live display; in a narrow terminal the parts stand below each other, and columns are left out."""
        wide = self.console.width
        total, done, line = max(1, self._rounds), self._done, self._line()
        if self._phase:
            total, done, line = max(1, self._phase_total), self._phase_done, self._phase_line()
        name, bar = (
            Text(self.label or "run", style="bold"),
            ProgressBar(total=total, completed=done, width=min(24, wide)),
        )
        if wide >= WIDE:
            head = Table.grid(padding=(0, 2))
            head.add_row(name, bar, Text(line, style="dim"))
        else:
            head = Table.grid()
            head.add_row(name)
            head.add_row(bar)
            for text in line.split(", "):
                head.add_row(Text(text, style="dim"))
        silos = Table(box=None, padding=(0, 2 if wide >= WIDE else 1), show_header=True, header_style="dim")
        score = self._headline or "score"
        if wide >= WIDE and self._headline:
            score = f"{SPLITS.get(self._split, self._split)} {score}"
        columns = ["silo", "samples", "state", score] if wide >= NARROW else ["silo", "state"]
        space = 4 if wide >= WIDE else 2  # around a column
        widths = {column: max(9, len(column)) for column in columns[1:]}
        # A long name of a silo is cut; figures and states are not.
        widths["silo"] = max(4, min(64, wide - space * len(columns) - sum(widths.values())))
        for column in columns:
            justify: Literal["left", "right"] = "left" if column in ("silo", "state") else "right"
            silos.add_column(column, justify=justify, overflow="ellipsis", no_wrap=True, max_width=widths[column])
        for node in list(self._states)[:24]:
            state = self._states[node]
            value = self._by_silo.get(node, self._scores.get(node))
            cells = {
                "silo": escape(node),
                "samples": f"{self._samples.get(node, 0):,}",
                "state": f"{MARKS.get(state, '·')} {state}",
                score: short(value) if value is not None else "",
            }
            silos.add_row(*(cells[column] for column in columns))
        if len(self._states) > 24:
            silos.add_row(f"… {len(self._states) - 24} more", *[""] * (len(columns) - 1))
        return Group(head, Text(self._waiting(), style="dim", overflow="ellipsis", no_wrap=True), silos)

    def _waiting(self) -> str:
        """The silos that the round waits for, and the time of its deadline."""
        names = [node for node, state in self._states.items() if state == "working"]
        if not names:
            return ""
        until = ""
        if self._deadline is not None:
            left = self._round_began + self._deadline - monotonic()
            until = f", until {datetime.now() + timedelta(seconds=left):%H:%M:%S}"
        return f"waiting for {', '.join(names[:6])}{' …' if len(names) > 6 else ''}{until}"
