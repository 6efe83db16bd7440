"""`hansa reproduce`: the experiments of a paper, its tables with our figures beside the published ones, its claims."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from hansa.core.errors import UserError
from hansa.experiments.reproduce import sources
from hansa.experiments.reproduce.cells import Cell, Cells
from hansa.experiments.reproduce.verdict import HOLDS, OPEN, Evidence, Verdict, judge

Scale = Literal["smoke", "small", "medium", "full"]
Say = Callable[[str], None]
S = TypeVar("S")

# The module of a paper, `hansa.experiments.reproduce.NAME`, has a function reproduce(Options) -> Reproduction.
PAPERS = ("medical", "translation", "worldlm", "fedkc", "fedkc-tasks", "open-problems", "instruct", "gemma")


class Unfinished(UserError):
    """With ``--finished``: a run that the tables need is not finished."""


@dataclass(frozen=True)
class Options:
    """The options of the command.

    The module of a paper lists the options that it does not use as ``UNUSED``, and rejects them.
    """

    scale: Scale
    data: Path | None  # the folder with the real corpora
    out: Path
    say: Say
    encoder: str | None = None  # medical: also fine-tune this encoder
    model: str | None = None  # start from this model instead of one that is trained here
    tune: bool = False  # select the settings of the methods on validation data first, and print them
    cells: Path | None = None  # the folder with the results of finished runs; default: below ``out``
    finished: bool = False  # run nothing: tables and claims of the runs that are finished
    again: bool = False  # repeat finished runs whose source files have changed since

    def require_data(self) -> None:
        """Raise `UserError` unless there are real corpora, which every scale but ``smoke`` needs."""
        if self.scale != "smoke" and self.data is None:
            raise UserError(f"--scale {self.scale} needs real text; give its folder with --data, or use --scale smoke")

    def cells_of(self, paper: str) -> Cells:
        """The cells of a paper at this scale."""
        return Cells(self.cells or self.out / "cells", paper, self.scale)

    def size_of(self, sizes: Mapping[str, S], paper: str) -> S:
        """The size of the experiments at this scale; raises `UserError` if the paper has no such scale."""
        if self.scale not in sizes:
            raise UserError(f"'{paper}' has no --scale {self.scale}; it has: {', '.join(sizes)}")
        return sizes[self.scale]

    def reject(self, paper: str, *options: str) -> None:
        """Raise `UserError` if one of these options is given: the paper does not use them."""
        for option in self.given(*options):
            raise UserError(f"--{option} is not an option of 'hansa reproduce {paper}'; leave it out")

    def given(self, *options: str) -> list[str]:
        """Which of these options are given."""
        return [option for option in options if getattr(self, option)]

    def without(self, *options: str) -> "Options":
        """These options without some, for a paper that does not use them among papers that do."""
        defaults: dict[str, Any] = {one.name: one.default for one in fields(self) if one.name in options}
        return replace(self, **defaults)


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column names the rows."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|---" + "|---:" * (len(self.columns) - 1) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, whether it holds here, and the figures of both.

    ``holds``: whether our figures have the shape of the claim. The verdict also needs the evidence for the rules of
    `verdict.judge`; a claim without evidence is neither shown nor refuted. ``undecided``: why the figures say nothing
    about the claim, whatever they are.
    """

    name: str
    holds: bool
    ours: str
    paper: str
    evidence: Evidence | None = None
    undecided: str = ""

    @staticmethod
    def of(name: str, evidence: Evidence, ours: str, paper: str) -> "Claim":
        """A claim that its evidence decides."""
        return Claim(name, judge(evidence).state == HOLDS, ours, paper, evidence)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim, and the rule that failed."""
        found = judge(self.evidence)
        if self.undecided:
            return Verdict(OPEN, "; ".join([self.undecided, *([found.why] if found.why else [])]))
        if not self.holds and (self.evidence is None or found.state == HOLDS):
            return Verdict(OPEN, "; ".join(["our figures do not have its shape", *([found.why] if found.why else [])]))
        return found

    @property
    def line(self) -> str:
        """The claim and its figures in one line."""
        why = f"; {self.verdict.why}" if self.verdict.why else ""
        return f"{self.verdict.state}: {self.name} (ours: {self.ours}; paper: {self.paper}{why})"


@dataclass(frozen=True)
class Reproduction:
    """The outcome of a reproduction: tables, claims, and the report."""

    paper: str
    scale: str
    tables: Sequence[Table]
    claims: Sequence[Claim]
    report: Path
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    tuning: float = 0.0  # seconds of these that the selection of settings took
    sessions: int = 1  # how often the command was started: it may be stopped and resumed
    cells: Sequence[Cell] = ()  # the finished runs that the tables rest on

    @property
    def commit(self) -> str:
        """The commits of the runs, or of the source files where no cells are kept."""
        return ", ".join(sorted({cell.commit for cell in self.cells})) or sources.commit()

    def as_dict(self) -> dict[str, Any]:
        """The reproduction as JSON values."""
        return {
            "paper": self.paper,
            "scale": self.scale,
            "claims": [asdict(claim) | {"verdict": claim.verdict.line} for claim in self.claims],
            "tables": [asdict(table) for table in self.tables],
            "report": str(self.report),
            "seconds": round(self.seconds, 1),
            **self.facts,
        }

    def markdown(self) -> str:
        """The section of the results page, in Markdown."""
        lines = [f"## {self.paper.capitalize()}, scale {self.scale}", ""]
        given = ", from a given snapshot" if self.facts.get("snapshot", "ours") != "ours" else ""
        tune, of_it = (" --tune", f", of which {self.tuning / 60:.1f} to select settings") if self.tuning else ("", "")
        command = f"`hansa reproduce {self.paper} --scale {self.scale}{tune}`"
        again = f", in {self.sessions} sessions" if self.sessions > 1 else ""
        lines += [f"{command}{given}, {self.seconds / 60:.1f} minutes in all{of_it}{again}.", ""]
        lines += [f"- {claim.line}" for claim in self.claims]
        made = f"Commit {self.commit}."
        tables = (replace(table, note=f"{table.note} {made}".strip()) for table in self.tables)
        return "\n".join([*lines, "", *(table.markdown() for table in tables)])


def record_duration(folder: Path, seconds: float) -> list[float]:
    """Note in ``folder`` how long a session took; return the seconds of all sessions so far."""
    file = folder / "seconds.json"
    took = [*(json.loads(file.read_text()) if file.is_file() else []), round(seconds, 1)]
    if folder.is_dir() and any(folder.iterdir()):  # otherwise no run was started
        file.write_text(json.dumps(took))
    return took
