"""The progress of a run for people: a live table in a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import fmean, pstdev
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hansa.config.federation import Federation
from hansa.core.errors import printable
from hansa.core.messages import NodeId
from hansa.core.round import Record
from hansa.report.charts import short

LINES_EVERY = 10.0  # seconds between plain lines
MARKS = {"working": "●", "done": "✓", "lost": "✗", "waiting": "·"}


class Progress:
    """Shows the progress of a run; implements `RunCallbacks`. ``label``: a prefix for every line."""

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
        self._headline = self._own = ""
        self._lost: dict[NodeId, str] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        prefix = f"{self.label}: " if self.label else ""
        self.console.print(escape(prefix + printable(text, 1000)), style="dim", highlight=False)

    def begin(self, federation: Federation, done: int, samples: Mapping[NodeId, int]) -> None:
        """The run begins, or resumes after ``done`` rounds; ``samples``: training samples of every silo."""
        self._rounds, self._done, self._from = federation.rounds, done, done
        self._deadline = federation.participation.deadline
        self._samples = dict(samples)
        self._states = dict.fromkeys(samples, "waiting")
        self._started = self._last_line = self._round_began = monotonic()
        if done:
            self.say(f"resumed after round {done}")
        if self.console.is_terminal and self._rounds:
            self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def silo(self, node: NodeId, state: str) -> None:
        """A silo's state has changed: one of `MARKS`."""
        self._states[node] = state

    def round(self, record: Record, seconds: Mapping[str, float]) -> None:
        """A round has ended."""
        self._done, self._loss = record.round, record.loss
        for node, reason in record.failures.items():
            self._states[node] = "lost"
            if self._lost.get(node) != reason:
                self.say(f"round {record.round}: {node} dropped out: {reason}")
            self._lost[node] = reason
        now = self._round_began = monotonic()
        last = self._done == self._rounds
        if self._live is None and (last or now - self._last_line >= LINES_EVERY):
            self._last_line = now
            self.say(self._line())

    def scores(self, round: int, metrics: Mapping[str, Mapping[str, float]], headline: str) -> None:
        """The shared model has been evaluated."""
        self._headline = headline
        self._scores = {g: m[headline] for g, m in metrics.items() if headline in m}

    def own(self, round: int, metrics: Mapping[str, Mapping[str, float]], headline: str) -> None:
        """Every node's own model has been evaluated."""
        values = [m[headline] for m in metrics.values() if headline in m]
        if values:
            spread = f" ± {short(pstdev(values))}" if len(values) > 1 else ""
            self._own = f"own models {short(fmean(values))}{spread} over {len(values)} nodes"

    def end(self) -> None:
        """The run has ended."""
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
            text += f", mean {self._headline} {short(fmean(self._scores.values()))}"
        if self._own:
            text += f", {self._own}"
        return f"{text}, {self._left()}"

    def _left(self) -> str:
        done = self._done - self._from
        if not done or self._done == self._rounds:
            return f"{monotonic() - self._started:.0f} s elapsed"
        left = (monotonic() - self._started) / done * (self._rounds - self._done)
        return f"about {left:.0f} s left"

    def _table(self) -> Group:
        bar = ProgressBar(total=max(1, self._rounds), completed=self._done, width=24)
        head = Table.grid(padding=(0, 2))
        head.add_row(Text(self.label or "run", style="bold"), bar, Text(self._line(), style="dim"))
        silos = Table(box=None, padding=(0, 2), show_header=True, header_style="dim")
        for column in ("silo", "samples", "state", self._headline or "score"):
            silos.add_column(column, justify="left" if column in ("silo", "state") else "right")
        for node in list(self._states)[:24]:
            state = self._states[node]
            score = self._scores.get(node)
            mark = f"{MARKS.get(state, '·')} {state}"
            silos.add_row(
                escape(node), f"{self._samples.get(node, 0):,}", mark, short(score) if score is not None else ""
            )
        if len(self._states) > 24:
            silos.add_row(f"… {len(self._states) - 24} more", "", "", "")
        return Group(head, Text(self._waiting(), style="dim"), silos)

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
