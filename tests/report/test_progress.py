"""The progress display: names of splits, phases after the rounds, narrow terminals."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hansa.config.file import parse
from hansa.report.progress import Progress
from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord

SILOS = ("general-hospital-of-the-north", "west")


def shown(width: int, phase: bool = False) -> list[str]:
    """The live display after a round, or in a phase after the rounds, line by line."""
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    run = CurrentRun(parse({"silos": dict.fromkeys(SILOS, "x.jsonl"), "rounds": 3}), Path("."))
    run.samples = dict.fromkeys(SILOS, 1200)
    display = Progress(console, "clinics")
    display.on_run_start(run)
    display.on_silo(run, "west", "done")
    scores = {"en": {"strict_f1": 0.5}}
    by_silo = {SILOS[0]: {"en": {"strict_f1": 0.25}}, "west": {"en": {"strict_f1": 0.75}}}
    display.on_evaluate(run, Evaluation(1, "valid", 1.0, "strict_f1", scores, by_silo))
    display.on_round_end(run, RoundRecord(1, SILOS, 0.4, {}, {}, {}, (), {}, {}, {}, 1.0, {}))
    if phase:
        display.on_phase(run, "personal models", 0, 2)
        display.on_phase(run, "personal models", 1, 2)
    picture = Console(file=StringIO(), width=width, color_system=None)
    picture.print(display._table())
    display.stop()
    assert isinstance(picture.file, StringIO)
    return picture.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    assert any("1/3" in line for line in lines)
    assert any("west" in line and "done" in line for line in lines)


def test_scores_are_named_by_their_data_and_stand_beside_their_silo() -> None:
    text = "\n".join(shown(160))
    assert "validation strict_f1 0.5" in text
    [west] = [line for line in text.splitlines() if "west" in line]
    assert west.split()[-1] == "0.75"


def test_a_phase_after_the_rounds_has_its_own_line_and_no_silo_is_done() -> None:
    lines = shown(160, phase=True)
    assert any("personal models: 1/2, about" in line and "left" in line for line in lines)
    assert not any("done" in line for line in lines)


def test_plain_lines_say_when_a_phase_begins_and_ends() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=False)
    run = CurrentRun(parse({"silos": {"west": "x.jsonl"}}), Path("."))
    display = Progress(console)
    for done in range(4):
        display.on_phase(run, "personal models", done, 3)
    assert isinstance(console.file, StringIO)
    assert [line.split(",")[0] for line in console.file.getvalue().splitlines()] == [
        "personal models: 0/3",
        "personal models: 3/3",
    ]
