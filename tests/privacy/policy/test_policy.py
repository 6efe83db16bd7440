"""Policies at the silo: what no rule allows stays, whatever is broken, missing, or asked for."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hansa.config import file as federation_file
from hansa.config.nodes import Node
from hansa.config.sections import Privacy
from hansa.core import messages
from hansa.core.encoding import EncodedTensor, EncodedUpdate
from hansa.core.errors import ConfigError, RunFailed
from hansa.core.messages import CollectVocabulary, Evaluate, Failure, Scores, Train, Update
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.policy.audit_log import AuditLog, entries, verify
from hansa.privacy.policy.guard import RELEASE_KINDS, Guard, requested_items, digest
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.proposal import propose_policy
from hansa.privacy.policy.rules import Policy, Purpose, ReleaseItem
from hansa.runs.run import run
from tests.cli.test_cli import app, ok, runner
from tests.conftest import same, weights

ALL = {"tensors": "any", "samples": True, "metrics": True, "pieces": 2, "labels": True, "personal": True}
HERE = Purpose("small", "fedavg", 2, None)


def policy(folder: Path, text: object = None, name: str = "policy.yaml", **rule: object) -> Policy:
    given = {"federations": ["small"], "methods": "any", "release": ALL} | rule
    (folder / name).write_text(text if isinstance(text, str) else yaml.safe_dump({"rules": {"training": given}}))
    return Policy.read(folder / name)


def allowed(found: Policy, kind: str = "metrics", purpose: Purpose = HERE) -> bool:
    return found.judge(ReleaseItem(kind), purpose).allowed


def test_a_rule_allows_what_it_names_and_is_named(tmp_path):
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
        ({"require": {"cohort": 3}}, "requires a cohort of 3, and a round may count with 2"),
        ({"require": {"epsilon": 8}}, "requires ε ≤ 8, and the federation file promises no differential privacy"),
        ({"require": {"secure_aggregation": True}}, "has no 'secure_aggregation' section"),
    ],
)
def test_what_a_rule_does_not_allow_stays_and_why(tmp_path, rule, reason):
    verdict = policy(tmp_path, **rule).judge(ReleaseItem("metrics"), HERE)
    assert not verdict.allowed
    assert reason in verdict.reason


def test_a_promised_epsilon_is_compared(tmp_path):
    found = policy(tmp_path, require={"epsilon": 4})
    assert allowed(found, purpose=Purpose("small", "fedavg", 2, 4.0))
    assert not allowed(found, purpose=Purpose("small", "fedavg", 2, 4.5))


def test_tensors_by_part_and_word_pieces_by_count(tmp_path):
    found = policy(tmp_path, release={"tensors": ["block", "head"], "pieces": 5})
    assert found.judge(ReleaseItem("tensors", frozenset({"block.0", "head"})), HERE).allowed
    refused = found.judge(ReleaseItem("tensors", frozenset({"block.0", "embeddings"})), HERE)
    assert "does not release tensors of embeddings" in refused.reason
    assert not found.judge(ReleaseItem("tensors", frozenset({"blocks"})), HERE).allowed, "a part is not a prefix of a word"
    assert found.judge(ReleaseItem("pieces", seen=5), HERE).allowed
    assert not found.judge(ReleaseItem("pieces", seen=4), HERE).allowed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no such file"),
        ("", "a policy is a mapping of settings"),
        ("rules: {training: {federations: any, methods: any", "not valid YAML"),
        ("rules: []", "rules"),
        ("rules: {a: {federations: any, methods: any}}", "'rules.a.release' is missing"),
        ("rules: {a: {federations: any, methods: any, release: {metric: true}}}", "did you mean 'metrics'?"),
        ("rules: {a: {federations: any, methods: any, release: {pieces: true}}}", "pieces"),
        ("rules: {a: {federations: any, methods: any, release: {metrics: true}, require: {cohort: 0}}}", "cohort"),
        ("\xff\xfe", "policy.yaml"),
        ("within: policy.yaml\nrules: {a: {federations: any, methods: any, release: {metrics: true}}}", "circle"),
    ],
)
def test_a_missing_or_broken_policy_allows_nothing(tmp_path, text, reason):
    found = policy(tmp_path, text) if text is not None else Policy.read(tmp_path / "policy.yaml")
    for kind in ("tensors", "samples", "metrics", "pieces", "labels", "offers", "personal"):
        verdict = found.judge(ReleaseItem(kind, seen=9), HERE)
        assert not verdict.allowed
        assert reason in verdict.reason or kind != "metrics"


@hypothesis_settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 200))
def test_a_policy_cut_anywhere_never_allows_more(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("cut")
    rule = {"federations": ["small"], "methods": ["fedavg"], "release": {"metrics": True}, "require": {"cohort": 2}}
    whole = yaml.safe_dump({"rules": {"training": rule}}, sort_keys=False)
    found = policy(folder, whole[:cut])
    assert not allowed(found, "samples")
    assert not allowed(found, "tensors")


def test_a_jurisdictions_policy_must_allow_it_too(tmp_path):
    policy(tmp_path, name="law.yaml", release={"metrics": True})
    loose = {"rules": {"a": {"federations": "any", "methods": "any", "release": ALL}}, "within": "law.yaml"}
    found = policy(tmp_path, yaml.safe_dump(loose))
    assert found.judge(ReleaseItem("metrics"), HERE).rule == "a within training"
    assert "law.yaml: rule 'training' does not release samples" in found.judge(ReleaseItem("samples"), HERE).reason
    (tmp_path / "law.yaml").unlink()
    assert not allowed(Policy.read(tmp_path / "policy.yaml"))


def test_every_message_says_what_it_releases():
    """Whoever adds a request, a reply or a field says in privacy/guard.py what it releases."""
    for reply in get_args(messages.Reply):
        if reply is not Failure:
            assert set(RELEASE_KINDS[reply]) == {f.name for f in fields(reply)}, reply
    model = Tensors.zeros(Layout(("w",), ((1,),)))
    for request in get_args(messages.Request):
        values = {"round": 1, "model": model, "start": model, "label": "", "parent": "", "residuals": model}
        values |= {"roster": {}, "threshold": 2, "sealed": {}, "answered": ()}
        made = request(**{f.name: values[f.name] for f in fields(request) if f.name in values})
        assert requested_items(made) is not None, request


# ── the guard ─────────────────────────────────────────────────────────────────────────────────────────────────────


def update(*names: str) -> Update:
    gradient = Tensors(Layout(names, ((2,),) * len(names)), torch.ones(2 * len(names)))
    return Update(gradient, 10, 10, 1, 0.5, 0.1)


def guard(folder: Path, answer, **rule) -> Guard:
    log = AuditLog(folder / "audit.jsonl", "north")
    policy(folder, **rule)
    parts = lambda tensor: tensor.split("-")[0]  # noqa: E731
    return Guard(answer, folder / "policy.yaml", HERE, log, parts, "federation small")


def test_what_the_operator_writes_counts_from_the_next_request(tmp_path):
    held = guard(tmp_path, lambda request: Scores({"a": {"n": 1.0}}))
    ask = Evaluate(1, Tensors.zeros(Layout((), ())))
    assert isinstance(held(ask), Scores)
    (tmp_path / "policy.yaml").unlink()
    assert isinstance(held(ask), Failure)


def test_the_guard_judges_what_the_reply_really_holds(tmp_path):
    """The request does not tell that embeddings will leave: the reply does."""
    model = Tensors(Layout(("head-w", "embeddings-w"), ((2,), (2,))), torch.zeros(4))
    release = ALL | {"tensors": ["head"]}
    good = guard(tmp_path, lambda request: update("head-w"), release=release)
    assert isinstance(good(Train(1, model)), Update)
    bad = guard(tmp_path, lambda request: update("head-w", "embeddings-w"), release=release)
    reply = bad(Train(2, model))
    assert isinstance(reply, Failure)
    assert "does not release tensors of embeddings" in reply.reason
    noted = [(e["event"], e["round"]) for e in entries(tmp_path / "audit.jsonl")]
    assert noted == [("request", 1), ("release", 1), ("request", 2), ("refusal", 2)]


def test_coded_updates_are_judged_by_the_tensors_in_them(tmp_path):
    parts = {"embeddings-w": EncodedTensor((2,), torch.ones(2))}
    empty = Tensors.zeros(Layout((), ()))
    coded = guard(
        tmp_path,
        lambda request: Update(empty, 1, 1, 1, 0.5, 0.1, coded=EncodedUpdate.of(parts)),
        release=ALL | {"tensors": ["head"]},
    )
    reply = coded(Train(1, update("head-w").gradient))
    assert isinstance(reply, Failure)
    assert "does not release tensors of embeddings" in reply.reason


def test_a_promise_of_secure_aggregation_is_held_against_each_request(tmp_path):
    """The file says `secure_aggregation`, and the coordinator asks for an update in the clear, or among too few."""
    model, names = update("head-w").gradient, ("north", "south", "east")
    roster = dict.fromkeys(names, ("a", "b"))
    strict = {"require": {"secure_aggregation": True, "cohort": 3}}
    held = guard(tmp_path, lambda request: replace(update("head-w"), masked=bool(request.roster)), **strict)
    held = replace(held, purpose=Purpose("small", "fedavg", 3, None, True))
    assert isinstance(held(Train(1, model, roster=roster)), Update)
    assert "or the request no masks" in held(Train(2, model)).reason
    few = {name: roster[name] for name in names[:2]}
    assert "a round may count with 2" in held(Train(3, model, roster=few)).reason
    lying = replace(held, answer=lambda request: update("head-w"))
    assert isinstance(lying(Train(4, model, roster=roster)), Failure), "it is masked in the end, or it stays"


def test_refused_work_is_not_done(tmp_path, caplog):
    done = []
    refusing = guard(tmp_path, lambda request: done.append(request) or Scores({}), release={"samples": True})
    reply = refusing(Evaluate(3, Tensors.zeros(Layout((), ()))))
    assert isinstance(reply, Failure)
    assert reply.reason.startswith("its policy refuses: metrics may not leave")
    assert not done
    assert "north refused a Evaluate of federation small" in caplog.text


def test_what_an_error_says_stays_in_the_silo(tmp_path, caplog):
    from hansa.links.local import attempt

    def stumble(request):
        raise KeyError("Mme Durand, 12 rue des Lilas")

    reply = attempt(guard(tmp_path, stumble), Evaluate(1, Tensors.zeros(Layout((), ()))))
    assert isinstance(reply, Failure)
    assert "KeyError" in reply.reason
    for told in (reply.reason, caplog.text, (tmp_path / "audit.jsonl").read_text()):
        assert "Durand" not in told


def test_what_nothing_knows_is_refused(tmp_path):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Diary:
        pages: str = "secret"

    assert isinstance(guard(tmp_path, lambda request: Diary())(CollectVocabulary(5)), Failure)
    assert isinstance(guard(tmp_path, lambda request: Scores({}))(Diary()), Failure)


def test_nothing_leaves_that_the_audit_log_cannot_take(tmp_path):
    (tmp_path / "audit.jsonl").mkdir()
    from hansa.links.local import attempt

    reply = attempt(
        guard(tmp_path, lambda request: Scores({"a": {"n": 1.0}})), Evaluate(1, Tensors.zeros(Layout((), ())))
    )
    assert isinstance(reply, Failure)
    assert "nothing may leave, because the audit log cannot be written" in reply.reason


def test_digests_tell_messages_apart():
    assert digest(Scores({"a": {"n": 1.0}})) == digest(Scores({"a": {"n": 1.0}}))
    assert digest(Scores({"a": {"n": 1.0}})) != digest(Scores({"a": {"n": 2.0}}))


# ── in a run ──────────────────────────────────────────────────────────────────────────────────────────────────────


def with_policy(settings, file: Path, name: str = "north"):
    node = settings.silos[name].model_copy(update={"policy": str(file)})
    return settings.model_copy(update={"silos": settings.silos | {name: node}})


def test_a_run_under_a_policy_gives_the_same_bits_and_a_sound_log(federation, tmp_path):
    settings = federation(rounds=2)
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(settings)))
    plain = run(settings, tmp_path / "plain", workers=0).folder
    held = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "held", workers=0).folder
    assert same(weights(plain / "model"), weights(held / "model"))
    log = held / "silos" / "north" / "audit.jsonl"
    assert verify(log).sound
    released = [e for e in entries(log) if e["event"] == "release"]
    assert [e["message"] for e in released] == ["Findings", "Card", "Scores", "Update", "Update", "Scores"]
    assert all(set(e["rules"].values()) == {"small"} and e["bytes"] > 0 for e in released)
    assert not (held / "silos" / "south" / "audit.jsonl").exists()
    assert "fever" not in log.read_text(), "no word of the silo's text"


@pytest.mark.parametrize("method", ["hierfavg", "fedper", "worldlm"])
def test_the_policy_of_a_kit_lets_its_own_federation_work(federation, tmp_path, method):
    """Whoever hands nothing on to other nodes is not asked whether it may."""
    settings = federation(rounds=1, task="causal-lm", method=method)
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(settings)))
    assert ("residuals" in propose_policy(settings)["rules"]["small"]["release"]) == (method == "worldlm")
    held = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "held", workers=0).folder
    log = held / "silos" / "north" / "audit.jsonl"
    assert not [e for e in entries(log) if e["event"] == "refusal"]
    assert [e for e in entries(log) if e["message"] == "Update"]


def test_a_silo_that_refuses_to_train_is_left_out_and_the_round_completes(federation, tmp_path):
    settings = federation(rounds=1)
    proposed = propose_policy(settings)
    proposed["rules"]["small"]["release"]["tensors"] = ["head", "norm"]
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(proposed))
    folder = run(with_policy(settings, tmp_path / "policy.yaml"), tmp_path / "run", workers=0).folder
    from hansa.runs.ledger import Ledger

    events = Ledger(folder).select("select node, text from events")
    assert any(node == "north" and "does not release tensors of block.0" in text for node, text in events)


def test_a_run_with_a_missing_policy_stops_with_the_reason(federation, tmp_path):
    with pytest.raises(RunFailed, match=r"silo 'north' could not answer .* the policy allows nothing"):
        run(with_policy(federation(), tmp_path / "none.yaml"), tmp_path / "run", workers=0)


def test_central_training_is_refused_where_a_silo_has_a_policy(federation, tmp_path):
    with pytest.raises(ConfigError, match=r"leave out silos\.north\.policy"):
        run(with_policy(federation(kind="central"), tmp_path / "none.yaml"), tmp_path / "run", workers=0)


def test_the_short_form_of_a_silo_takes_a_policy_relative_to_the_file(tmp_path):
    (tmp_path / "fed.yaml").write_text("silos: {a: {train: a.jsonl, policy: a.yaml}, b: b.jsonl}")
    assert federation_file.read(tmp_path / "fed.yaml").silos["a"].policy == str(tmp_path / "a.yaml")


def test_the_least_cohort_is_what_quorum_and_tree_allow(federation):
    settings = federation(participation={"quorum": 0.5})
    assert Purpose.of(settings, "north").cohort == 2
    assert Purpose.of(federation(participation={"quorum": 1.0}), "north").cohort == 3
    assert Purpose.of(federation(method="fedbuff"), "north").cohort == 1, "a step may be one silo's work"
    tree = settings.model_copy(update={"silos": {"west": Node(silos=settings.silos)}})
    assert Purpose.of(tree, "north").cohort == 2
    assert Purpose.of(tree, "west").cohort == 1


def test_the_promised_epsilon_is_what_the_file_will_have_spent(federation):
    plain = federation(rounds=2)
    north = plain.silos["north"].model_copy(update={"privacy": Privacy(noise_multiplier=1.0)})
    protected = plain.model_copy(update={"silos": plain.silos | {"north": north}})
    from hansa.privacy.dp.updates import spent

    assert Purpose.of(protected, "north").epsilon == spent(protected, 2)["north"].epsilon > 0
    assert Purpose.of(protected, "south").epsilon is None


def test_check_previews_the_decision(federation, tmp_path):
    settings = federation()
    fed, file = tmp_path / "fed.yaml", tmp_path / "policy.yaml"
    fed.write_text(federation_file.dump(settings))
    file.write_text(yaml.safe_dump(propose_policy(settings)))
    assert all(d.verdict.allowed for d in preview_policy(Policy.read(file), settings)), "a proposal is enough"
    assert "Nothing is refused" in ok("check", "--policy", str(file), str(fed))
    told = runner.invoke(app, ["check", "--policy", str(tmp_path / "none.yaml"), str(fed), "--format", "json"])
    assert told.exit_code == 1
    decisions = json.loads(told.stdout)["decisions"]
    assert [d["request"] for d in decisions] == ["CollectVocabulary", "Describe", "Train", "Train", "Train", "Evaluate"]
    assert not any(d["allowed"] for d in decisions)
    assert "block.0" in decisions[2]["releases"]


def test_a_proposal_is_narrow(federation):
    settings = federation(tokenizer={"kind": "bytes"})
    [rule] = propose_policy(settings)["rules"].values()
    assert "pieces" not in rule["release"]
    assert rule["federations"] == ["small"]


def test_a_proposal_for_masked_updates_holds_the_federation_to_them(federation, tmp_path):
    """A coordinator that leaves 'secure_aggregation' out of its settings later gets no update in the clear."""
    secure_aggregation = federation(secure_aggregation=True, personal={"rounds": 1})
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(propose_policy(secure_aggregation)))
    proposed = Policy.read(tmp_path / "policy.yaml")
    assert not proposed.flaw
    told = Purpose.of(secure_aggregation, "north")
    assert all(allowed(proposed, kind, told) for kind in ("tensors", "samples", "metrics", "personal"))
    bare = Purpose.of(federation(personal={"rounds": 1}), "north")
    assert not allowed(proposed, "tensors", bare)
    assert "secure_aggregation" not in str(propose_policy(federation()))
