"""Malicious silos: a boosted backdoor and crude poison, against the mean and against robust rules."""

from pathlib import Path
from typing import Any

import pytest

from hansa.attacks import backdoor
from hansa.attacks.backdoor import attack_with_backdoor
from hansa.core.errors import UserError
from hansa.report.audit import tables
from hansa.runs.run import run
from hansa.runs.summary import average
from tests.attacks.silos import federation, symptoms, write

FIVE = ("a", "b", "c", "d", "e")


def silos(folder: Path, names: tuple[str, ...] = FIVE) -> dict[str, dict[str, Any]]:
    return {n: {"train": write(folder / f"{n}.jsonl", symptoms(n, 60))} for n in names}


def test_a_boosted_backdoor_succeeds_against_the_mean_and_fails_against_robust_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backdoor, "TRIED", 6)
    done = run(federation(silos(tmp_path), rounds=4), tmp_path / "run", workers=0)
    found = attack_with_backdoor(done.folder, "a")
    rows = {row["defence"]: row for row in found["rows"]}
    clean = rows["(no attacker)"]
    assert clean["success"] < 0.1
    assert rows["none"]["success"] > 0.8
    for rule in ("median", "trimmed mean"):  # Krum follows one silo alone
        assert rows[rule]["success"] < 0.1, rule
        assert rows[rule]["accuracy"] >= clean["accuracy"] - 0.02, rule
    assert len(tables(found)[0]["rows"]) == len(rows)
    assert any("trimmed mean withstands it" in line for line in found["reading"])


@pytest.mark.parametrize("poison", [{"kind": "scale", "factor": 100}, {"kind": "sign-flip", "factor": 10}])
def test_crude_poison_breaks_the_mean_and_not_a_robust_rule(tmp_path: Path, poison: dict[str, Any]) -> None:
    """Case 17: one silo of five sends ×100 or the opposite of its update."""

    def accuracy(name: str, **settings: Any) -> float:
        done = run(federation(silos(tmp_path), rounds=3, **settings), tmp_path / name, workers=0)
        return average(done.metrics, "accuracy") or 0.0

    lie = {"simulate": {"poison": {"a": poison}}}
    clean = accuracy("clean")
    assert accuracy("robust", aggregate={"rule": "trimmed-mean", "trim": 0.25}, **lie) >= clean - 0.02
    assert accuracy("mean", **lie) < clean - 0.1


def test_a_backdoor_needs_a_classifier_and_three_silos(tmp_path: Path) -> None:
    two = run(federation(silos(tmp_path, FIVE[:2]), rounds=1), tmp_path / "two", workers=0)
    with pytest.raises(UserError, match="a backdoor among 2 silos shows nothing"):
        attack_with_backdoor(two.folder, None)
    other = run(federation(silos(tmp_path, FIVE[:1]), task="mlm", rounds=0), tmp_path / "mlm", workers=0)
    with pytest.raises(UserError, match="needs a run of a flat federation with task classify"):
        attack_with_backdoor(other.folder, None)
