"""`hansa reproduce`: a paper's experiments beside ours, its tables in our figures, its claims one by one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hansa.core.errors import UserError

Scale = Literal["smoke", "small", "full"]
Say = Callable[[str], None]

# A paper's module, `hansa.experiments.reproduce.NAME`, has one function: reproduce(Asked) -> Reproduction.
PAPERS = ("medical", "translation", "worldlm", "fedkc", "open-problems")


@dataclass(frozen=True)
class Asked:
    """What the user asked for. Options that a paper has no use for are refused by its module."""

    scale: Scale
    data: Path | None  # the folder with the real corpora
    out: Path
    say: Say
    encoder: str | None = None  # medical: also fine-tune this encoder
    model: str | None = None  # start from this one instead of our own
    tune: bool = False  # choose the methods' settings anew on validation data, and print them

    def need_text(self) -> None:
        if self.scale != "smoke" and self.data is None:
            raise UserError(f"--scale {self.scale} needs real text: give the folder with --data (or use --scale smoke)")

    def refuse(self, paper: str, *options: str) -> None:
        """Options that mean nothing to this paper."""
        for option in options:
            if getattr(self, option):
                raise UserError(f"--{option} is not an option of 'hansa reproduce {paper}': leave it out")


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|---" + "|---:" * (len(self.columns) - 1) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


@dataclass(frozen=True)
class Claim:
    """Something the paper shows, and whether it shows here: both figures, so that a reader can judge."""

    name: str
    holds: bool
    ours: str
    paper: str

    @property
    def line(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.name} (ours: {self.ours}; paper: {self.paper})"


@dataclass(frozen=True)
class Reproduction:
    paper: str
    scale: str
    tables: Sequence[Table]
    claims: Sequence[Claim]
    report: Path
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    tuning: float = 0.0  # of these seconds, how many went into the choice of settings
    goes: int = 1  # it was stopped and resumed in between

    def as_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "scale": self.scale,
            "claims": [asdict(claim) for claim in self.claims],
            "tables": [asdict(table) for table in self.tables],
            "report": str(self.report),
            "seconds": round(self.seconds, 1),
            **self.facts,
        }

    def markdown(self) -> str:
        lines = [f"## {self.paper.capitalize()}, scale {self.scale}", ""]
        given = ", from a snapshot made before" if self.facts.get("snapshot", "ours") != "ours" else ""
        tune, of_it = (" --tune", f", of which {self.tuning / 60:.1f} to choose settings") if self.tuning else ("", "")
        command = f"`hansa reproduce {self.paper} --scale {self.scale}{tune}`"
        again = f", in {self.goes} goes" if self.goes > 1 else ""
        lines += [f"{command}{given}, {self.seconds / 60:.1f} minutes in all{of_it}{again}.", ""]
        lines += [f"- {claim.line}" for claim in self.claims]
        return "\n".join([*lines, "", *(table.markdown() for table in self.tables)])


def clocked(folder: Path, seconds: float) -> list[float]:
    """How long each go took in this folder, the latest with them."""
    file = folder / "seconds.json"
    took = [*(json.loads(file.read_text()) if file.is_file() else []), round(seconds, 1)]
    if folder.is_dir() and any(folder.iterdir()):  # else nothing was begun
        file.write_text(json.dumps(took))
    return took


def update_results(file: Path, found: Reproduction) -> None:
    """Replace this reproduction's section of the results page, and leave the others alone."""
    begin, end = (f"<!-- {edge}: {found.paper} {found.scale} -->" for edge in ("begin", "end"))
    text = file.read_text(encoding="utf-8") if file.exists() else "# Results\n\nWritten by `hansa reproduce`.\n"
    section = f"{begin}\n{found.markdown()}\n{end}"
    if begin in text and end in text:
        text = text[: text.index(begin)] + section + text[text.index(end) + len(end) :]
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    file.write_text(text, encoding="utf-8")
