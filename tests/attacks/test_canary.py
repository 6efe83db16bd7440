"""Canary exposure: a language model remembers what it saw often, and noise on updates prevents it."""

from pathlib import Path

import pytest

from hansa.attacks import canary
from hansa.attacks.canary import attack_canaries
from hansa.core.errors import UserError
from hansa.report.audit import tables
from hansa.runs.run import run
from tests.attacks.silos import federation, symptoms, write


def test_repeated_canaries_are_remembered_and_noise_prevents_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "CANDIDATES", 256)
    monkeypatch.setattr(canary, "REPEATS", (0, 1, 16))
    silos = {n: {"train": write(tmp_path / f"{n}.jsonl", symptoms(n, 40))} for n in ("a", "b", "c")}
    train = {"optimizer": "adam", "lr": 0.003, "batch": 8, "samples": {"epochs": 3}}
    done = run(federation(silos, task="causal-lm", train=train, rounds=3), tmp_path / "run", workers=0)
    before = sorted(done.folder.rglob("*"))
    found = attack_canaries(done.folder, "a")
    bare, noisy = (row["exposure"] for row in found["rows"])
    assert bare["16"] > 5.0
    assert bare["16"] > bare["0"] + 2.0, "control: canaries that were never inserted"
    assert bare["0"] < 3.5
    assert noisy["16"] < 3.5
    assert found["rows"][0]["epsilon"] is None
    assert found["rows"][1]["epsilon"] > 0
    assert "removes at least half" in found["reading"][-1]
    [shown] = tables(found)
    assert shown["columns"] == ["protection", "0×", "1×", "16×", "ε"]
    assert len(shown["rows"]) == 2
    assert sorted(done.folder.rglob("*")) == before, "the run itself is not changed"


def test_canaries_need_rows_that_are_texts(tmp_path: Path) -> None:
    rows = [row | {"other": row["text"]} for row in symptoms("a", 40)]
    silos = {"a": {"train": write(tmp_path / "a.jsonl", rows), "second": "other"}}
    done = run(federation(silos, task="pairs", rounds=1), tmp_path / "run", workers=0)
    with pytest.raises(UserError, match="canaries are rows with a text of their own"):
        attack_canaries(done.folder, None)
