"""Every benchmark ends with one line per figure and exits 1 when one falls short."""

import sys
from collections.abc import Callable
from time import perf_counter

OPERATORS: dict[str, Callable[[float, float], bool]] = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b}


class Figures:
    def __init__(self) -> None:
        self.short = False
        self.lines: list[str] = []

    def add(self, name: str, value: float, unit: str, op: str, target: float) -> None:
        good = OPERATORS[op](value, target)
        self.short |= not good
        self.lines.append(f"figure {name} {value:.3f} {unit} target {op} {target:g} {'ok' if good else 'short'}")

    def end(self) -> None:
        print("\n".join(self.lines))
        sys.exit(1 if self.short else 0)


def best_of(times: int, work: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    """The shortest of several runs, in seconds: what the machine can do when nothing else disturbs it."""
    shortest = float("inf")
    for _ in range(times):
        began = clock()
        work()
        shortest = min(shortest, clock() - began)
    return shortest
