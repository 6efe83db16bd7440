"""Results: typed records that agree with what a run noted, and summaries with the right direction."""

from pathlib import Path

import pytest

from hansa.core.errors import UserError
from hansa.runs.ledger import Ledger
from hansa.runs.results import NO_COUNTS, RunResults, lower_is_better, read_scores, save_audit
from hansa.runs.run import run
from hansa.runs.summary import average, compare_metric, costs, mean_and_deviation, metric_names, worst
from tests.conftest import Build


def test_the_results_of_a_run_are_those_of_its_outcome_and_ledger(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=3, sizes={"north": 60, "south": 40}, evaluate={"every": 1, "share": 0.5})
    outcome = run(settings, tmp_path / "run", workers=0)
    found = RunResults.read(outcome.folder, "mine")
    assert (found.name, found.federation, found.final) == ("mine", settings, outcome.metrics)
    assert {name: card.samples() for name, card in found.cards.items()} == found.samples, "one language per silo"
    assert [len(curve) for curve in found.curves.values()] == [4, 4], "before the first round, and after each"
    samples = [at for at, _ in found.curves["north"]]
    assert samples == sorted(samples)
    assert (found.phases.rounds, len(found.times), len(found.traffic)) == (3, 4, 2)
    ledger = Ledger(outcome.folder)
    [(sent, received)] = ledger.select("select sum(sent), sum(received) from traffic")
    ledger.close()
    assert (found.bytes_down, found.bytes_up) == (sent, received)
    assert found.personal is None
    assert (found.exchange.up, found.exchange.down, found.own, found.audits) == (0, 0, {}, ())
    assert found.vocabulary_counts != NO_COUNTS, "the silos built the vocabulary"


def test_scores_can_be_read_by_metric_and_split(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2, sizes={"north": 60, "south": 40}, evaluate={"every": 1, "share": 0.5})
    folder = run(settings, tmp_path / "run", workers=0).folder
    losses = read_scores(folder, "loss")
    assert {score.metric for score in losses} == {"loss"}
    assert {score.metric for score in read_scores(folder)} > {"loss", "perplexity"}
    assert [(s.round, s.share) for s in losses if s.group == "north"] == [(0, 0.5), (1, 0.5), (2, 0.5), (2, 1.0)]
    final = RunResults.read(folder).final
    assert {s.group: s.value for s in losses if s.share == 1.0} == {g: m["loss"] for g, m in final.items()}
    assert read_scores(folder, split="valid") == []
    assert read_scores(folder, own=True) == []


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        RunResults.read(tmp_path)


def test_audits_are_read_as_they_were_saved(federation: Build, tmp_path: Path) -> None:
    folder = run(federation(rounds=1), tmp_path / "run", workers=0).folder
    save_audit(folder, {"kind": "price", "rows": ["ε"]})
    assert RunResults.read(folder).audits == ({"kind": "price", "rows": ["ε"]},)


def test_summaries_know_which_direction_is_better(federation: Build, tmp_path: Path) -> None:
    found = RunResults.read(run(federation(rounds=1), tmp_path / "run", workers=0).folder)
    assert lower_is_better(found.task, "perplexity")
    assert not lower_is_better(found.task, "accuracy")
    assert metric_names([found])[0] == "perplexity", "the headline stands first"
    assert "loss" not in metric_names([found])
    for metric, pick in (("perplexity", max), ("accuracy", min)):
        compared = compare_metric([found, found], metric)
        values = [metrics[metric] for metrics in found.final.values()]
        assert compared.rows[-1].values == (pick(values), pick(values)), "the worst language"
        assert all(row.best is None for row in compared.rows), "equal runs have no best one"
    [cost] = costs([found], ["accuracy"])
    assert cost.quality == {"accuracy": average(found.final, "accuracy")}
    assert cost.up == found.bytes_up


def test_averages_over_groups() -> None:
    final = {"en": {"f1": 0.8}, "fr": {"f1": 0.2}, "de": {}}
    assert average(final, "f1") == pytest.approx(0.5)
    assert average(final, "f1", {"en": 3.0, "fr": 1.0}) == pytest.approx(0.65)
    assert average(final, "f1", {}) is None
    assert average(final, "bleu") is None
    assert worst(final, "f1", lower=False) == 0.2
    assert worst(final, "f1", lower=True) == 0.8
    assert mean_and_deviation(final, "f1") == pytest.approx((0.5, 0.3))
    assert mean_and_deviation(final, "bleu") is None
