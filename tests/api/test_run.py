"""`hansa.run`, `rounds`, `compare`, `load`: same bits from Python and YAML, records, frames, and what goes wrong."""

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import hansa
from hansa.core.method import METHODS
from hansa.methods.fedprox import Proximal
from hansa.runs.compare import identical
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from tests.api.conftest import Make, rows
from tests.conftest import same, weights


def mine(mu: float = 0.1) -> hansa.Method:
    return dataclasses.replace(hansa.methods.fedavg(), name="mine", objective=Proximal(mu))


def test_python_and_yaml_give_the_same_bits_with_any_number_of_workers(make: Make, tmp_path: Path) -> None:
    fed = make(method=hansa.methods.fedprox(mu=0.1))
    here = hansa.run(fed, out=tmp_path / "here", workers=0, progress=False)
    pool = hansa.run(make(method=mine()), out=tmp_path / "pool", workers=2, progress=False)
    file = fed.placed(tmp_path / "files")
    text = hansa.Federation.from_settings(file).to_yaml(tmp_path / "fed.yaml")
    assert "memory:" not in text
    yaml = hansa.run(tmp_path / "fed.yaml", out=tmp_path / "yaml", workers=0, progress=False)
    assert same(weights(here.folder / "model"), weights(pool.folder / "model"))
    assert same(weights(here.folder / "model"), weights(yaml.folder / "model"))
    plain = hansa.run(make(), out=tmp_path / "plain", workers=0, progress=False)
    assert not same(weights(here.folder / "model"), weights(plain.folder / "model")), "the method makes a difference"


def test_scores_are_a_data_frame_that_equals_the_ledger(make: Make, tmp_path: Path) -> None:
    result = hansa.run(make(), out=tmp_path / "run", workers=0, progress=False)
    assert list(result.scores.columns) == ["round", "silo", "language", "split", "metric", "value"]
    assert set(result.scores["silo"]) == {"north", "south"}
    assert set(result.scores["round"]) == {0, 1, 2}
    ledger = Ledger(result.folder)
    noted = set(ledger.select("select round, silo, grp, split, metric, value from silo_metrics"))
    ledger.close()
    assert {tuple(row) for row in result.scores.itertuples(index=False)} == noted
    test = result.scores.query("split == 'test' and metric == 'accuracy' and silo == 'north'")
    assert test["value"].item() == result.metrics["north"]["accuracy"]
    assert list(result.rounds["round"]) == [1, 2]
    assert (result.traffic.groupby("silo")["up"].sum() > 0).all()
    assert len(result.plot().axes[0].lines) == 2
    with pytest.raises(hansa.UserError, match="has no scores 'bleu'; it has: accuracy"):
        result.plot("bleu")
    loaded = hansa.load(tmp_path / "run")
    assert loaded.scores.equals(result.scores)
    assert loaded.metrics == result.metrics
    assert "north" in repr(loaded)
    assert "<table" in loaded._repr_html_()


def test_rounds_can_be_stepped_through_and_looked_at(make: Make, tmp_path: Path) -> None:
    """The server's model moves by the weighted mean of the updates that the record shows."""
    steps = hansa.rounds(make(rounds=3), out=tmp_path / "run", workers=0)
    with pytest.raises(hansa.UserError, match="has not begun"):
        _ = steps.result
    first = next(steps)
    assert (first.number, first.participants) == (1, ("north", "south"))
    assert set(first.updates) == set(first.losses) == set(first.scores) == set(first.bytes) == {"north", "south"}
    assert first.seconds > 0
    assert set(first.scores["north"]) >= {"accuracy", "loss"}
    name, gradient = next(iter(first.updates["north"].items()))
    assert isinstance(gradient, torch.Tensor)
    before = gradient.clone()
    second = next(steps)
    assert torch.equal(gradient, before), "a record stays as it was"
    assert not torch.equal(second.updates["north"][name], gradient)
    steps.close()
    assert RunDirectory(tmp_path / "run").checkpoints() == [2], "a caller that leaves the loop leaves a checkpoint"
    assert isinstance(steps.result.model, torch.nn.Module)
    resumed = hansa.run(make(rounds=3), out=tmp_path / "run", resume=True, workers=0, progress=False)
    whole = hansa.run(make(rounds=3), out=tmp_path / "whole", workers=0, progress=False)
    assert same(weights(resumed.folder / "model"), weights(whole.folder / "model"))


def test_a_caller_can_stop_a_run_which_then_ends_properly(make: Make, tmp_path: Path) -> None:
    steps = hansa.rounds(make(rounds=50), out=tmp_path / "run", workers=0, updates=False)
    for record in steps:
        assert not record.updates
        if record.number == 2:
            steps.stop("enough")
    assert steps.result.metrics["north"]["loss"] > 0, "scored on the test set"
    assert (tmp_path / "run" / "model" / "config.json").is_file()
    short = hansa.run(make(rounds=2), out=tmp_path / "short", workers=0, progress=False)
    assert same(weights(tmp_path / "run" / "model"), weights(short.folder / "model"))


def test_masked_updates_are_not_shown(make: Make, tmp_path: Path) -> None:
    silos = {name: rows("north", 40) for name in ("a", "b", "c", "d")}
    fed = make(silos=silos, secure_aggregation=True, rounds=1)
    record = next(hansa.rounds(fed, out=tmp_path / "run", workers=0))
    assert record.updates == {}


def test_a_comparison_has_a_table_and_keeps_what_did_not_fail(make: Make, tmp_path: Path) -> None:
    class Broken(Proximal):
        def gradient(self, work: Any) -> None:
            work.learner.grad.fill_(float("nan"))

    broken = dataclasses.replace(hansa.methods.fedavg(), name="broken", objective=Broken(0.1))
    methods: list[str | hansa.Method] = ["fedavg", mine(), mine(0.3), broken]
    found = hansa.compare(make(rounds=1), methods, out=tmp_path / "all", workers=0, progress=False)
    assert list(found.table.index) == ["fedavg", "mine", "mine-2"]
    assert list(found.failures) == ["broken"]
    assert "valid update" in found.failures["broken"]
    assert found.table["mean accuracy"]["fedavg"] == pytest.approx(
        sum(one["accuracy"] for one in found.results["fedavg"].metrics.values()) / 2
    )
    assert set(found.scores["method"]) == {"fedavg", "mine", "mine-2"}
    assert found.report().is_file()
    with pytest.raises(hansa.UserError, match="is not empty"):
        hansa.compare(make(), ["fedavg"], out=tmp_path / "all", workers=0)
    with pytest.raises(hansa.ConfigError, match="'fedprx' is not known"):
        hansa.compare(make(), ["fedprx"], out=tmp_path / "none", workers=0)
    assert not (tmp_path / "none").exists(), "nothing is left behind"


@pytest.mark.parametrize("text", ["lock", "generator"])
def test_a_method_that_cannot_be_sent_to_workers_is_named(make: Make, tmp_path: Path, text: str) -> None:
    class Holding(Proximal):
        pass

    held = Holding(0.1)
    object.__setattr__(held, "held", threading.Lock() if text == "lock" else (i for i in range(3)))
    fed = make(method=dataclasses.replace(mine(), objective=held))
    with pytest.raises(hansa.ConfigError, match=r"method 'mine \(in memory\)' cannot be sent to worker processes"):
        hansa.run(fed, out=tmp_path / "run", workers=2, progress=False)
    assert not (tmp_path / "run").exists()
    METHODS.entries.pop("mine (in memory)")


def test_data_that_changes_is_noticed(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    north = rows("north", 60)
    fed = make(silos={"north": north, "south": rows("south", 40)}, rounds=3)
    steps = hansa.rounds(fed, out=tmp_path / "run", workers=0, progress=True)
    next(steps)
    north.append(north[0])
    next(steps)
    steps.close()
    said = capsys.readouterr().err.replace("\n", " ")
    assert "silos.north: the data had 60 rows when the run began and has 61 now; the run goes on" in said
    with pytest.raises(hansa.DataError, match=r"silos\.north: its rows have changed since .*; put them back"):
        hansa.run(fed, out=tmp_path / "run", resume=True, workers=0, progress=False)
    del north[-1]
    assert hansa.run(fed, out=tmp_path / "run", resume=True, workers=0, progress=False).metrics


def test_a_file_that_changes_is_noticed(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = make(rounds=3).placed(tmp_path / "data")
    fed = hansa.Federation.from_settings(settings)
    steps = hansa.rounds(fed, out=tmp_path / "run", workers=0, progress=True)
    next(steps)
    with (tmp_path / "data" / "south.train.jsonl").open("a") as stream:
        stream.write("{}\n")
    list(steps)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("south.train.jsonl has changed since the run began; the run goes on") == 1


def test_a_run_of_another_version_is_named(make: Make, tmp_path: Path) -> None:
    result = hansa.run(make(rounds=1), out=tmp_path / "run", workers=0, progress=False)
    ledger = Ledger(result.folder)
    ledger.fact("versions", {"hansa": "9.0.0"})
    ledger.close()
    assert hansa.load(tmp_path / "run").metrics, "what can be read is read"
    file = tmp_path / "run" / "federation.yaml"
    file.write_text(file.read_text() + "quantum: true\n")
    with pytest.raises(hansa.UserError, match=r"was written by Hansa 9\.0\.0, and Hansa .* cannot read it .*quantum"):
        hansa.load(tmp_path / "run")
    with pytest.raises(hansa.UserError, match="is not a run directory"):
        hansa.load(tmp_path)


SCRIPT = '''
import dataclasses, sys
import hansa
from hansa.core.method import METHODS
from hansa.core.settings import Section
from hansa.core.method import METHODS
from hansa.methods.fedprox import Proximal

class Halved(Proximal):
    """Defined in the script itself: workers cannot import it."""
    def gradient(self, work):
        super().gradient(work)
        work.learner.grad.mul_(0.5)

@METHODS.register("halved")
class Settings(Section):
    mu: float = 0.1
    def build(self):
        return dataclasses.replace(hansa.methods.fedavg(), name="halved", objective=Halved(self.mu))

rows = {s: [{"text": f"{s} word{i % 7} word{i % 3}", "label": "ab"[i % 2]} for i in range(40)] for s in ("x", "y")}
fed = hansa.Federation(task="classify", model="mini", silos=rows, rounds=1, method={"name": "halved", "mu": 0.2},
                       tokenizer={"size": 300, "min_count": 1}, data={"max_length": 16})
out, link = sys.argv[1:]
two = hansa.run(fed, out=out + "/two", workers=2, link=link, progress=False)
none = hansa.run(fed, out=out + "/none", workers=0, progress=False)
state = none.model.state_dict()
assert all((state[k] == v).all() for k, v in two.model.state_dict().items())
print(len(two.scores), "scores")
'''


@pytest.mark.parametrize("link", ["pool", pytest.param("ray", marks=pytest.mark.slow_fault)])
def test_a_method_of_a_script_reaches_the_workers(tmp_path: Path, link: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), link]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "scores" in done.stdout


def test_a_run_is_extended_by_more_rounds_and_by_nothing_else(make: Make, tmp_path: Path) -> None:
    hansa.run(make(rounds=2), out=tmp_path / "run", workers=0, progress=False)
    longer = hansa.run(make(rounds=3), out=tmp_path / "run", resume=True, workers=0, progress=False)
    whole = hansa.run(make(rounds=3), out=tmp_path / "whole", workers=0, progress=False)
    assert same(weights(longer.folder / "model"), weights(whole.folder / "model"))
    assert longer.metrics == whole.metrics
    for other in (make(rounds=2), make(rounds=4, seed=5)):
        with pytest.raises(hansa.UserError, match="differs from the one"):
            hansa.run(other, out=tmp_path / "run", resume=True, workers=0, progress=False)


def test_silos_that_share_a_language_have_scores_of_their_own(make: Make, tmp_path: Path) -> None:
    silos = {name: {"train": rows("north", 50 + n), "language": "en"} for n, name in enumerate(("a", "b", "c"))}
    fed = make(silos=silos, rounds=1)
    assert not [one for one in fed.check().warnings if "language" in one], "one language drowns no other"
    result = hansa.run(fed, out=tmp_path / "run", workers=0, progress=False)
    assert list(result.metrics) == ["en"]
    assert list(result.by_silo) == ["a", "b", "c"]
    assert set(result.scores["language"]) == {"en"}
    large = make(silos=silos | {"d": {"train": rows("north", 2000), "language": "en"}})
    assert any("d has" in one and "other silos" in one for one in large.check().warnings)


def test_check_says_that_label_names_leave(make: Make) -> None:
    assert any("names of the labels" in line for line in make().check().as_dict()["releases"])
    listed = make(task={"name": "classify", "labels": ["a", "b"]})
    assert not any("names of the labels" in line for line in listed.check().as_dict()["releases"])


def test_identical_results_are_found(make: Make, tmp_path: Path) -> None:
    methods: list[str | hansa.Method] = ["fedavg", hansa.methods.fedprox(mu=0.0), hansa.methods.fedadam()]
    found = hansa.compare(make(rounds=1), methods, out=tmp_path / "all", workers=0, progress=False)
    assert identical(found.results) == [["fedavg", "fedprox"]]
