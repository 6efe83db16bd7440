"""A silo's policy over the network: it refuses what no rule allows, and logs what is released."""

import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.core.errors import RunFailed, UserError
from hansa.core.messages import Failure
from hansa.deploy.agent import Agent
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.privacy.policy.audit_log import entries, verify
from hansa.privacy.policy.guard import NO_RUN, Guard
from hansa.privacy.policy.proposal import POLICY_FILE
from tests.conftest import Build
from tests.deploy.conftest import make_kits


def run_with_policies(settings: Any, kits: Any, folder: Any, log: Any) -> Any:
    agents = {}
    for name, node in settings.silos.items():
        kit = Kit(kits / name)
        service = SiloService(kit, node.sources, (), PolicyEnforcer.load(kit, None, folder / name))
        agents[name] = Agent(kit, folder / name, service, log.say)
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in agents.values()]
    for thread in threads:
        thread.start()
    try:
        return serve(settings, Kit(kits / COORDINATOR), folder / "run", None, [log])
    finally:
        for agent in agents.values():
            agent.stop()
        for thread in threads:
            thread.join(timeout=300)


def test_releases_under_the_policy_of_the_kit_are_logged(federation: Build, tmp_path: Path, log: Any) -> None:
    settings = federation(rounds=1)
    kits = make_kits(settings, tmp_path / "kits")
    run_with_policies(settings, kits, tmp_path, log)
    log_file = tmp_path / "north" / "audit.jsonl"
    assert verify(log_file).sound
    released = [(e["message"], e["to"]) for e in entries(log_file) if e["event"] == "release"]
    assert ("Update", COORDINATOR) in released


def test_a_silo_without_a_policy_releases_nothing_and_both_sides_get_the_reason(
    federation: Build, tmp_path: Path, log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = federation(rounds=1, participation={"quorum": 1.0})
    kits = make_kits(settings, tmp_path / "kits")
    (kits / "north" / POLICY_FILE).unlink()
    with pytest.raises(RunFailed, match=r"silo 'north' could not answer .* policy refuses") as error:
        run_with_policies(settings, kits, tmp_path, log)
    assert str(tmp_path) not in str(error.value), "the path of the policy stays at the silo"
    assert "north refused a CollectVocabulary of coordinator" in caplog.text
    assert str(kits / "north" / POLICY_FILE) in caplog.text
    assert {e["event"] for e in entries(tmp_path / "north" / "audit.jsonl")} == {"approved", "request", "refusal"}


def test_the_policy_of_a_kit_is_for_its_federation_only(federation: Build, tmp_path: Path) -> None:
    """The name of the federation in the kit counts, not the one in the coordinator's settings."""
    kits = make_kits(federation(), tmp_path / "kits")
    [rule] = yaml.safe_load((kits / "north" / POLICY_FILE).read_text())["rules"].values()
    assert rule["federations"] == ["small"]
    from hansa.client.runtime import Runtime

    enforcer = PolicyEnforcer.load(Kit(kits / "north"), None, tmp_path / "home")
    received = federation(name="other")
    guard = enforcer.guard(lambda request: Failure("not asked"), Runtime(received, tmp_path), NO_RUN)
    assert isinstance(guard, Guard)
    assert guard.purpose.federation == "small"


def test_an_agent_does_not_start_with_a_damaged_audit_log(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    enforcer = PolicyEnforcer.load(Kit(kits / "north"), None, tmp_path / "home")
    enforcer.log.add("request")
    enforcer.log.add("request")
    enforcer.log.file.write_text("")
    with pytest.raises(UserError, match="its end is missing"):
        PolicyEnforcer.load(Kit(kits / "north"), None, tmp_path / "home")
