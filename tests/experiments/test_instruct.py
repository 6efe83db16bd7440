"""Instruction tuning over nine silos at its smallest: every arm runs, is kept, and is judged."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.core.errors import UserError
from hansa.experiments.reproduce import Options, Reproduction, instruct, pretrained
from hansa.experiments.reproduce.cells import Cell, content_of
from hansa.experiments.reproduce.instruct_runs import FEDERATED, SIZES, federation, first_sentences, generate, half
from hansa.experiments.reproduce.study import BASE, figure
from hansa.experiments.reproduce.verdict import OPEN


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Options, Reproduction]:
    options = Options("smoke", None, tmp_path_factory.mktemp("instruct"), lambda line: None)
    return options, instruct.reproduce(options)


def test_every_arm_has_a_row_and_a_cell(smoke: tuple[Options, Reproduction]) -> None:
    scores, silos, rates = smoke[1].tables
    assert [row[0] for row in scores.rows] == [BASE, "central", "average", "alone", *list(FEDERATED)[1:]]
    assert all("–" not in row[1:4] for row in scores.rows)
    assert {row[0] for row in silos.rows} == {"cancer", "diabetes-digestive-kidney", "genetics"}
    assert [row[0] for row in rates.rows] == ["central", "average", "alone"]
    assert {cell.arm.split(" lr ")[0] for cell in smoke[1].cells} == {row[0] for row in scores.rows}
    trained = {cell.samples for cell in smoke[1].cells if cell.arm != BASE}
    assert len(trained) == 1, "every arm trains on as many samples"
    down = {cell.arm.split(" lr ")[0]: cell.bytes_down for cell in smoke[1].cells}
    assert down["exact"] > down["average"] > down["freeze A"], "the residual goes down; without A less does"
    assert all(claim.verdict.state == OPEN for claim in smoke[1].claims), "one seed shows nothing"


def test_finished_cells_give_the_same_tables_without_any_run(smoke: tuple[Options, Reproduction]) -> None:
    options, found = smoke
    again = instruct.reproduce(replace(options, finished=True))
    assert again.tables == found.tables
    assert json.dumps(again.as_dict()["claims"]) == json.dumps(found.as_dict()["claims"])
    nothing = instruct.reproduce(replace(options, finished=True, cells=options.out / "none"))
    assert all(row[1] == "–" for row in nothing.tables[0].rows)
    assert {claim.verdict.why for claim in nothing.claims} == {"its runs are not finished"}


def test_the_tiny_model_is_the_same_each_time(tmp_path: Path) -> None:
    one, other = (content_of(pretrained.tiny(tmp_path / name)) for name in ("one", "other"))
    assert one == other


def test_arms_differ_only_in_what_their_name_says(tmp_path: Path) -> None:
    silos, size = generate(tmp_path), SIZES["medium"]
    template = {"template": "chatml"}

    def settings(arm: str) -> dict[str, object]:
        return federation(arm, silos, "model", size, 1e-3, 0, **template).model_dump()

    average = settings("average")
    for arm in FEDERATED:
        other = settings(arm)
        differ = {key for key in average if average[key] != other[key]}
        assert differ <= {"method", "model"}, arm
        assert bool(differ) == (arm != "average")
    assert size.steps == 9 * size.rounds * size.local_steps(9), "200 steps, shared evenly by nine silos, are 198"


def test_an_answer_keeps_its_first_whole_sentences_that_fit() -> None:
    text = "One two. Three four five. Six."

    def fits(limit: int) -> str:
        return first_sentences(text, lambda some: len(some.split()) <= limit)

    assert [fits(1), fits(2), fits(5), fits(6)] == ["", "One two.", "One two. Three four five.", text]


def test_dev_rows_fall_into_halves_by_their_content() -> None:
    rows = [{"question": f"q {i}", "answer": "a"} for i in range(200)]
    halves = [half(row) for row in rows]
    assert halves == [half(dict(row)) for row in rows]
    assert 70 < halves.count("valid") < 130


def test_figures_show_how_many_seeds_they_have() -> None:
    assert [figure(values) for values in ((), (1.0,), (1.0, 3.0), (1.0, 2.0, 3.0))] == [
        "–",
        "1.0000¹",
        "2.0000 ± 1.4142²",
        "2.0000 ± 1.0000",
    ]


def test_claims_need_three_seeds_and_the_margin() -> None:
    def seeds(*losses: float) -> Sequence[Cell]:
        scores = ({"cancer": {"loss": loss}} for loss in losses)
        return [Cell("instruct", "small", "", 0, "", one, {}, {}, {}, 1, 1, 1, 1.0, 0.0, "", "", "") for one in scores]

    class Grids:
        def grid(self, arm: str) -> dict[float, float]:
            return {1e-4: 3.0, 1e-3: 2.0, 1e-2: 3.0}

    found = {BASE: seeds(4.0), "average": seeds(2.0, 2.01, 2.02), "central": seeds(2.0, 2.0, 2.0)}
    found["alone"] = seeds(2.5, 2.5, 2.5)
    assert [claim.verdict.state for claim in instruct.claims(found, Grids(), True)] == ["holds"] * 3  # type: ignore[arg-type]
    found["average"] = seeds(2.1, 2.11, 2.12)
    states = [claim.verdict.state for claim in instruct.claims(found, Grids(), True)]  # type: ignore[arg-type]
    assert states == ["does not hold", "holds", "holds"]


def test_options_that_are_not_its_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--encoder is not an option"):
        instruct.reproduce(Options("smoke", None, tmp_path, lambda line: None, encoder="x"))
    with pytest.raises(UserError, match="'instruct' has no --scale full; it has: smoke, small, medium"):
        instruct.reproduce(Options("full", tmp_path, tmp_path, lambda line: None))
