"""What every benchmark shares: its options, its figures, and their targets.

    python benchmarks/NAME.py [--smoke] [--json FILE]

A benchmark prints one line per figure and exits 1 when one misses its target. ``--smoke`` runs it on tiny inputs, to
see that it works; the figures then mean nothing and no target is judged. ``--json`` also writes the figures to a file,
from which `_page.py` writes docs/benchmarks.md and the table in the README.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}


@dataclass(frozen=True)
class Figure:
    """One measured number: its name, what it is in words, and the target it is held against."""

    name: str
    what: str
    value: float
    unit: str
    operator: str
    target: float

    @property
    def good(self) -> bool:
        return OPERATORS[self.operator](self.value, self.target)

    @property
    def line(self) -> str:
        judged = "ok" if self.good else "short"
        return f"figure {self.name} {self.value:.3f} {self.unit} target {self.operator} {self.target:g} {judged}"


@dataclass
class Figures:
    """The figures of one benchmark."""

    smoke: bool = False
    json: Path | None = None
    found: list[Figure] = field(default_factory=list)

    @staticmethod
    def from_arguments() -> "Figures":
        parser = argparse.ArgumentParser()
        parser.add_argument("--smoke", action="store_true", help="tiny inputs: only to see that it works")
        parser.add_argument("--json", type=Path, help="also write the figures to this file")
        given = parser.parse_args()
        return Figures(given.smoke, given.json)

    def add(self, name: str, what: str, value: float, unit: str, operator: str, target: float) -> None:
        self.found.append(Figure(name, what, float(value), unit, operator, target))

    def end(self) -> None:
        """Print the figures and leave: exit code 1 if one missed its target."""
        assert self.found, "a benchmark without figures"
        print("\n".join(figure.line for figure in self.found))
        if self.json is not None:
            self.json.write_text(json.dumps([asdict(figure) for figure in self.found]), encoding="utf-8")
        sys.exit(0 if self.smoke or all(figure.good for figure in self.found) else 1)


def best_of(times: int, work: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    """The shortest of several runs, in seconds: what the machine can do when nothing else disturbs it."""
    shortest = float("inf")
    for _ in range(times):
        began = clock()
        work()
        shortest = min(shortest, clock() - began)
    return shortest
