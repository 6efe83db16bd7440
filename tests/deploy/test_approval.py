"""Approvals: what an administrator approved is worked on, anything else is refused with a readable difference."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from hansa.config.federation import Federation
from hansa.config.file import dump, read
from hansa.config.shared import canonical, differences, settings_digest, shared_settings
from hansa.core.errors import UserError
from hansa.data.source import Source
from hansa.deploy.approval import Approvals, NotApproved, approval_of
from hansa.deploy.approval_page import approval_page
from hansa.deploy.kit import Kit
from hansa.deploy.start_check import start_files, verify_start
from hansa.privacy.policy.rules import Policy
from hansa.runs.run import run
from tests.cli.test_cli import ok
from tests.conftest import Build
from tests.deploy.conftest import make_kits

NO_POLICY = Policy("policy.yaml", {})


def changed(settings: Federation, **changes: Any) -> Federation:
    return Federation.model_validate(settings.model_dump(mode="json") | changes)


def test_the_digest_is_the_same_on_both_sides_and_depends_on_every_setting(federation: Build) -> None:
    settings = federation()
    received = Federation.model_validate_json(shared_settings(settings).model_dump_json())
    assert settings_digest(received) == settings_digest(settings)
    moved = settings.silos["north"].model_copy(update={"sources": (Source(train="/elsewhere/notes.jsonl"),)})
    assert settings_digest(settings.model_copy(update={"silos": settings.silos | {"north": moved}})) == settings_digest(
        settings
    ), "where a silo keeps its data is its own business"
    for change in ({"rounds": 4}, {"seed": 1}, {"train": {"lr": 0.3}}, {"task": {"name": "mlm", "mask": 0.5}}):
        assert settings_digest(changed(settings, **change)) != settings_digest(settings)
    assert "/" not in json.dumps(canonical(settings)), "no path of any member"


def test_differences_are_one_line_for_each_setting(federation: Build) -> None:
    settings = federation()
    other = changed(settings, rounds=1000, task={"name": "mlm", "mask": 0.999})
    assert list(differences(canonical(settings), canonical(other))) == [
        "rounds: 3 → 1000",
        "task.mask: nothing → 0.999",
    ]


def test_only_approved_settings_pass_and_the_others_wait(federation: Build, tmp_path: Path) -> None:
    settings, approvals = federation(), Approvals(tmp_path / "kit", tmp_path / "home")
    with pytest.raises(NotApproved, match="no run of this federation was approved"):
        approvals.check(settings, {}, "run1", NO_POLICY)
    [waiting] = approvals.pending()
    assert waiting.settings == canonical(settings)
    approvals.add(approval_of(settings))
    assert approvals.pending() == []
    assert approvals.check(settings, {}, "run1", NO_POLICY).by
    with pytest.raises(NotApproved, match=r"rounds: 3 → 4"):
        approvals.check(changed(settings, rounds=4), {}, "run1", NO_POLICY)
    with pytest.raises(NotApproved, match=r"plugins.trap.py: nothing → "):
        approvals.check(settings, {"trap.py": "0" * 64}, "run1", NO_POLICY)


def test_an_approval_is_for_so_many_runs_also_after_a_restart(federation: Build, tmp_path: Path) -> None:
    settings, approvals = federation(), Approvals(tmp_path / "kit", tmp_path / "home")
    approvals.add(approval_of(settings, runs=2))
    for name in ("one", "two", "one"):
        approvals.check(settings, {}, name, NO_POLICY)
    with pytest.raises(NotApproved, match="is for 2 runs"):
        Approvals(tmp_path / "kit", tmp_path / "home").check(settings, {}, "three", NO_POLICY)
    (tmp_path / "home" / "runs.jsonl").write_text("{")
    with pytest.raises(NotApproved, match="damaged"):
        approvals.check(settings, {}, "one", NO_POLICY)


def test_runs_that_begin_at_the_same_time_do_not_share_an_approval(federation: Build, tmp_path: Path) -> None:
    settings, together = federation(), Barrier(8)
    Approvals(tmp_path / "kit", tmp_path / "home").add(approval_of(settings, runs=1))

    def begin(number: int) -> bool:
        together.wait(60)
        try:
            Approvals(tmp_path / "kit", tmp_path / "home").check(settings, {}, f"run{number}", NO_POLICY)
        except NotApproved:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(begin, range(8))) == 1


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("simulate", {"poison": {"north": {"kind": "scale", "factor": 1e-9}}}),
        ("release_log", {"updates": True}),
        ("kind", "central"),
    ],
)
def test_rehearsal_sections_are_refused_even_if_they_were_approved(
    federation: Build, tmp_path: Path, section: str, value: Any
) -> None:
    settings, approvals = changed(federation(), **{section: value}), Approvals(tmp_path / "kit", tmp_path / "home")
    approvals.add(approval_of(settings))
    with pytest.raises(NotApproved, match=section if section != "kind" else "baselines"):
        approvals.check(settings, {}, "run", NO_POLICY)


def test_a_changed_approval_is_refused(federation: Build, tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "kit", tmp_path / "home")
    file = approvals.add(approval_of(federation()))
    raw = json.loads(file.read_text())
    raw["settings"]["rounds"] = 1000
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match="was changed after the approval"):
        approvals.all()


def test_a_policy_approves_within_its_bounds(federation: Build, tmp_path: Path) -> None:
    bounds = {"tasks": ["mlm"], "methods": ["fedavg"], "max_rounds": 5}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump({"rules": {}, "approve": bounds}))
    policy, approvals = Policy.read(tmp_path / "policy.yaml"), Approvals(tmp_path / "kit", tmp_path / "home")
    settings = federation(model="tiny")
    assert approvals.check(settings, {}, "run", policy).by == "policy"
    assert approvals.check(settings, {}, "run", policy).by == "policy", "the same run goes on"
    with pytest.raises(NotApproved, match="approves 1 run in all"):
        approvals.check(changed(settings, seed=7), {}, "another", policy)
    for change, why in (
        ({"rounds": 6}, "at most 5"),
        ({"method": "fedprox"}, "fedprox"),
        ({"task": "causal-lm"}, "causal-lm"),
        ({"model": "mini"}, "mini"),
    ):
        with pytest.raises(NotApproved, match=why):
            approvals.check(changed(settings, **change), {}, "run", policy)
    (tmp_path / "outer.yaml").write_text(yaml.safe_dump({"rules": {}, "approve": bounds | {"max_rounds": 1}}))
    (tmp_path / "inner.yaml").write_text(yaml.safe_dump({"rules": {}, "approve": bounds, "within": "outer.yaml"}))
    assert "at most 1" in Policy.read(tmp_path / "inner.yaml").needs_approval(settings)


# ── the start ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def started(federation: Build, tmp_path: Path) -> tuple[Federation, Path]:
    """A federation and the start that its coordinator makes."""
    settings = federation(rounds=0)
    return settings, run(settings, tmp_path / "run", workers=0).folder / "start"


def test_an_honest_start_is_built_again_and_is_the_same(started: Any) -> None:
    settings, start = started
    assert "built again" in verify_start(start, settings, approval_of(settings))


def tamper_weights(start: Path) -> None:
    tensors = load_file(start / "model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 1e-3}, start / "model.safetensors", {"format": "pt"})


def tamper_config(start: Path) -> None:
    raw = json.loads((start / "config.json").read_text())
    (start / "config.json").write_text(json.dumps(raw | {"hidden_act": "relu"}))


def tamper_tokenizer(start: Path) -> None:
    raw = json.loads((start / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = None
    (start / "tokenizer.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("tamper", "why"),
    [(tamper_weights, "weights"), (tamper_config, "hidden_act"), (tamper_tokenizer, "vocabulary")],
)
def test_a_start_that_does_not_follow_from_the_settings_is_refused(started: Any, tamper: Any, why: str) -> None:
    settings, start = started
    tamper(start)
    with pytest.raises(NotApproved, match=why):
        verify_start(start, settings, approval_of(settings))


def test_a_pre_trained_start_needs_a_copy_or_an_approval_of_its_files(started: Any, tmp_path: Path) -> None:
    settings, start = started
    own = tmp_path / "own"
    shutil.copytree(start, own)
    pretrained = changed(settings, model={"path": str(own)}, tokenizer={"kind": "model"})
    sent = run(pretrained, tmp_path / "pretrained", workers=0).folder / "start"
    with pytest.raises(NotApproved, match="no copy"):
        verify_start(sent, pretrained, approval_of(pretrained))
    assert verify_start(sent, pretrained, approval_of(pretrained, model=own))
    accepted = approval_of(pretrained)
    accepted.start.update(start_files(sent))
    assert "those that were approved" in verify_start(sent, pretrained, accepted)
    tensors = load_file(sent / "model.safetensors")
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 0.01}, sent / "model.safetensors", {"format": "pt"})
    with pytest.raises(NotApproved, match="weights"):
        verify_start(sent, pretrained, approval_of(pretrained, model=own))
    with pytest.raises(NotApproved, match="not those that were approved"):
        verify_start(sent, pretrained, accepted)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_and_the_command(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    kits = make_kits(settings, tmp_path / "kits")
    shutil.rmtree(kits / "north" / "approvals")
    file = tmp_path / "fed.yaml"
    file.write_text(dump(settings), encoding="utf-8")
    own = ("--kit", str(kits / "north"))
    with pytest.raises(UserError, match="nothing was approved"):
        ok("approve", str(file), *own)
    shown = ok("approve", str(file), *own, "--yes")
    for heading in ("Who", "Model", "Task", "How often", "What leaves this silo", "Protection", "The silo's policy"):
        assert heading in shown
    assert "1 run of 3 rounds" in shown
    assert "requests come from 'coordinator' at localhost:" in shown
    assert "NO secure aggregation" in shown
    assert "NO differential privacy" in shown
    assert "whole sentences" in shown
    assert len(list((kits / "north" / "approvals").glob("*.json"))) == 1
    file.write_text(dump(changed(settings, rounds=9)), encoding="utf-8")
    assert "rounds: 3 → 9" in ok("approve", str(file), *own, "--yes", "--runs", "2")
    with pytest.raises(UserError, match="no run is waiting for an approval"):
        ok("approve", *own, "--pending", "--yes")
    with pytest.raises(UserError, match="give the federation file, or --pending"):
        ok("approve", *own, "--yes")
    [first, _] = (kits / "north" / "approvals").glob("*.json")
    with pytest.raises(UserError, match="too short"):
        ok("approve", *own, "--withdraw", "")
    assert "1 withdrawn" in ok("approve", *own, "--withdraw", first.stem[:12])
    assert not first.exists()


def page_of(settings: Federation, kits: Path, silo: str, runs: int = 1) -> dict[str, str]:
    page = approval_page(settings, approval_of(settings, runs=runs), Kit(kits / silo))
    return {section.heading: "\n".join(section.lines) for section in page}


def test_the_page_names_the_protected_unit_of_this_silo_and_no_noise_of_others(
    federation: Build, tmp_path: Path
) -> None:
    settings = federation()
    patient = {"unit": "patient", "field": "patient_id", "noise_multiplier": 1.0, "clip": 1.0, "steps": 7}
    units: dict[str, Any] = {"north": patient, "south": {"noise_multiplier": 4.0, "clip": 1.0}}
    silos = {
        name: silo.model_dump(mode="json") | ({"privacy": units[name]} if name in units else {})
        for name, silo in settings.silos.items()
    }
    settings = changed(settings, silos=silos)
    kits = make_kits(settings, tmp_path / "kits")
    north, south = page_of(settings, kits, "north"), page_of(settings, kits, "south")
    assert "all data of a patient (field 'patient_id')" in north["Protection"]
    assert "at δ = 1e-05" in north["Protection"]
    assert "7 steps; each patient takes part in a step with probability 0.1" in north["How often"]
    assert "'south'" not in north["What leaves this silo"]
    assert "'north'" not in south["What leaves this silo"]
    assert "protected unit: all data of the silo" in south["Protection"]
    assert "each patient" not in south["How often"]


def test_the_page_says_how_many_silos_a_sum_has_and_whether_the_budget_is_enough(
    federation: Build, tmp_path: Path
) -> None:
    noise = {"noise": {"multiplier": 4.0, "clip": 1.0}}
    settings = changed(
        federation(),
        secure_aggregation=noise,
        aggregate={"weights": "uniform"},
        participation={"quorum": 0.5},
    )
    kits = make_kits(settings, tmp_path / "kits")  # proposes a budget of one run
    one, two = page_of(settings, kits, "north"), page_of(settings, kits, "north", runs=2)
    assert "the sum of at least 3 silos' updates" in one["Protection"]
    assert "LESS" not in one["Protection"]
    assert "LESS than 2 such runs" in two["Protection"]


def test_the_page_lists_the_silos_of_the_run_and_which_are_no_members(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    kits = make_kits(settings, tmp_path / "kits")
    silos = {name: silo.model_dump(mode="json") for name, silo in settings.silos.items()}
    fewer = page_of(changed(settings, silos={name: silos[name] for name in ("north", "south")}), kits, "north")
    assert "other silos of the run: south" in fewer["Who"]
    assert "NOT MEMBERS" not in fewer["Who"]
    more = page_of(changed(settings, silos=silos | {"stranger": silos["south"]}), kits, "north")
    assert "NOT MEMBERS in this kit's list: stranger" in more["Who"]


def test_another_approval_for_the_same_run_is_not_given_silently(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    kits = make_kits(settings, tmp_path / "kits")
    file = tmp_path / "fed.yaml"
    file.write_text(dump(settings), encoding="utf-8")
    own = ("--kit", str(kits / "north"), "--yes")
    ok("approve", str(file), *own)
    Approvals(kits / "north", kits / "north" / "home").check(read(file), {}, "run1", NO_POLICY)
    with pytest.raises(UserError, match="give --runs 2"):
        ok("approve", str(file), *own)
    ok("approve", str(file), *own, "--runs", "2")
