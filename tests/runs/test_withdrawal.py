"""Withdrawal: a run that is repeated without a silo has nothing of it, and equals a run that never had it."""

from pathlib import Path
from typing import Any

import pytest

from hansa.config.nodes import Node, leaves
from hansa.core.errors import UserError
from hansa.report import html
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.remains import Remains, note_withdrawal, remains, withdrawal_lines
from hansa.runs.results import RunResults
from hansa.runs.run import run
from hansa.runs.withdrawal import plan_retraining, retrain, without
from tests.conftest import Build, same, weights


def of(folder: Path, silo: str) -> Remains:
    ledger = Ledger(folder)
    try:
        return remains(ledger, silo)
    finally:
        ledger.close()


def test_from_the_start_it_equals_a_run_of_the_file_without_the_silo(federation: Build, tmp_path: Path) -> None:
    settings = federation(server={"optimizer": "adam", "lr": 0.01})
    before = run(settings, tmp_path / "all", workers=0).folder
    plan = plan_retraining(before, "south")
    assert plan.begin == 0
    assert "built again" in plan.why
    again = retrain(plan, workers=0).folder
    assert again == tmp_path / "all-without-south"
    silos = {name: node for name, node in settings.silos.items() if name != "south"}
    fresh = run(settings.model_copy(update={"silos": silos}), tmp_path / "fresh", workers=0).folder
    assert same(weights(again / "model"), weights(fresh / "model"))
    assert (again / "start" / "tokenizer.json").read_bytes() == (fresh / "start" / "tokenizer.json").read_bytes()
    assert not same(weights(again / "model"), weights(before / "model")), "the control: south had an influence"
    assert of(again, "south") == Remains((), 0.0, False)
    page = html.write([("again", again)], tmp_path / "report.html").read_text()
    assert "repeats another one from the start without south" in page


def test_what_remains_is_stated(federation: Build, tmp_path: Path) -> None:
    folder = run(federation(), tmp_path / "run", workers=0).folder
    found = of(folder, "north")
    assert found.rounds == (1, 2, 3)
    cards = RunResults.read(folder).cards
    share = cards["north"].samples() / sum(card.samples() for card in cards.values())
    assert found.share == pytest.approx(share), "its share of the training samples"
    assert found.in_start
    assert found.text == (
        f"it took part in 3 rounds between 1 and 3, with {share:.1%} of their training samples; the tokenizer and the "
        "labels were built from its counts, too"
    )
    ledger = Ledger(folder)
    note_withdrawal(ledger, "north", cards["north"].samples(), 3)
    [line] = withdrawal_lines(ledger.facts())
    ledger.close()
    assert line.startswith("north left after round 3: it took part in 3 rounds between 1 and 3")
    assert "north left after round 3" in html.write([("run", folder)], tmp_path / "report.html").read_text()


@pytest.fixture
def late(federation: Build, tmp_path: Path) -> Any:
    """A run from given weights, with one silo per round and all checkpoints, and the silo that comes in last."""
    start = run(federation(rounds=0), tmp_path / "start", workers=0).folder / "start"
    settings = federation(
        model={"path": str(start)},
        tokenizer={"path": str(start)},
        participation={"count": 1},
        rounds=6,
        seed=3,
        checkpoint={"every": 1, "keep": 99},
    )
    folder = run(settings, tmp_path / "all", workers=0).folder
    firsts = {name: (of(folder, name).rounds or (99,))[0] for name in settings.silos}
    silo = max((name for name in firsts if firsts[name] < 99), key=lambda name: firsts[name])
    assert firsts[silo] > 1
    return folder, silo, firsts[silo]


def test_it_begins_at_the_last_checkpoint_before_the_silo(late: Any, tmp_path: Path) -> None:
    folder, silo, first = late
    plan = plan_retraining(folder, silo)
    assert plan.begin == first - 1
    again = retrain(plan, tmp_path / "again", workers=0).folder
    old, new = RunDirectory(folder), RunDirectory(again)
    kept = (old.restore(plan.begin, {}).model.flat, new.restore(plan.begin, {}).model.flat)
    assert (kept[0] == kept[1]).all()
    assert new.checkpoints()[-1] == 6
    assert of(again, silo).rounds == ()
    ledger = Ledger(again)
    assert [number for (number,) in ledger.select("select round from rounds order by round")] == [1, 2, 3, 4, 5, 6]
    ledger.close()
    assert plan_retraining(folder, silo, from_start=True).begin == 0


def test_state_that_depends_on_others_is_not_continued(late: Any) -> None:
    folder, silo, _ = late
    file = folder / "federation.yaml"
    file.write_text(file.read_text() + "method: {name: scaffold}\n")
    plan = plan_retraining(folder, silo)
    assert plan.begin == 0
    assert "keep state" in plan.why


def test_regions_and_settings_that_name_the_silo_go_with_it(federation: Build) -> None:
    flat = federation(simulate={"delay": {"east": 2.0}}, participation={"count": 2})
    tree = flat.model_copy(
        update={"silos": {"north": flat.silos["north"], "far": Node(silos={"east": flat.silos["east"]})}}
    )
    left = without(tree, "east")
    assert list(leaves(left.silos)) == ["north"]
    assert left.participation.count == 1
    assert not left.simulate.delay
    with pytest.raises(UserError, match="the only silo"):
        without(left, "north")
    with pytest.raises(UserError, match="did you mean 'north'"):
        without(tree, "norht")


def test_what_is_no_run_or_was_run_between_organisations_is_refused(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        plan_retraining(tmp_path, "south")
    folder = run(federation(rounds=0), tmp_path / "run", workers=0).folder
    (folder / "server").mkdir()
    with pytest.raises(UserError, match="hansa kit revoke AUTHORITY south"):
        plan_retraining(folder, "south")
