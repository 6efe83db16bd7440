"""Numbers that would spoil a model, and rows that would spoil a silo: each is stopped where it arises."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.core.errors import ConfigError, UserError
from hansa.core.exchange import problem as knowledge_problem
from hansa.core.messages import Knowledge, Update
from hansa.core.round import Record, not_finite, problem
from hansa.core.tensors import Layout, Tensors, WeightedMean
from hansa.data.importing.clean import clean
from hansa.data.rows import Problems
from hansa.methods.dga import ByLoss
from hansa.methods.fedavg import Mean
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.cli.test_cli import ok
from tests.conftest import Build, weights

LAYOUT = Layout(("w",), ((2,),))


def update(values: Any, loss: float = 1.0, samples: int = 5) -> Update:
    return Update(Tensors(LAYOUT, torch.tensor(values)), samples, 5, 1, loss, 0.1)


@pytest.mark.parametrize("unit", [1e-300, 1e-60, 1.0, 1e60, 1e300])
def test_only_ratios_of_weights_count_whatever_their_size(unit: Any) -> None:
    mean = WeightedMean(LAYOUT)
    mean.add(Tensors(LAYOUT, torch.tensor([1.0, 0.0])), unit)
    mean.add(Tensors(LAYOUT, torch.tensor([0.0, 1.0])), 3 * unit)
    assert mean.mean().flat.tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize(("first", "second"), [(1e-40, 1e40), (1e40, 1e-40)])
def test_of_weights_far_apart_the_larger_counts(first: Any, second: Any) -> None:
    mean = WeightedMean(LAYOUT)
    mean.add(Tensors(LAYOUT, torch.tensor([1.0, 0.0])), first)
    mean.add(Tensors(LAYOUT, torch.tensor([0.0, 1.0])), second)
    assert mean.mean().flat.tolist() == pytest.approx([0.0, 1.0] if second > first else [1.0, 0.0])


@pytest.mark.parametrize("temperature", [-50.0, 15.0, 50.0])
def test_a_softmax_over_losses_moves_the_model_at_every_temperature(temperature: Any) -> None:
    weighting, updates = ByLoss(temperature), [update([1.0, 0.0], 8.0), update([0.0, 1.0], 9.0)]
    combined = Mean().combine(LAYOUT, ((u, weighting.weight(u)) for u in updates))
    assert combined.flat.sum() == pytest.approx(1.0)


def test_a_temperature_beyond_all_measure_is_refused(federation: Build) -> None:
    with pytest.raises(ConfigError, match="a single silo would count"):
        federation(aggregate={"weights": {"by": "loss", "temperature": -1000}})


@pytest.mark.parametrize("loss", [1e30, float("nan"), float("inf")])
def test_a_loss_that_nobody_has_costs_its_silo_the_round(loss: Any) -> None:
    assert problem(update([1.0, 1.0]), LAYOUT) == ""
    assert "its training loss is" in problem(update([1.0, 1.0], loss), LAYOUT)


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    record = Record(3, ["a"])
    assert not_finite(record, Tensors(LAYOUT, torch.tensor([1.0, 2.0]))) == ""
    assert "not finite" in not_finite(record, Tensors(LAYOUT, torch.tensor([1.0, float("nan")])))


def test_shared_values_beyond_the_limit_are_not_passed_on() -> None:
    unasked: Any = None  # without sizes, the method's own check is not made
    shared = Knowledge(Tensors(Layout(("centroids",), ((1, 2),)), torch.tensor([0.5, 1e25])), (20,))
    assert "which embedded texts do not have" in knowledge_problem(shared, unasked, None)
    good = replace(shared, tensors=Tensors(shared.tensors.layout, torch.tensor([0.5, 3.0])))
    assert knowledge_problem(good, unasked, None) == ""


def test_data_that_changed_while_a_run_stood_still_is_refused(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=3)

    class Stop:
        def on_round_end(self, run: Any, record: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "run", workers=0, callbacks=[Stop()])
    file = Path(settings.silos["north"].sources[0].train)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:40]) + "\n")
    with pytest.raises(UserError, match=r"silos\.north: its data has changed since the run began"):
        run(settings, tmp_path / "run", resume=True, workers=0)
    file.write_text("\n".join(lines) + "\n")
    run(settings, tmp_path / "run", resume=True, workers=0)


def test_a_mistake_found_late_leaves_nothing_in_the_way(federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify")
    source = Path(settings.silos["north"].sources[0].train)
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    source.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    with pytest.raises(UserError):
        run(settings, tmp_path / "run", workers=0)
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert weights(run(settings, tmp_path / "run", workers=0).folder / "model")


def test_text_does_not_pass_for_labels(federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify")
    source = Path(settings.silos["north"].sources[0].train)
    rows = [
        json.loads(line) | {"label": f"a secret of patient {i}"}
        for i, line in enumerate(source.read_text().splitlines())
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="this field looks like free text, which must not leave the silo") as error:
        run(settings, tmp_path / "run", workers=0)
    assert "secret" not in str(error.value)


def test_every_reason_is_told_with_how_often_and_where() -> None:
    problems = Problems(lines=10)
    for line, reason in ((4, "it has 38 tokens"), (5, "it is empty"), (9, "it has 99 tokens")):
        problems.note(f"file:{line}", reason)
    [said] = problems.summary()
    assert (
        "3 of 10 lines left out, 2 of them first file:4: it has 38 tokens; 1 of them first file:5: it is empty" in said
    )


def test_a_plug_in_that_cannot_be_run_is_one_sentence_with_its_place(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def broken(:\n")
    with pytest.raises(ConfigError, match=r"mine.py cannot be run: SyntaxError.*\(mine.py:1\)"):
        run(federation(plugins=[str(tmp_path / "mine.py")]), tmp_path / "run", workers=0)


def test_how_many_take_part_is_said_once(federation: Build) -> None:
    with pytest.raises(ConfigError, match="both say how many take part; keep one"):
        federation(participation={"count": 2, "share": 0.1})


def test_bytes_are_counted_on_every_edge_of_a_tree(federation: Build, tmp_path: Path) -> None:
    flat = federation(rounds=1)
    silos = dict(flat.silos)
    tree = flat.model_dump(mode="json")["silos"]
    west = {"silos": {name: tree[name] for name in ("north", "south")}}
    settings = federation(rounds=1, silos={"west": west, "east": tree["east"]})
    ledger = Ledger(run(settings, tmp_path / "run", workers=0).folder)
    received = dict(ledger.select("select node, sum(received) from traffic group by node"))
    ledger.close()
    assert received.keys() == {"west", "east", *silos}
    assert max(received.values()) < 1.1 * min(received.values())


def test_nothing_to_score_is_said(federation: Build, tmp_path: Path) -> None:
    folder = run(federation(rounds=1), tmp_path / "run", workers=0).folder
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="nothing in it that could be scored"):
        ok("evaluate", str(folder), "--data", str(tmp_path / "empty.jsonl"))


def test_items_of_a_list_are_lines_of_their_own() -> None:
    criteria = "\n".join(
        f"* Age above {age} years and able to give informed consent to the study in writing and orally"
        for age in (18, 65)
    )
    assert [
        line for line in clean(f"Inclusion Criteria:\n\n{criteria}", "text", False).split("\n") if line.strip()
    ] == [
        "Inclusion Criteria:",
        *(line.removeprefix("* ") for line in criteria.split("\n")),
    ]


def test_an_upload_that_lets_nothing_through_is_noted(federation: Build, tmp_path: Path) -> None:
    ledger = Ledger(
        run(federation(rounds=2, upload={"name": "calm", "keep": 1e-6}), tmp_path / "run", workers=0).folder
    )
    noted = ledger.select("select distinct round, text from events where kind='refused'")
    ledger.close()
    assert [(round, "raise upload.keep" in text) for round, text in noted] == [(2, True)]
