"""The report: one self-contained HTML page about one run or several.

The page loads nothing from the network, follows the light or dark theme and shows right-to-left text. Its one script is
part of it (zoom.js): it enlarges charts; without it the page is complete.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hansa.config.file import dump, without_folders
from hansa.privacy.policy.disclosures import disclosures
from hansa.report import audit
from hansa.report.attention import attention_section
from hansa.report.data import sample_note, share_chart, silo_rows
from hansa.report.own_models import own_tables
from hansa.report.personal import personal_section
from hansa.report.scores import curve_charts, curve_note, score_tables, targets, time_chart
from hansa.report.timing import PHASES, memory_line, phase_row
from hansa.report.traffic import exchange_note, traffic_chart, traffic_rows
from hansa.report.training import loss_chart, silo_section
from hansa.report.tree import tree_section
from hansa.report.uploads import movement_section, quality_against_bytes, saved
from hansa.runs.remains import withdrawal_lines
from hansa.runs.results import RunResults
from hansa.runs.summary import budget_line, metric_names


class Tabular(Protocol):
    """A table made elsewhere, such as a reproduction's."""

    @property
    def title(self) -> str:
        """The heading above the table."""

    @property
    def columns(self) -> list[str]:
        """The column headings."""

    @property
    def rows(self) -> list[list[str]]:
        """The cells, row by row."""

    @property
    def note(self) -> str:
        """A remark below the table; may be empty."""


def write(
    folders: Sequence[tuple[str, Path]],
    out: Path,
    title: str = "",
    reading: Sequence[str] = (),
    tables: Sequence[Tabular] = (),
    answer: str = "",
    pictures: Sequence[str] = (),
) -> Path:
    """Write the report of the given (name, run directory) pairs to ``out``; return ``out``.

    The sections on data and disclosures describe the first run. ``reading`` (sentences) and ``tables`` stand at the
    top: findings from several runs together; above them, ``answer`` (one sentence) and ``pictures`` (SVG). Raises
    `UserError` if a folder is not a run directory.
    """
    runs = [RunResults.read(folder, name) for name, folder in folders]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = content(runs, title, list(reading), list(tables)) | {"answer": answer, "pictures": list(pictures)}
    page = environment.get_template("page.html").render(shown)
    draft = out.with_suffix(".draft")
    draft.write_text(page, encoding="utf-8")
    os.replace(draft, out)
    return out


def content(runs: Sequence[RunResults], title: str, reading: list[str], tables: list[Tabular]) -> dict[str, Any]:
    """The variables of the template ``page.html``."""
    first, metrics = runs[0], metric_names(runs)
    return {
        "title": title or first.federation.name,
        "lead": _lead(first, len(runs)),
        "reading": [*reading, *(line for run in runs for line in withdrawal_lines(run.facts))],
        "tables": tables,
        "scores": score_tables(runs),
        "loss_chart": loss_chart(runs),
        "silo_sections": [section for run in runs if (section := silo_section(run))],
        "script": (Path(__file__).parent / "zoom.js").read_text(encoding="utf-8"),
        "budget": budget_line(runs),
        "memory": [f"{run.name}: {line}" for run in runs if (line := memory_line(run.facts.get("memory")))],
        "curves": curve_charts(runs),
        "curve_names": [run.name for run in runs if run.curves],
        "curve_note": curve_note(first),
        "time_chart": time_chart(runs),
        "targets": targets(runs),
        "trees": [section for run in runs if (section := tree_section(run))],
        "personal": [section for run in runs if (section := personal_section(run))],
        "own": own_tables([(run.name, run.own) for run in runs if run.own]),
        "attention": [attention_section(run.name, run.attention) for run in runs if run.attention],
        "silos": silo_rows(first),
        "sample_note": sample_note(first),
        "share_chart": share_chart(first),
        "releases": disclosures(first.federation, first.vocabulary_counts),
        "traffic": traffic_rows(first),
        "traffic_note": exchange_note(first.exchange),
        "traffic_chart": traffic_chart(runs),
        "audits": [section | {"run": run.name} for run in runs for section in audit.sections(run.audits)],
        "cost": quality_against_bytes(runs, metrics),
        "saved": [f"{run.name}: {line}" for run in runs if (line := saved(run))],
        "movements": [movement_section(run.name, run.movement) for run in runs if run.movement],
        "phases": [row for run in runs if (row := phase_row(run))],
        "phase_names": PHASES,
        "events": [
            {"run": run.name, "round": e.round, "node": e.node, "kind": e.kind, "text": e.text}
            for run in runs
            for e in run.events
        ],
        "configurations": [{"name": run.name, "text": dump(without_folders(run.federation))} for run in runs],
        "versions": "Hansa report. " + ", ".join(f"{name} {version}" for name, version in first.versions.items()),
    }


def _lead(run: RunResults, runs: int) -> str:
    settings = run.federation
    text = f"{len(run.cards)} silos, task {settings.task.name}, {run.parameters:,} parameters, seed {settings.seed}"
    if runs > 1:
        return f"{text}; {runs} runs compared."
    return f"{text}; {settings.kind}, method {settings.method.name}, {settings.rounds} rounds."
