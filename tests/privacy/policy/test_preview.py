"""The disclosure preview, the disclosures in words and the proposed policy: they follow from what slots declare."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from hansa.cli.main import app
from hansa.config import file as federation_file
from hansa.config.federation import Federation
from hansa.core.method import METHODS
from hansa.core.settings import Section
from hansa.methods.fedavg import fedavg
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.preview import preview_policy, refusals
from hansa.privacy.policy.proposal import policy_template, propose_policy
from hansa.privacy.policy.rules import Policy, Purpose
from tests.conftest import Build
from tests.privacy.commands import ok, runner
from tests.privacy.policy.policies import allowed, outside_method, policy, with_policy

CONTRIBUTION = (
    "In every round, from each silo taking part: its contribution to the state that the method shares with the server."
)


def test_check_previews_the_decision(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    fed, file = tmp_path / "fed.yaml", tmp_path / "policy.yaml"
    fed.write_text(federation_file.dump(settings))
    file.write_text(yaml.safe_dump(propose_policy(settings)))
    assert all(d.verdict.allowed for d in preview_policy(Policy.read(file), settings)), "a proposal is enough"
    assert "Nothing is refused" in ok("check", "--policy", str(file), str(fed))
    shown = runner.invoke(app, ["check", "--policy", str(tmp_path / "none.yaml"), str(fed), "--format", "json"])
    assert shown.exit_code == 1
    decisions = json.loads(shown.stdout)["decisions"]
    requests = ["CollectVocabulary", "DescribeData", "Train", "Train", "Train", "Evaluate"]
    assert [d["request"] for d in decisions] == requests
    assert not any(d["allowed"] for d in decisions)
    assert "block.0" in decisions[2]["releases"]


def test_the_policies_in_a_file_are_previewed(federation: Build, tmp_path: Path) -> None:
    policy(tmp_path, release={"tensors": "any", "samples": True, "metrics": True, "words": 5})
    [refusal] = refusals(with_policy(federation(), tmp_path / "policy.yaml"))
    assert refusal == (
        "north will refuse the request CollectVocabulary: policy.yaml: rule 'training' releases words that at least "
        "5 rows have, and 2 was asked for"
    )


def test_a_proposal_is_narrow(federation: Build) -> None:
    settings = federation(tokenizer={"kind": "bytes"})
    [rule] = propose_policy(settings)["rules"].values()
    assert set(rule["release"]) == {"tensors", "samples", "metrics"}
    assert rule["federations"] == ["small"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"task": "classify", "method": "fedkc"}, "knowledge"),
        ({"task": "causal-lm", "method": "worldlm"}, "layers"),
        ({"personal": {"rounds": 1}}, "personal"),
        ({"task": "classify"}, "labels"),
        ({}, "words"),
    ],
)
def test_a_proposal_allows_what_its_federation_asks_for_and_no_less_would_do(
    federation: Build, tmp_path: Path, changes: Any, kind: Any
) -> None:
    settings = federation(**changes)
    (tmp_path / "policy.yaml").write_text(policy_template(settings))
    assert all(d.verdict.allowed for d in preview_policy(Policy.read(tmp_path / "policy.yaml"), settings))
    proposed = propose_policy(settings)
    del proposed["rules"]["small"]["release"][kind]
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(proposed))
    refused = [d for d in preview_policy(Policy.read(tmp_path / "policy.yaml"), settings) if not d.verdict.allowed]
    assert {d.verdict.item.kind for d in refused} == {kind}


def test_a_proposal_for_masked_updates_requires_masks(federation: Build, tmp_path: Path) -> None:
    """A coordinator that removes 'secure_aggregation' from its settings later gets no update without masks."""
    secure = federation(secure_aggregation=True, personal={"rounds": 1})
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(secure)))
    proposed = Policy.read(tmp_path / "policy.yaml")
    assert not proposed.flaw
    promised = Purpose.of(secure, "north")
    assert all(allowed(proposed, kind, promised) for kind in ("tensors", "samples", "metrics", "personal"))
    bare = Purpose.of(federation(personal={"rounds": 1}), "north")
    assert not allowed(proposed, "tensors", bare)
    assert "secure_aggregation" not in str(propose_policy(federation()))


# ── methods from outside the package ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("like_model", [True, False])
def test_a_shared_state_of_an_outside_method_is_disclosed_and_previewed(
    federation: Build, tmp_path: Path, like_model: Any
) -> None:
    with outside_method(like_model) as name:
        settings = federation(method=name)
        assert CONTRIBUTION in disclosures(settings)
        parts = [] if like_model else ["shared_state"]
        found = policy(tmp_path, release={"tensors": ["embeddings", "block", "norm", "head", *parts]})
        [training, *_] = [d for d in preview_policy(found, settings) if d.request == "Train"]
        assert training.verdict.item.kind == "tensors"
        assert training.verdict.allowed
        assert ("shared_state" in training.what) == (not like_model)
        found = policy(tmp_path, release={"tensors": ["embeddings", "block", "norm", *parts]})
        [training, *_] = [d for d in preview_policy(found, settings) if d.request == "Train"]
        assert "does not release tensors of head" in training.verdict.reason
    assert CONTRIBUTION not in disclosures(federation())


class ShareNothing:
    """A scope without shared tensors."""

    shares_nothing = True

    def shared(self, layout: Any, parts: Any) -> Any:
        return ()


def test_a_shared_state_is_previewed_also_where_no_tensor_of_the_model_leaves(
    federation: Build, tmp_path: Path
) -> None:
    with outside_method(like_model=False, scope=ShareNothing()) as name:
        settings = federation(method=name)
        found = policy(tmp_path, release={"samples": True, "metrics": True})
        [training, *_] = [d for d in preview_policy(found, settings) if d.request == "Train"]
        assert training.what == "model updates: shared_state"
        assert not training.verdict.allowed
        assert not any("its model update" in line for line in disclosures(settings))


class LossyUpload:
    """A compression of an outside method that declares itself lossy."""

    selects, keeps_local, both_ways, lossy = False, False, False, True


def test_a_compression_of_an_outside_method_is_disclosed(federation: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    class Outside(Section):
        def build(self) -> Any:
            return replace(fedavg(), name="outside", upload=cast(Any, LossyUpload()))

    monkeypatch.setitem(METHODS.entries, "outside", Outside)
    assert any(
        "The update is compressed before it leaves" in line for line in disclosures(federation(method="outside"))
    )


@pytest.mark.parametrize("seeded", [False, True])
def test_noise_from_the_seed_is_disclosed_for_the_exchange_too(federation: Build, seeded: Any) -> None:
    method = {"name": "fedkc", "noise": {"multiplier": 1.0, "seeded": seeded}}
    text = " ".join(disclosures(federation(task="classify", method=method)))
    assert "Noise is added to the shared knowledge before it leaves: ε = " in text
    assert ("is drawn from the federation's seed" in text) == seeded


@pytest.mark.parametrize(
    ("noise", "epsilon", "reason"),
    [
        (None, 8.0, "carries no noise"),
        (4.0, 1.0, "the whole run costs ε ="),
        (4.0, 8.0, ""),
    ],
)
def test_a_budget_that_does_not_cover_the_run_is_previewed(
    federation: Build, tmp_path: Path, noise: float | None, epsilon: float, reason: str
) -> None:
    settings = federation()
    if noise is not None:
        privacy = {"privacy": {"noise_multiplier": noise, "clip": 1.0}}
        silos = {name: silo.model_dump(mode="json") | privacy for name, silo in settings.silos.items()}
        settings = Federation.model_validate(settings.model_dump(mode="json") | {"silos": silos})
    file = tmp_path / "policy.yaml"
    budget = {"budget": {"epsilon": epsilon, "delta": 1e-5}}
    file.write_text(yaml.safe_dump(propose_policy(settings) | budget), encoding="utf-8")
    refused = [one for one in preview_policy(Policy.read(file), settings) if not one.verdict.allowed]
    assert {one.request for one in refused} == ({"Train"} if reason else set())
    assert all(reason in one.verdict.reason for one in refused)
