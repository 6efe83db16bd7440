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


def judge(changes: open_problems.Final | None = None, times: tuple[float, float] = (10.0, 20.0)) -> list[bool]:
    final = {label: {"en": 5.0, "he": 10.0} for label in (*FAIRNESS, ADAPTIVE, BUFFERED)}
    final[PLAIN] = {"en": 4.0, "he": 20.0}
    own = {"en": {"personalised": 5.0, "nearby": 4.0}}
    claims = open_problems.claims(final | (changes or {}), dict(zip((BUFFERED, USUAL), times, strict=True)), own)
    return [claim.holds for claim in claims]


def test_claims_are_judged_by_the_figures() -> None:
    assert judge() == [True, True, True, True]
    assert judge({PLAIN: {"en": 4.0, "he": 10.1}}) == [False, True, True, True]
    assert judge({ADAPTIVE: {"en": 4.0, "he": 10.1}}) == [True, False, True, True], "the worst language"
    assert judge({ADAPTIVE: {"en": 9.0, "he": 9.0}}) == [True, False, True, True], "the mean"
    assert judge(times=(float("inf"), 20.0)) == [True, True, False, True], "it never got there"


def test_options_of_other_papers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--encoder is not an option of 'hansa reproduce open-problems'"):
        open_problems.reproduce(Options("smoke", None, tmp_path / "out", print, encoder="x"))
