"""Surveys on one machine: the figures are those of the data, and no small one leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hansa
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.errors import ConfigError, RunFailed
from hansa.privacy.policy.audit_log import entries
from hansa.privacy.policy.disclosures import disclosures
from hansa.runs.run import run
from hansa.runs.survey import simulate_survey
from tests.cli.test_cli import ok

SHARED = [f"the same note {i} " + " ".join(f"w{(i * 7 + j * j) % 400}" for j in range(30)) for i in range(45)]


def notes(name: str, count: int, labels: tuple[str, ...] = ("high", "low")) -> list[dict[str, str]]:
    rows = []
    for i in range(count):
        words = " ".join(f"{name}{(i * 13 + j * j * 5) % 300}" for j in range(20))
        rows.append({"text": f"common words of all silos {words}", "label": labels[i % len(labels)], "lang": "xx"})
    return rows


@pytest.fixture
def federation(tmp_path: Path) -> Any:
    def build(policy: dict[str, Any] | None = None, **settings: Any) -> Federation:
        silos: dict[str, Any] = {}
        for name in ("north", "south", "east"):
            rows = notes(name, 120) + ([{"text": t, "label": "low"} for t in SHARED] if name != "east" else [])
            rows += [{"text": f"rare {name} words", "label": "quartzibelle"}] * 3
            file = tmp_path / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            silos[name] = {"train": str(file)}
        if policy is not None:
            rule = {"federations": "any", "methods": "any", "release": policy}
            (tmp_path / "policy.yaml").write_text(yaml.safe_dump({"rules": {"all": rule}}))
            silos["north"]["policy"] = str(tmp_path / "policy.yaml")
        raw = {"name": "small", "task": "classify", "silos": silos, "data": {"test": 0.2, "valid": 0.0}}
        return parse(raw | settings)

    return build


def test_the_figures_are_those_of_the_data(federation: Any) -> None:
    found = simulate_survey(federation())
    assert found.silos.loc["north", "rows"] == 160, "168 rows, rounded down"
    assert found.counts("labels").loc["north"].to_dict() == {"high": 60, "low": 100}
    assert "quartzibelle" not in json.dumps(found.as_dict()), "three rows have this label"
    assert found.figures["north"].withheld == ("words", "characters", "languages", "labels")
    assert found.near_duplicates.loc["north", "south"] in range(35, 46), "45, less what the rounding left out"
    assert found.near_duplicates.loc["north", "east"] == 0
    assert found.vocabulary_overlap.loc["north", "south"] > found.vocabulary_overlap.loc["north", "east"]
    assert found.shares.loc["north"].sum() == pytest.approx(1.0)
    assert not found.failures
    control = simulate_survey(federation(survey={"floor": 1}))
    assert control.counts("labels").loc["north", "quartzibelle"] == 3, "the control: without a floor it leaves"
    assert control.silos.loc["north", "rows"] == 168


def test_a_simulated_survey_repeats_and_another_seed_is_another_key(federation: Any) -> None:
    one, other = simulate_survey(federation()), simulate_survey(federation())
    assert one.as_dict() == other.as_dict()
    assert simulate_survey(federation(seed=1)).overlap != one.overlap


def test_a_silo_with_few_rows_says_only_that(federation: Any) -> None:
    found = simulate_survey(federation(survey={"floor": 165}))
    assert found.figures["east"].rows == 0
    assert found.figures["east"].withheld == ("rows",)
    assert "east" not in found.compared
    assert found.figures["north"].rows == 165


def test_a_policy_forbids_a_survey_or_its_sketches_or_has_a_higher_floor(federation: Any) -> None:
    silent = simulate_survey(federation(policy={"samples": True}))
    assert list(silent.figures) == ["south", "east"]
    assert "does not release sketches" in silent.failures["north"]
    counts_only = simulate_survey(federation(policy={"survey": 20, "labels": True}))
    assert counts_only.figures["north"].rows == 160
    assert set(counts_only.compared) == {"south", "east"}
    higher = simulate_survey(federation(policy={"survey": 50, "labels": True, "sketches": True}))
    assert "north" not in higher.figures
    assert "figures that stand for at least 50 rows" in higher.failures["north"]
    assert (
        simulate_survey(federation(policy={"survey": 50, "labels": True}, survey={"floor": 50})).figures["north"].rows
    )


def test_what_leaves_is_in_the_audit_log_with_its_floor(federation: Any, tmp_path: Path) -> None:
    from hansa.client.host import SiloHost
    from hansa.client.runtime import Runtime
    from hansa.core.messages import DescribeData, Failure
    from hansa.core.survey_messages import SurveyReport, TakeSurvey

    settings = federation(policy={"survey": 20, "labels": True, "samples": True}).as_survey()
    answer = SiloHost(Runtime(settings, tmp_path / "run")).answer("north")
    assert isinstance(answer(TakeSurvey(20)), SurveyReport)
    lower = answer(TakeSurvey(19))
    assert isinstance(lower, Failure)
    other = answer(DescribeData())
    assert isinstance(other, Failure)
    assert "a survey, and nothing beside it" in other.reason
    log = list(entries(tmp_path / "run" / "silos" / "north" / "audit.jsonl"))
    assert [(e["event"], e.get("floor")) for e in log[:4]] == [
        ("request", 20),
        ("release", 20),
        ("request", 19),
        ("refusal", 19),
    ]
    training = SiloHost(Runtime(federation(policy={"survey": 20}), tmp_path / "training")).answer("north")
    refused = training(TakeSurvey(20))
    assert isinstance(refused, Failure)
    assert "no survey" in refused.reason, "a training run is not a survey"


def test_no_silo_takes_part(federation: Any, tmp_path: Path) -> None:
    settings = federation(policy={})
    every = {
        name: node.model_copy(update={"policy": str(tmp_path / "policy.yaml")}) for name, node in settings.silos.items()
    }
    with pytest.raises(RunFailed, match="no silo took part"):
        simulate_survey(settings.model_copy(update={"silos": every}))


def test_a_survey_is_no_run(federation: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run 'hansa survey'"):
        run(federation().as_survey(), tmp_path / "run", workers=0)


def test_the_command_and_python_give_the_same(federation: Any, tmp_path: Path) -> None:
    from hansa.config.file import dump

    file = tmp_path / "federation.yaml"
    file.write_text(dump(federation(survey=True)))
    shown = json.loads(ok("survey", str(file), "--json", "--out", str(tmp_path / "out")))
    assert shown == json.loads((tmp_path / "out" / "survey.json").read_text())
    assert shown["silos"]["north"]["rows"] == 160
    page = (tmp_path / "out" / "survey.html").read_text()
    assert "Near-duplicates" in page
    assert "http" not in page.replace("http-equiv", "")
    text = ok("survey", str(file))
    assert "What left the silos" in text
    assert "is withheld, and others are rounded" in text
    assert any("hansa survey" in line for line in disclosures(federation(survey=True))), "the preview names it"
    assert not any("hansa survey" in line for line in disclosures(federation()))
    rows = {"north": notes("north", 60), "south": notes("south", 60)}
    assert hansa.survey(hansa.Federation(silos=rows, task="classify")).silos["rows"].tolist() == [60, 60]
