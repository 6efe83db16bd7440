"""Golden learning curves: a refactor must not change what is learned.

If a change is meant to change them, run this file with HANSA_GOLDEN=write and say why in the commit.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build

FILE = Path(__file__).parent / "curves.json"
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox-adam": {"method": {"name": "fedprox", "mu": 0.1}, "server": {"optimizer": "adam", "lr": 0.01}},
    "median-partial": {"method": "median", "participation": {"count": 2}},
    "causal-lm": {"task": "causal-lm", "train": {"optimizer": "adamw", "lr": 1e-3, "samples": {"floor": 16}}},
}


def curve(settings: Any, folder: Path) -> dict[str, list[float]]:
    outcome = run(settings, folder, workers=0)
    ledger = Ledger(outcome.folder)
    losses = [loss for (loss,) in ledger.select("select loss from rounds order by round")]
    ledger.close()
    return {"losses": losses, "final": [outcome.metrics[g]["loss"] for g in sorted(outcome.metrics)]}


@pytest.mark.parametrize("name", CASES)
def test_curves_are_the_golden_ones(federation: Build, tmp_path: Path, name: Any) -> None:
    found = curve(federation(rounds=5, model="tiny", tokenizer={"kind": "bytes"}, **CASES[name]), tmp_path / "run")
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("HANSA_GOLDEN") == "write":
        FILE.write_text(json.dumps(golden | {name: found}, indent=1) + "\n")
        return
    for part, values in golden[name].items():
        # Processors differ in the last bits of a product; a changed algorithm differs in the second digit.
        assert found[part] == pytest.approx(values, rel=2e-3), f"{name}: {part}"
