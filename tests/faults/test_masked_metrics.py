"""Noise in shares and masked scores between organisations: real processes, kits, policies and signatures."""

from pathlib import Path

import pytest
import torch

from hansa.core.messages import Scores, Update
from hansa.privacy.policy.audit_log import entries, verify
from hansa.runs.ledger import Ledger
from tests.conftest import Build, weights
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import lost

pytestmark = pytest.mark.slow_fault


def test_a_federation_with_noise_and_masked_scores_runs_to_its_end(federation: Build, tmp_path: Path) -> None:
    settings = federation(
        rounds=2,
        sizes={"north": 40, "south": 30, "east": 20, "north-2": 30},
        secure_aggregation={"noise": {"multiplier": 0.01, "clip": 1.0}, "metrics": True},
        aggregate={"weights": "uniform"},
        evaluate={"every": 1, "share": 1.0},
    )
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all()
        deployment.finished()
        assert lost(deployment) == []
        ledger = Ledger(deployment.run)
        assert list(ledger.final()) == ["all"]
        assert ledger.select("select round, seen from rounds") == [(1, 64), (2, 64)]
        assert ledger.select("select distinct loss, seen from traffic") == [(None, 0)]
        assert set(ledger.facts()["privacy"]) == set(settings.silos)
        log = next(deployment.kits.parent.rglob("east/**/audit.jsonl"))
        assert verify(log).sound
        released = {entry["message"] for entry in entries(log) if entry["event"] == "release"}
        assert {Scores.__name__, Update.__name__, "AdvertisedKeys"} <= released
        assert all(torch.isfinite(tensor).all() for tensor in weights(deployment.run / "model").values())
