"""Surveys between organisations: real agents, over NATS and mutual TLS; approvals, policies and regions."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.config.federation import Federation
from hansa.config.file import dump, parse
from hansa.core.errors import RunFailed, UserError
from hansa.core.messages import NOT_APPROVED
from hansa.deploy.agent import Agent
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.approval_page import approval_page
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.survey import survey_members
from hansa.privacy.policy.audit_log import entries
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.runs.survey import simulate_survey
from tests.cli.test_cli import ok
from tests.conftest import Build, write_words
from tests.deploy.conftest import Log, make_kits, regions


@contextmanager
def agents(federation: Federation, kits: Path, homes: Path, log: Log, names: list[str] | None = None) -> Iterator[None]:
    """The agents that `hansa join` starts, with policy and audit log."""
    running = []
    for name, node in _silos(federation):
        if names is None or name in names:
            kit = Kit(kits / name)
            service = SiloService(kit, node.sources, (), PolicyEnforcer.load(kit, None, homes / name))
            running.append(Agent(kit, homes / name, service, log.say))
    threads = [threading.Thread(target=agent.run, daemon=True) for agent in running]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for agent in running:
            agent.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def _silos(federation: Federation) -> list[tuple[str, Any]]:
    from hansa.config.nodes import walk

    return [(name, node) for name, node in walk(federation.silos) if not node.silos]


def approve(federation: Federation, kits: Path, homes: Path, names: list[str]) -> None:
    for name in names:
        Approvals(kits / name, homes / name).add(approval_of(federation.as_survey()))


@pytest.fixture
def surveyed(federation: Build) -> Federation:
    return federation(survey=True, participation={"deadline": 60, "quorum": 0.5})


def test_agents_answer_an_approved_survey_and_refuse_others(surveyed: Federation, tmp_path: Path, log: Log) -> None:
    kits, homes = make_kits(surveyed, tmp_path / "kits"), tmp_path / "homes"  # the kits approve training, not a survey
    approve(surveyed, kits, homes, ["north", "south"])
    policy = kits / "south" / POLICY_FILE
    raw = yaml.safe_load(policy.read_text())
    raw["rules"]["survey"]["release"].pop("sketches")
    policy.write_text(yaml.safe_dump(raw))
    coordinator = Kit(kits / COORDINATOR)
    with agents(surveyed, kits, homes, log):
        found = survey_members(surveyed, coordinator, tmp_path / "out", None, log.say)
    assert found.figures["north"].rows == 120
    assert found.figures["south"].rows == 60, "its policy refuses sketches alone"
    assert found.failures["east"].endswith(NOT_APPROVED)
    assert "policy refuses" in found.failures["south"]
    assert list(found.figures) == ["north", "south"]
    assert found.compared == {}, "one silo has no other to agree on a key with"
    kept = [(e["event"], e["message"]) for e in entries(homes / "north" / "audit.jsonl") if "message" in e]
    assert ("release", "SurveyReport") in kept
    assert [e["message"] for e in entries(homes / "south" / "audit.jsonl") if e["event"] == "refusal"] == [
        "OfferSurveyKey"
    ]
    assert not [e for e in entries(homes / "east" / "audit.jsonl") if e["event"] == "release"]
    [waiting] = Approvals(kits / "east", homes / "east").pending()
    assert waiting.settings["kind"] == "survey"
    received = {e["message"] for e in entries(tmp_path / "out" / "audit.jsonl") if e["event"] == "received"}
    assert "SurveyReport" in received
    assert json.loads((tmp_path / "out" / "survey.json").read_text()) == json.loads(json.dumps(found.as_dict()))
    with pytest.raises(UserError, match="another folder"):
        survey_members(surveyed, coordinator, tmp_path / "out", None, log.say)


def test_a_tree_agrees_on_one_key_and_gives_the_figures_of_a_simulation(tmp_path: Path, log: Log) -> None:
    words = ["fever", "cough", "chill", "throat", "ache", "lung", "breath", "cold", "hand", "heart"]
    files = {n: write_words(tmp_path / f"{n}.jsonl", words, 80 + 20 * i) for i, n in enumerate("abc")}
    (tmp_path / "c.jsonl").write_text(files["a"].read_text())
    silos = {"west": {"silos": {"a": str(files["a"]), "b": str(files["b"])}}, "c": str(files["c"])}
    federation = parse({"name": "tree", "silos": silos, "survey": True, "data": {"max_length": 16}})
    kits, homes = make_kits(federation, tmp_path / "kits"), tmp_path / "homes"
    approve(federation, kits, homes, ["a", "b", "c"])
    with regions(federation, kits, tmp_path / "regions", log.say), agents(federation, kits, homes, log):
        found = survey_members(federation, Kit(kits / COORDINATOR), tmp_path / "out", None, log.say)
    alone = simulate_survey(federation)
    assert not found.failures
    assert found.figures == alone.figures
    assert set(found.compared) == {"a", "b", "c"}
    assert found.overlap["a", "c"] == 1.0, "both have the same texts, and so the same sketches under one key"


def test_a_policy_may_approve_surveys_by_itself(surveyed: Federation, tmp_path: Path, log: Log) -> None:
    kits, homes = make_kits(surveyed, tmp_path / "kits"), tmp_path / "homes"
    for name, surveys in (("north", True), ("south", False)):
        raw = yaml.safe_load((kits / name / POLICY_FILE).read_text())
        raw["approve"] = {"tasks": ["mlm"], "methods": ["fedavg"], "max_rounds": 9, "surveys": surveys}
        (kits / name / POLICY_FILE).write_text(yaml.safe_dump(raw))
    with agents(surveyed, kits, homes, log, ["north", "south"]):
        found = survey_members(
            surveyed.model_copy(update={"silos": {n: surveyed.silos[n] for n in ("north", "south")}}),
            Kit(kits / COORDINATOR),
            tmp_path / "out",
            None,
            log.say,
        )
    assert list(found.figures) == ["north"]
    assert found.failures["south"].endswith(NOT_APPROVED)


def test_without_a_rule_for_surveys_no_silo_takes_part(federation: Build, tmp_path: Path, log: Log) -> None:
    """The kits of a file without a section `survey` propose no rule for it."""
    plain = federation(sizes={"north": 60}, participation={"deadline": 60})
    kits, homes = make_kits(plain, tmp_path / "kits"), tmp_path / "homes"
    approve(plain, kits, homes, ["north"])
    with agents(plain, kits, homes, log), pytest.raises(RunFailed, match="no silo took part"):
        survey_members(plain, Kit(kits / COORDINATOR), tmp_path / "out", None, log.say)


def test_the_administrators_page_is_about_a_survey(surveyed: Federation, tmp_path: Path) -> None:
    kits = make_kits(surveyed, tmp_path / "kits")
    file = tmp_path / "federation.yaml"
    file.write_text(dump(surveyed))
    text = ok("approve", str(file), "--kit", str(kits / "north"), "--survey", "--yes")
    assert "1 survey, of the rows that the silo has then" in text
    assert "Mechanism" in text
    assert "it refuses nothing" in text
    assert "Protection" not in text
    settings = surveyed.as_survey()
    page = approval_page(settings, approval_of(settings), Kit(kits / "north"))
    assert [section.heading for section in page][:2] == ["Who", "Task"]


def test_the_commands_of_the_page_survey_two_agents(
    federation: Build, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = federation(sizes={"north": 60, "south": 60}, survey=True, participation={"deadline": 60})
    (tmp_path / "federation.yaml").write_text(dump(settings))
    kits = make_kits(settings, tmp_path / "kits")
    monkeypatch.chdir(tmp_path)
    for name in settings.silos:
        ok("approve", "federation.yaml", "--kit", f"kits/{name}", "--home", f"homes/{name}", "--survey", "--yes")
    with agents(settings, kits, tmp_path / "homes", log):
        shown = ok("survey", "federation.yaml", "--kit", "kits/coordinator", "--out", "runs/survey")
    assert "small: 2 silos" in shown
    assert "Near-duplicates" in shown
    assert (tmp_path / "runs" / "survey" / "survey.html").is_file()
