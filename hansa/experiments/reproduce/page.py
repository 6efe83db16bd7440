"""The results page: a summary of all claims, the status of every section, and the sections themselves.

Beside the page (docs/results.md) lies a folder of its name: ``cells`` has the result of every finished run,
``sections`` the claims of every section. A section is *stale since COMMIT* if a source file that its runs imported has
changed after that commit; `refresh` compares digests and writes it into the page, and a test holds the page to it.
Sections of the time before cells were kept are *legacy*, and stale.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.experiments.reproduce import Reproduction
from hansa.experiments.reproduce.cells import Cell, Cells
from hansa.experiments.reproduce.verdict import OPEN

SUMMARY, CURRENT = "summary", "current"
STATUS = "**Status:** "


@dataclass(frozen=True)
class Section:
    """A section of the page: its name (``medical small``), whether its figures are of today's code, its claims."""

    name: str
    status: str
    commits: Sequence[str]
    claims: Sequence[dict[str, str]]  # name, ours, paper, verdict, why

    @property
    def line(self) -> str:
        """The status as the page shows it."""
        made = f"runs of commit {', '.join(self.commits)}" if self.commits else "no run is finished"
        return f"{STATUS}{self.status} ({made})."


def cells_folder(results: Path) -> Path:
    """The folder of the cells that belong to a page."""
    return results.with_suffix("") / "cells"


def update(results: Path, found: Reproduction) -> None:
    """Write this reproduction's section of the page, its claims, and the summary; other sections do not change."""
    name = f"{found.paper} {found.scale}"
    begin, end = (f"<!-- {edge}: {name} -->" for edge in ("begin", "end"))
    text = results.read_text(encoding="utf-8") if results.exists() else "# Results\n\nWritten by `hansa reproduce`.\n"
    section = f"{begin}\n{found.markdown()}\n{end}"
    if begin in text and end in text:
        text = text[: text.index(begin)] + section + text[text.index(end) + len(end) :]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    kept = {
        "claims": [
            {"name": c.name, "ours": c.ours, "paper": c.paper, "verdict": c.verdict.state, "why": c.verdict.why}
            for c in found.claims
        ],
        "cells": sorted(Cells.key(cell) for cell in found.cells),
        "commit": found.commit,
    }
    _keep(results, name, kept)
    results.write_text(text, encoding="utf-8")
    refresh(results)


def refresh(results: Path) -> list[Section]:
    """Write the status of every section, and the summary of all claims, into a page; return the sections."""
    text = results.read_text(encoding="utf-8")
    found = sections(results, text)
    results.write_text(refreshed(text, found), encoding="utf-8")
    return found


def refreshed(text: str, found: Sequence[Section]) -> str:
    """The text of a page with the status of its sections, and the summary, as they are now."""
    for section in found:
        begin, end = _edges(text, section.name)
        lines = [line for line in text[begin:end].split("\n") if not line.startswith(STATUS)]
        at = next(number for number, line in enumerate(lines) if line.startswith("## ")) + 1  # after the heading
        rest = "\n".join(lines[at:]).lstrip("\n")
        body = "\n".join([*lines[:at], "", section.line, "", rest])
        text = text[:begin] + body + text[end:]
    if f"<!-- begin: {SUMMARY} -->" not in text:  # below the title of the page
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n<!-- begin: {SUMMARY} -->\n<!-- end: {SUMMARY} -->\n{rest}"
    begin, end = _edges(text, SUMMARY)
    return text[:begin] + f"<!-- begin: {SUMMARY} -->\n{summary(found)}" + text[end:]


def sections(results: Path, text: str) -> list[Section]:
    """The sections of a page, in its order, with their status as of today's source files."""
    names = [name for name in re.findall(r"<!-- begin: (.+?) -->", text) if name != SUMMARY]
    return [_section(results, name) for name in names]


def summary(found: Sequence[Section]) -> str:
    """The table of all claims, in Markdown: claim, paper, ours, verdict, why."""
    lines = ["| claim | paper | ours | verdict | why |", "|---|---|---|---|---|"]
    for section in found:
        experiment, stale = section.name, "" if section.status == CURRENT else f"; {section.status}"
        for claim in section.claims:
            cells = (f"{experiment}: {claim['name']}", claim["paper"], claim["ours"], claim["verdict"])
            why = (claim["why"] + stale).removeprefix("; ")
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in (*cells, why or "–")) + " |")
    return "\n".join(lines) + "\n"


def adopt(results: Path, name: str, commit: str) -> None:
    """Keep the claims of a section that was written before cells were kept; its figures are of ``commit``.

    All its claims become not shown: the evidence for the rules was not recorded.
    """
    text = results.read_text(encoding="utf-8")
    begin, end = _edges(text, name)
    shape = re.compile(r"^- (holds|does not hold): (.+?) \(ours: (.+); paper: (.+)\)$", re.MULTILINE)
    claims = [
        {
            "name": match[2],
            "ours": match[3],
            "paper": match[4],
            "verdict": OPEN,
            "why": "the rules were not checked when it was run",
        }
        for match in shape.finditer(text[begin:end])
    ]
    _keep(results, name, {"claims": claims, "cells": [], "commit": commit, "legacy": True})
    judged = shape.sub(lambda match: match[0].replace(match[1], OPEN, 1), text[begin:end])
    results.write_text(text[:begin] + judged + text[end:], encoding="utf-8")


def _section(results: Path, name: str) -> Section:
    file = _section_file(results, name)
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not kept.get("cells"):
        commit, old = kept.get("commit", "unknown"), ", legacy" if kept.get("legacy") else ", no cells were kept"
        return Section(name, f"stale since {commit}{old}", [commit], kept.get("claims", []))
    cells = list(_cells(results, name, kept["cells"]))
    stale = [cell for cell, changed in cells if changed]
    commits = sorted({cell.commit for cell, _ in cells})
    missing = len(kept["cells"]) - len(cells)
    if missing:
        status = f"incomplete: {missing} of its cells are missing"
    else:
        status = f"stale since {', '.join(sorted({cell.commit for cell in stale}))}" if stale else CURRENT
    return Section(name, status, commits, kept["claims"])


def _cells(results: Path, name: str, keys: Sequence[str]) -> Iterator[tuple[Cell, list[str]]]:
    """The cells of a section, and the source files that have changed since each."""
    experiment, _, scale = name.rpartition(" ")
    cells = Cells(cells_folder(results), experiment, scale)
    for cell in cells.all():
        if Cells.key(cell) in keys:
            yield cell, cells.changed(cell)


def _keep(results: Path, name: str, section: dict[str, Any]) -> None:
    file = _section_file(results, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(section, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _section_file(results: Path, name: str) -> Path:
    return results.with_suffix("") / "sections" / f"{name.replace(' ', '-')}.json"


def _edges(text: str, name: str) -> tuple[int, int]:
    """Where a section begins and ends, its first mark included."""
    begin, end = (f"<!-- {edge}: {name} -->" for edge in ("begin", "end"))
    return text.index(begin), text.index(end)
