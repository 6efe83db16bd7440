"""Policies: what no rule allows does not leave, also where the policy is missing or invalid."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hansa.config import file as federation_file
from hansa.config.nodes import Node
from hansa.config.sections import Privacy
from hansa.privacy.dp.prices import update_prices
from hansa.privacy.policy.rules import RENAMED, Kind, Policy, Purpose, ReleaseItem
from tests.conftest import Build
from tests.privacy.policy.policies import ALL, HERE, allowed, policy


def test_a_rule_allows_what_it_names_and_is_named(tmp_path: Path) -> None:
    verdict = policy(tmp_path, release={"metrics": True}).judge(ReleaseItem("metrics"), HERE)
    assert verdict.allowed
    assert verdict.rule == "training"
    assert not allowed(policy(tmp_path, release={"metrics": True}), "samples"), "nothing else leaves"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"federations": ["other"]}, "is not for federation 'small'"),
        ({"methods": ["fedkc"]}, "is not for method 'fedavg'"),
        ({"release": {"samples": True}}, "does not release metrics"),
        ({"require": {"cohort": 3}}, "requires a cohort of 3, and a round may consist of 2"),
        ({"require": {"epsilon": 8}}, "requires ε ≤ 8, and the federation file promises no differential privacy"),
        ({"require": {"secure_aggregation": True}}, "has no 'secure_aggregation' section"),
    ],
)
def test_what_a_rule_does_not_allow_stays_and_why(tmp_path: Path, rule: Any, reason: Any) -> None:
    verdict = policy(tmp_path, **rule).judge(ReleaseItem("metrics"), HERE)
    assert not verdict.allowed
    assert reason in verdict.reason


def test_a_promised_epsilon_is_compared(tmp_path: Path) -> None:
    found = policy(tmp_path, require={"epsilon": 4})
    assert allowed(found, purpose=Purpose("small", "fedavg", 2, 4.0))
    assert not allowed(found, purpose=Purpose("small", "fedavg", 2, 4.5))


def test_tensors_by_part_and_words_by_count(tmp_path: Path) -> None:
    found = policy(tmp_path, release={"tensors": ["block", "head"], "words": 5})
    assert found.judge(ReleaseItem("tensors", frozenset({"block.0", "head"})), HERE).allowed
    refused = found.judge(ReleaseItem("tensors", frozenset({"block.0", "embeddings"})), HERE)
    assert "does not release tensors of embeddings" in refused.reason
    assert not found.judge(ReleaseItem("tensors", frozenset({"blocks"})), HERE).allowed, (
        "a part is not a prefix of a word"
    )
    assert found.judge(ReleaseItem("words", min_count=5), HERE).allowed
    assert not found.judge(ReleaseItem("words", min_count=4), HERE).allowed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no such file"),
        ("", "a policy is a mapping of settings"),
        ("rules: {training: {federations: any, methods: any", "not valid YAML"),
        ("rules: []", "rules"),
        ("rules: {a: {federations: any, methods: any}}", "'rules.a.release' is missing"),
        ("rules: {a: {federations: any, methods: any, release: {metric: true}}}", "did you mean 'metrics'?"),
        ("rules: {a: {federations: any, methods: any, release: {words: true}}}", "words"),
        ("rules: {a: {federations: any, methods: any, release: {metrics: true}, require: {cohort: 0}}}", "cohort"),
        ("\xff\xfe", "policy.yaml"),
        ("within: policy.yaml\nrules: {a: {federations: any, methods: any, release: {metrics: true}}}", "circle"),
    ],
)
def test_a_missing_or_broken_policy_allows_nothing(tmp_path: Path, text: Any, reason: Any) -> None:
    found = policy(tmp_path, text) if text is not None else Policy.read(tmp_path / "policy.yaml")
    for kind in get_args(Kind):
        verdict = found.judge(ReleaseItem(kind, min_count=9), HERE)
        assert not verdict.allowed
        assert reason in verdict.reason or kind != "metrics"


@hypothesis_settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 200))
def test_a_policy_cut_anywhere_never_allows_more(tmp_path_factory: pytest.TempPathFactory, cut: Any) -> None:
    folder = tmp_path_factory.mktemp("cut")
    rule = {"federations": ["small"], "methods": ["fedavg"], "release": {"metrics": True}, "require": {"cohort": 2}}
    whole = yaml.safe_dump({"rules": {"training": rule}}, sort_keys=False)
    found = policy(folder, whole[:cut])
    assert not allowed(found, "samples")
    assert not allowed(found, "tensors")


def test_a_jurisdictions_policy_must_allow_it_too(tmp_path: Path) -> None:
    policy(tmp_path, name="jurisdiction.yaml", release={"metrics": True})
    loose = {"rules": {"a": {"federations": "any", "methods": "any", "release": ALL}}, "within": "jurisdiction.yaml"}
    found = policy(tmp_path, yaml.safe_dump(loose))
    assert found.judge(ReleaseItem("metrics"), HERE).rule == "a within training"
    assert (
        "jurisdiction.yaml: rule 'training' does not release samples"
        in found.judge(ReleaseItem("samples"), HERE).reason
    )
    (tmp_path / "jurisdiction.yaml").unlink()
    assert not allowed(Policy.read(tmp_path / "policy.yaml"))


def test_the_short_form_of_a_silo_takes_a_policy_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "fed.yaml").write_text("silos: {a: {train: a.jsonl, policy: a.yaml}, b: b.jsonl}")
    assert federation_file.read(tmp_path / "fed.yaml").silos["a"].policy == str(tmp_path / "a.yaml")


def test_the_least_cohort_is_what_quorum_and_tree_allow(federation: Build) -> None:
    settings = federation(participation={"quorum": 0.5})
    assert Purpose.of(settings, "north").cohort == 2
    assert Purpose.of(federation(participation={"quorum": 1.0}), "north").cohort == 3
    assert Purpose.of(federation(method="fedbuff"), "north").cohort == 1, "a step may be made of one update"
    tree = settings.model_copy(update={"silos": {"west": Node(silos=settings.silos)}})
    assert Purpose.of(tree, "north").cohort == 2
    assert Purpose.of(tree, "west").cohort == 1


def test_the_promised_epsilon_is_what_the_file_will_have_spent(federation: Build) -> None:
    plain = federation(rounds=2)
    north = plain.silos["north"].model_copy(update={"privacy": Privacy(noise_multiplier=1.0)})
    protected = plain.model_copy(update={"silos": plain.silos | {"north": north}})
    assert Purpose.of(protected, "north").epsilon == update_prices(protected, 2)["north"].epsilon > 0
    assert Purpose.of(protected, "south").epsilon is None


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_of_a_kind_is_answered_with_the_new_one(tmp_path: Path, old: Any) -> None:
    found = policy(tmp_path, release={"metrics": True, old: 5 if old == "pieces" else True})
    assert not allowed(found)
    assert f"rules.training.release: '{old}' is now called '{RENAMED[old]}'" in found.flaw
    assert "policy.yaml, line" in found.flaw
