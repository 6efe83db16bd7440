"""Privacy of single patients between organisations: real sockets, secret noise, the unit in the ledger."""

import json
from pathlib import Path

from hansa.config.file import parse
from hansa.runs.ledger import Ledger
from tests.conftest import Build
from tests.deploy.conftest import Log, over_the_network


def test_a_federation_with_patients_trains_over_the_network(federation: Build, tmp_path: Path, log: Log) -> None:
    settings = federation(sizes={"north": 40, "south": 20}, task="classify", model="mini", rounds=2)
    file = tmp_path / "data" / "north.jsonl"
    rows = [json.loads(line) | {"patient_id": n // 2} for n, line in enumerate(file.read_text().splitlines())]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    raw["task"] = {"name": "classify", "labels": ["high", "low"]}
    raw["silos"]["north"]["privacy"] = {"unit": "patient", "field": "patient_id", "sampling": 0.2, "steps": 2}
    outcome = over_the_network(parse(raw), tmp_path, log)
    ledger = Ledger(outcome.folder)
    fact = ledger.facts()["privacy"]
    ledger.close()
    assert fact["north"]["unit"] == "all data of a patient (field 'patient_id')"
    assert fact["north"]["releases"] == 4
    assert set(fact) == {"north"}
    assert (outcome.folder / "model" / "model.safetensors").is_file()
