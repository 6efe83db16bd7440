"""Early stopping and the best model, chosen by settings."""

from pathlib import Path
from typing import Any

import pytest

from hansa.core.errors import ConfigError, UserError
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from hansa.runs.selection import Selection
from tests.conftest import Build, same, weights

DATA = {"data": {"max_length": 16, "valid": 0.2, "test": 0.2}, "tokenizer": {"kind": "bytes"}, "model": "mini"}
WORSE = {"lr": 10.0, "batch": 8, "samples": {"floor": 8}}  # a learning rate that makes every round worse


def facts(folder: Path) -> dict[str, Any]:
    ledger = Ledger(folder)
    try:
        return ledger.facts()
    finally:
        ledger.close()


def test_the_best_model_is_the_final_one_also_after_a_resumption(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2, train=WORSE, evaluate={"every": 1, "keep_best": True}, **DATA)
    found = run(settings, tmp_path / "best", workers=0)
    best = facts(found.folder)["best"]
    assert best["round"] == 1, "the second round makes it worse; the start is no result of training"
    one = run(federation(rounds=1, train=WORSE, evaluate={"every": 1}, **DATA), tmp_path / "one", workers=0)
    assert same(weights(found.folder / "model"), weights(one.folder / "model"))
    assert found.metrics == one.metrics, "the test scores are those of the kept model"
    last = run(federation(rounds=2, train=WORSE, evaluate={"every": 1}, **DATA), tmp_path / "last", workers=0)
    assert last.metrics != found.metrics, "negative control: without it, the last model is the final one"
    again = run(settings, tmp_path / "best", workers=0, resume=True)
    assert again.metrics == found.metrics
    card = (found.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "This is the model after round 1, which had the best perplexity" in card


def test_a_run_without_improvement_stops(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=9, train=WORSE, evaluate={"every": 1, "patience": 2, "metric": "loss"}, **DATA)
    found = run(settings, tmp_path / "run", workers=0)
    stopped = facts(found.folder)["stopped"]
    assert stopped["round"] == 3
    assert stopped["reason"].startswith("loss has not improved since round 1")


def test_the_standing_goes_by_the_direction_of_the_metric_and_the_least_change(tmp_path: Path) -> None:
    from hansa.config.file import parse
    from hansa.runs.directory import RunDirectory
    from hansa.tasks.base import TASKS

    ledger = Ledger(tmp_path)
    for round, (loss, accuracy) in enumerate([(3.0, 0.1), (2.0, 0.3), (1.99, 0.2), (2.5, 0.6)]):
        values = {"en": {"loss": loss, "accuracy": accuracy}, "fr": {"loss": loss, "accuracy": accuracy}}
        ledger.scores(round, "valid", 1.0, values, {})
    ledger.scores(3, "test", 1.0, {"en": {"loss": 0.0, "accuracy": 1.0}}, {})

    def standing(rounds: int = 3, **evaluate: Any) -> tuple[int, int]:
        federation = parse({"silos": {"a": "x.jsonl"}, "evaluate": evaluate, "rounds": rounds})
        found = Selection(federation, TASKS.build(federation.task), ledger, RunDirectory(tmp_path)).standing()
        return found.round, found.since

    assert standing(metric="loss") == (2, 1)
    assert standing(metric="loss", min_change=0.1) == (1, 2)
    assert standing(metric="accuracy") == (3, 0)
    assert standing(metric="loss", min_change=5.0) == (1, 2), "the start does not count"
    assert standing(0, metric="loss", min_change=5.0) == (0, 3), "but in a run without rounds"
    with pytest.raises(UserError, match=r"evaluate.metric is 'bleu'.*it has: accuracy, loss"):
        standing(metric="bleu")
    ledger.close()


def test_the_best_model_is_refused_where_silos_keep_what_belongs_to_the_last(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="silos keep values of their own"):
        run(federation(method="fedper", evaluate={"keep_best": True}), tmp_path / "run", workers=0)
