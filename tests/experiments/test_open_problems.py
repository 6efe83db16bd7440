"""The open problems of the Medical paper: every solution is run, and its figures judge the claim."""

import json
from pathlib import Path

import pytest

from hansa.core.errors import UserError
from hansa.experiments.reproduce import Options, open_problems
from hansa.experiments.reproduce.open_problems import ADAPTIVE, BUFFERED, FAIRNESS, PLAIN, USUAL


def test_the_smoke_scale_runs_every_solution(tmp_path: Path) -> None:
    found = open_problems.reproduce(Options("smoke", None, tmp_path / "out", lambda line: None))
    assert [table.title.split(":")[0] for table in found.tables] == [
        "Fairness", "Stability", "Stragglers", "Nearby silos",
    ]  # fmt: skip
    assert [row[0] for row in found.tables[0].rows] == list(FAIRNESS)
    clock = {row[0]: float(row[1]) for row in found.tables[2].rows}
    assert clock[USUAL] == 4 * 8.0, "every round waits for the slow silo"
    assert clock[BUFFERED] < clock[USUAL]
    assert len(found.tables[3].rows) == 9
    assert found.report.is_file()
    assert len(json.loads(json.dumps(found.as_dict()))["claims"]) == 4
    assert {cell.arm for cell in found.cells} == {*FAIRNESS, ADAPTIVE, BUFFERED}
    fresh, said = tmp_path / "fresh", list[str]()
    cells = tmp_path / "out" / "cells"
    again = open_problems.reproduce(Options("smoke", None, fresh, said.append, cells=cells, finished=True))
    assert again.tables == found.tables, "from the cells alone"
    assert not [line for line in said if "started" in line]
    assert again.report == fresh / "report.md"


def judge(
    changes: open_problems.Final | None = None,
    times: tuple[float, float] = (10.0, 20.0),
    valid: open_problems.Final | None = None,
) -> list[bool]:
    final = {label: {"en": 5.0, "he": 10.0} for label in (*FAIRNESS, ADAPTIVE, BUFFERED)}
    final[PLAIN] = {"en": 4.0, "he": 20.0}
    own = {"en": {"personalised": 5.0, "nearby": 4.0}}
    final |= changes or {}
    curves = {
        label: {code: [99.0, v] for code, v in by_code.items()} for label, by_code in (final | (valid or {})).items()
    }
    claims = open_problems.claims(final, curves, dict(zip((BUFFERED, USUAL), times, strict=True)), own)
    return [claim.holds for claim in claims]


def test_claims_are_judged_by_the_figures() -> None:
    assert judge() == [True, True, True, True]
    assert judge({PLAIN: {"en": 4.0, "he": 10.1}}) == [False, True, True, True]
    assert judge({ADAPTIVE: {"en": 4.0, "he": 10.1}}) == [True, False, True, True], "the worst language"
    assert judge({ADAPTIVE: {"en": 9.0, "he": 9.0}}) == [True, False, True, True], "the mean"
    assert judge(times=(float("inf"), 20.0)) == [True, True, False, True], "it never got there"


def test_the_fairest_weights_are_selected_on_validation_data() -> None:
    best, flattered = {"en": 5.0, "he": 10.0}, {"en": 5.0, "he": 19.5}
    final = {"uniform": flattered} | dict.fromkeys((name for name in FAIRNESS if name not in (PLAIN, "uniform")), best)
    assert judge(final)[0] is True
    assert judge(final, valid={"uniform": {"en": 1.0, "he": 1.0}})[0] is False, "chosen, although worse on test data"


def test_runs_are_named_by_what_they_vary(tmp_path: Path) -> None:
    cells = Options("small", None, tmp_path, print).cells_of("open-problems")
    labels = list(open_problems.variants(open_problems.SIZES["small"]))
    assert len({cells.file(label, 0) for label in labels}) == len(labels), "no two share a file"
    assert cells.file(USUAL, 0).name == "weights-√N.0.json"


def test_options_of_other_papers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--encoder is not an option of 'hansa reproduce open-problems'"):
        open_problems.reproduce(Options("smoke", None, tmp_path / "out", print, encoder="x"))
