"""Policies in whole runs: the same results, and a silo that refuses is left out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.core.errors import ConfigError, RunFailed
from hansa.privacy.policy.audit_log import entries, verify
from hansa.privacy.policy.proposal import propose_policy
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.policies import NO_LIMITS
from tests.privacy.policy.policies import outside_method, with_policy


def test_a_run_under_a_policy_gives_the_same_bits_and_a_sound_log(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=2)
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(settings) | {"limits": NO_LIMITS}))
    plain = run(settings, tmp_path / "plain", workers=0).folder
    held = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "held", workers=0).folder
    assert same(weights(plain / "model"), weights(held / "model"))
    log = held / "silos" / "north" / "audit.jsonl"
    assert verify(log).sound
    released = [e for e in entries(log) if e["event"] == "release"]
    expected = ["VocabularyCounts", "DataCard", "Scores", "Update", "Update", "Scores"]
    assert [e["message"] for e in released] == expected
    assert all(set(e["rules"].values()) == {"small"} and e["bytes"] > 0 for e in released)
    assert not (held / "silos" / "south" / "audit.jsonl").exists()
    assert "fever" not in log.read_text(), "no word of the silo's text"


@pytest.mark.parametrize("method", ["hierfavg", "fedper", "worldlm"])
def test_the_proposed_policy_lets_its_federation_work(federation: Build, tmp_path: Path, method: Any) -> None:
    """Only a method that forwards layers to other nodes needs a rule for it."""
    settings = federation(rounds=1, task="causal-lm", method=method)
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(settings) | {"limits": NO_LIMITS}))
    assert ("layers" in propose_policy(settings)["rules"]["small"]["release"]) == (method == "worldlm")
    held = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "held", workers=0).folder
    log = held / "silos" / "north" / "audit.jsonl"
    assert not [e for e in entries(log) if e["event"] == "refusal"]
    assert [e for e in entries(log) if e["message"] == "Update"]


@pytest.mark.parametrize("like_model", [True, False])
def test_a_shared_state_of_an_outside_method_passes_the_guard_in_a_run(
    federation: Build, tmp_path: Path, like_model: Any
) -> None:
    with outside_method(like_model) as name:
        settings = federation(rounds=1, method=name)
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(settings) | {"limits": NO_LIMITS}))
        held = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "held", workers=0).folder
        log = held / "silos" / "north" / "audit.jsonl"
        assert [e["event"] for e in entries(log) if e["message"] in ("Train", "Update")] == ["request", "release"]


def test_a_silo_that_refuses_to_train_is_left_out_and_the_round_completes(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=1)
    proposed = propose_policy(settings) | {"limits": NO_LIMITS}
    proposed["rules"]["small"]["release"]["tensors"] = ["head", "norm"]
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(proposed))
    folder = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "run", workers=0).folder
    events = Ledger(folder).select("select node, text from events")
    assert any(node == "north" and "does not release tensors of block.0" in text for node, text in events)


def test_a_run_with_a_missing_policy_stops_with_the_reason(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"silo 'north' could not answer .* the policy allows nothing"):
        run(with_policy(federation(), tmp_path / "none.yaml"), tmp_path / "run", workers=0)


def test_central_training_is_refused_where_a_silo_has_a_policy(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leave out silos\.north\.policy"):
        run(with_policy(federation(kind="central"), tmp_path / "none.yaml"), tmp_path / "run", workers=0)
