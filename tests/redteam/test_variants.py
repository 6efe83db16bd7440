"""Variants of attacks beyond the list: requests, starts and settings that earlier checks did not look at.

Each test runs the code that enforces, in this process, and shows the attack and the refusal; where the defence is a
setting or a value, the attack is also shown to work without it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from hansa.client.evaluation import scored
from hansa.client.host import SiloHost
from hansa.client.personalisation import OWN
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.shared import for_members, shared_settings
from hansa.core.errors import ConfigError
from hansa.core.messages import (
    NOT_APPROVED,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
    Personalise,
    PersonalScores,
    Scores,
    Train,
    Update,
    no_tensors,
)
from hansa.core.schedules import Schedule, schedule_factor
from hansa.core.tensors import Tensors
from hansa.deploy.approval import NotApproved, approval_of
from hansa.deploy.join import SiloService
from hansa.deploy.kit import Kit
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.start_check import verify_start
from hansa.models import build, tokenizer
from hansa.privacy.dp.charging import RunCharging
from hansa.privacy.policy.audit_log import AuditLog, entries
from hansa.privacy.policy.guard import Guard
from hansa.privacy.policy.rules import Purpose
from hansa.runs.run import run
from hansa.tasks.base import TASKS
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.redteam.lying import save_start, spelling_model

# ── the start ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def as_bytes(federation: Build) -> Federation:
    train = {"lr": 0.1, "batch": 8, "samples": {"floor": 64}}
    return federation(sizes={"north": 120}, model="mini", tokenizer={"kind": "bytes"}, train=train)


def start_with(settings: Federation, folder: Path, change: Callable[[Any], Any]) -> Path:
    """The start that follows from the settings and a tokenizer that the coordinator changed."""
    task, words = TASKS.build(settings.task), tokenizer.byte_tokenizer()
    change(words)
    model = build.initial(settings.model, task.auto, words, settings.data.max_length, (), settings.seed)
    save_start(model, words, folder)
    return folder


def probe_names(words: Any) -> None:
    """One token for each person that the coordinator looks for: its embedding moves if a text names the person."""
    words.add_tokens(["Jeanne Dupont", "Karl Meier"])


def letter_as_padding(words: Any) -> None:
    words.pad_token = "<0x65>"


@pytest.mark.parametrize("change", [probe_names, letter_as_padding])
def test_tokens_that_the_coordinator_added_to_look_for_names(
    as_bytes: Federation, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    honest = start_with(as_bytes, tmp_path / "honest", lambda words: None)
    assert "built again" in verify_start(honest, as_bytes, approval_of(as_bytes))
    crafted = start_with(as_bytes, tmp_path / "crafted", change)
    text = "Dr. Jeanne Dupont came"
    plain, probing = tokenizer.load(str(honest)), tokenizer.load(str(crafted))
    if change is probe_names:
        assert len(probing) == len(plain) + 2
        assert len(probing) - 2 in probing(text)["input_ids"], "the attack: one id says that the name occurs"
    with pytest.raises(NotApproved, match="tokenizer"):
        verify_start(crafted, as_bytes, approval_of(as_bytes))


def test_names_added_in_the_settings_of_the_tokenizer(as_bytes: Federation, tmp_path: Path) -> None:
    """``tokenizer_config.json`` adds tokens too, while ``tokenizer.json`` is the approved one."""
    start = start_with(as_bytes, tmp_path / "start", probe_names)
    plain = start_with(as_bytes, tmp_path / "plain", lambda words: None)
    file = start / "tokenizer.json"
    file.write_text((plain / "tokenizer.json").read_text())
    config = json.loads((start / "tokenizer_config.json").read_text())
    config["extra_special_tokens"] = ["Jeanne Dupont", "Karl Meier"]
    (start / "tokenizer_config.json").write_text(json.dumps(config))
    assert len(tokenizer.load(str(start))) == len(tokenizer.load(str(plain))) + 2, "the attack"
    with pytest.raises(NotApproved, match="tokenizer"):
        verify_start(start, as_bytes, approval_of(as_bytes))


def test_settings_of_the_model_that_were_left_out(as_bytes: Federation, tmp_path: Path) -> None:
    """A key that is missing has the default of transformers: here dropout of 0.1 instead of 0."""
    start = start_with(as_bytes, tmp_path / "start", lambda words: None)
    config = json.loads((start / "config.json").read_text())
    del config["attention_probs_dropout_prob"]
    (start / "config.json").write_text(json.dumps(config))
    with pytest.raises(NotApproved, match="attention_probs_dropout_prob"):
        verify_start(start, as_bytes, approval_of(as_bytes))


# ── requests that no setting implies ──────────────────────────────────────────────────────────────────────────────


class Asked:
    """A silo behind its policy, in this process; ``defended``: with the checks of requests and models."""

    def __init__(self, settings: Federation, folder: Path, defended: bool = True, **limits: Any) -> None:
        name = next(iter(settings.silos))
        rules = {"all": {"federations": "any", "methods": "any", "release": EVERYTHING}}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.yaml").write_text(yaml.safe_dump({"rules": rules, "limits": limits}))
        task, words = TASKS.build(settings.task), tokenizer.byte_tokenizer()
        model = build.initial(settings.model, task.auto, words, settings.data.max_length, (), settings.seed)
        save_start(model, words, folder / "start")
        self.runtime = Runtime(settings, folder)
        host = SiloHost(self.runtime)
        self.silo, self.start = host.silo(name), self.runtime.start.copy()
        checks = host.checks(name, folder) if defended else None
        purpose, log = Purpose.of(settings, name), AuditLog(folder / "audit.jsonl", name)
        self.ask = Guard(
            self.silo.answer, folder / "policy.yaml", purpose, log, self.runtime.part_of, "root", checks=checks
        )


EVERYTHING = {"tensors": "any", "samples": True, "metrics": True, "personal": True}


def test_scores_of_the_model_that_a_silo_trained(as_bytes: Federation, tmp_path: Path) -> None:
    """An evaluation without a model scored what the silo's training had left: without noise, masks or a round."""
    found = {}
    for defended in (False, True):
        asked = Asked(as_bytes, tmp_path / str(defended), defended)
        assert isinstance(asked.ask(Train(1, asked.start)), Update)
        found[defended] = asked.ask(Evaluate(0, no_tensors())), asked.ask(Evaluate(0, asked.start))
    (own, shared), (refused, honest) = found[False], found[True]
    assert isinstance(own, Scores)
    assert isinstance(shared, Scores)
    assert own.sums["north"]["nll"] != shared.sums["north"]["nll"], "the attack: scores of the silo's own model"
    assert isinstance(refused, Failure)
    assert "has no tensor" in refused.reason
    assert honest == shared


def test_a_model_of_some_tensors_beside_what_training_left(as_bytes: Federation, tmp_path: Path) -> None:
    asked = Asked(as_bytes, tmp_path)
    some = asked.start.only(asked.start.layout.names[:1])
    for request in (Train(1, some), Train(1, no_tensors()), Evaluate(0, some)):
        reply = asked.ask(request)
        assert isinstance(reply, Failure)
        assert "has no tensor" in reply.reason


def test_the_sum_over_all_groups_less_the_large_ones(federation: Build, tmp_path: Path) -> None:
    """A group of few samples is left out of the scores; a second request had it in the total of the node."""
    settings = federation(sizes={"north": 120, "south": 10}, model="mini", tokenizer={"kind": "bytes"})
    large, small = (settings.silos[name].sources[0] for name in ("north", "south"))
    groups = large.model_copy(update={"language": "fr"}), small.model_copy(update={"language": "de"})
    north = settings.silos["north"].model_copy(update={"sources": groups})
    both = settings.model_copy(update={"silos": {"north": north}})
    asked = Asked(both, tmp_path / "on")
    reply = asked.ask(Evaluate(0, asked.start))
    assert isinstance(reply, Scores)
    assert [*reply.sums] == ["fr"], "de has too few"
    total = asked.silo.answer(Evaluate(0, asked.start, by_node=True))
    plain = asked.silo.answer(Evaluate(0, asked.start))
    assert isinstance(total, Scores)
    assert isinstance(plain, Scores)
    difference = total.sums["north"]["nll"] - reply.sums["fr"]["nll"]
    assert difference == pytest.approx(plain.sums["de"]["nll"]), "the attack: the scores of de after all"
    assert isinstance(asked.ask(Evaluate(0, asked.start, by_node=True)), Failure)


def test_a_second_update_of_the_same_round_from_other_samples(as_bytes: Federation, tmp_path: Path) -> None:
    asked = Asked(as_bytes, tmp_path / "on", min_update_samples=1)
    first, second = Train(1, asked.start), Train(1, asked.start, reference=True)
    found = []
    for request in (first, second):
        reply = asked.silo.answer(request)
        assert isinstance(reply, Update)
        found.append(reply.gradient.flat.clone())
    assert not torch.equal(*found), "the attack: two updates of one round"
    assert isinstance(asked.ask(first), Update)
    assert isinstance(asked.ask(second), Failure)


def test_a_shared_state_that_moves_the_model_to_crafted_weights(as_bytes: Federation, tmp_path: Path) -> None:
    """SCAFFOLD adds the server's control variate to every gradient: one step from an honest model to any other."""
    settings = Federation.model_validate(as_bytes.model_dump(mode="json") | {"method": "scaffold"})
    plain = Asked(settings, tmp_path / "off", defended=False)
    lr, zero = settings.train.lr, Tensors.zeros(plain.start.layout)
    crafted = spelling_model(plain.start)
    jump = Tensors(zero.layout, (plain.start.flat - crafted.flat) / (lr * 8))  # in the 8 steps of a round

    reply = plain.ask(Train(1, plain.start, shared_state=jump))
    assert isinstance(reply, Update)
    ended = plain.start.flat - reply.gradient.flat
    moved = float((crafted.flat - plain.start.flat).norm())
    assert float((ended - crafted.flat).norm()) < 0.2 * moved, "the attack: the silo trains the crafted model"

    asked = Asked(settings, tmp_path / "on", max_model_step=1.0, max_model_drift=10.0)
    refused = asked.ask(Train(1, asked.start, shared_state=jump))
    assert isinstance(refused, Failure)
    assert "shared state" in refused.reason
    honest = asked.ask(Train(1, asked.start, shared_state=zero))
    assert isinstance(honest, Update)
    assert honest.shared_state is not None
    near = Tensors(zero.layout, zero.flat + 1e-4)
    again = asked.ask(Train(1, asked.start, shared_state=near))
    assert isinstance(again, Failure)
    assert "another shared state" in again.reason
    after = Tensors(zero.layout, asked.start.flat - honest.gradient.flat)
    assert isinstance(asked.ask(Train(2, after, shared_state=honest.shared_state)), Update), "the honest next round"


# ── personal models ───────────────────────────────────────────────────────────────────────────────────────────────


def personal(settings: Federation, **changes: Any) -> Federation:
    """Two silos with personal models that are compared with one another."""
    both = {name: {"train": settings.silos["north"].sources[0].train} for name in ("north", "south")}
    data = {"max_length": 16, "valid": 0.3, "test": 0.3}
    near = {"rounds": 0, "personal": {"rounds": 2, "nearby": 1}, "silos": both, "data": data}
    return Federation.model_validate(settings.model_dump(mode="json") | near | changes)


def test_many_starts_of_personal_models(as_bytes: Federation, tmp_path: Path) -> None:
    """Each start within the drift was one more model that the silo trained and answered for."""
    settings = personal(as_bytes, train={"lr": 0.1, "batch": 8, "samples": {"floor": 64}})
    for defended in (False, True):
        asked = Asked(settings, tmp_path / str(defended), defended, max_model_drift=10.0)
        starts = [Tensors(asked.start.layout, asked.start.flat * factor) for factor in (1.0, 1.5, 2.0)]
        replies = [asked.ask(Personalise(0, asked.start, start, OWN, 0, True)) for start in starts]
        given = [isinstance(reply, PersonalScores) for reply in replies]
        assert given == [True, not defended, not defended]


def test_the_update_of_a_personal_model_from_few_samples(as_bytes: Federation, tmp_path: Path) -> None:
    few = {"train": {"lr": 0.1, "max_batches": 1}, "baseline": {"lr": 0.1, "batch": 1}}
    settings = personal(as_bytes, **few)
    for least, given in ((1, True), (32, False)):
        asked = Asked(settings, tmp_path / str(least), min_update_samples=least)
        reply = asked.ask(Personalise(0, asked.start, asked.start, OWN, 0, True))
        assert isinstance(reply, PersonalScores) == given
        if not given:
            assert "min_update_samples" in reply.reason  # type: ignore[union-attr]


def test_the_update_of_a_personal_model_has_no_price(as_bytes: Federation, tmp_path: Path) -> None:
    """A policy with a budget refuses updates without noise; this one was not looked at."""
    charging = RunCharging(personal(as_bytes), "north", tmp_path)
    request = Personalise(0, no_tensors(), no_tensors(), OWN, 0, True)
    assert charging.refusal(None, "run", request) == "", "without a budget"
    assert "no noise" in charging.refusal((8.0, 1e-5), "run", request)


# ── differences of scores ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("share", "parts"), [(0.9, 1), (1.0, 4)])
def test_the_scores_of_a_whole_group_less_those_of_most_of_it(
    as_bytes: Federation, tmp_path: Path, share: float, parts: int
) -> None:
    """Two requests of the last round, each over enough samples, whose difference is over too few."""
    most = {"rounds": 1, "task": "causal-lm", "evaluate": {"every": 1, "share": share}}
    most["data"] = {"max_length": 23, "valid": 0.0, "test": 0.22}
    settings = Federation.model_validate(as_bytes.model_dump(mode="json") | most)
    asked = Asked(settings, tmp_path / "probe")
    held = asked.silo.resident.examples("test")
    samples = held.rows_behind(np.arange(len(held)))
    counts = scored(held, settings.seed, share, parts)
    assert parts == 1 or samples % parts
    least = max(counts.values()) if parts > 1 else 20  # of four parts the last ones are one sample smaller
    asked = Asked(settings, tmp_path / "on", min_samples=least)
    left = {name: count for name, count in counts.items() if count >= least}
    assert left, "the attack: each of these was released"
    assert len(left) < parts or samples - sum(left.values()) < least, "and the whole less these is over too few"
    assert isinstance(asked.ask(Evaluate(1, asked.start)), Scores)
    assert isinstance(asked.ask(Evaluate(1, asked.start, share=share, parts=parts)), Failure)


def test_others_at_a_learning_rate_of_nothing(federation: Build) -> None:
    """On a tree the server tells each child its step: in a warm-up, steps around 0 give rates that cancel."""
    schedule = Schedule(warmup=100)
    others = [schedule_factor(schedule, begin + step + 1, 1000) for begin in (-6,) for step in range(11)]
    victim = [schedule_factor(schedule, 200 + step, 1000) for step in range(11)]
    assert sum(others) == pytest.approx(0.0)
    assert sum(victim) == 11.0
    changes = {"method": {"name": "worldlm", "residuals": 0}, "task": "causal-lm", "secure_aggregation": {"bound": 4.0}}
    sizes = {f"north-{i}": 40 for i in range(3)}
    train = {"lr": 0.1, "batch": 8, "samples": {"floor": 16}}
    assert build_method(federation(sizes=sizes, train=train, **changes))
    with pytest.raises(ConfigError, match="constant learning rate"):
        build_method(federation(sizes=sizes, train=train | {"schedule": {"warmup": 100}}, **changes))


# ── approvals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def enforced(settings: Federation, tmp_path: Path) -> tuple[PolicyEnforcer, Path]:
    """The enforcer of north, which approved the settings, and the folder of a run with its honest start."""
    kits, folder = make_kits(settings, tmp_path / "kits"), tmp_path / "home" / "runs" / "one"
    start_with(settings, folder / "start", lambda words: None)
    return PolicyEnforcer.load(Kit(kits / "north"), None, tmp_path / "home"), folder


def test_an_approval_that_is_withdrawn_during_a_run(as_bytes: Federation, tmp_path: Path) -> None:
    """A run stayed open for as long as its agent ran."""
    enforcer, folder = enforced(as_bytes, tmp_path)
    service = SiloService(enforcer.kit, as_bytes.silos["north"].sources, (), enforcer)
    answer = service.open_run(folder, for_members(as_bytes))
    assert isinstance(answer(DescribeData()), DataCard)
    assert enforcer.approvals.withdraw("") == 1
    assert answer(DescribeData()) == Failure(NOT_APPROVED)
    *_, last = entries(enforcer.log.file)
    assert (last["event"], last["message"]) == ("refusal", "DescribeData")


def test_the_start_of_another_approved_run_in_the_same_folder(as_bytes: Federation, tmp_path: Path) -> None:
    """The start was noted as verified, whatever settings it was verified by."""
    enforcer, folder = enforced(as_bytes, tmp_path)
    other = Federation.model_validate(as_bytes.model_dump(mode="json") | {"seed": 7})
    enforcer.approvals.add(approval_of(other))
    assert enforcer.admit(shared_settings(as_bytes), folder, ()).start
    assert enforcer.admit(shared_settings(as_bytes), folder, ()).start
    with pytest.raises(InvalidRequest, match="has not approved"):
        enforcer.admit(shared_settings(other), folder, ())


def test_one_long_text_is_one_row_however_many_windows_it_has(federation: Build, tmp_path: Path) -> None:
    """46 windows of one letter are one patient's letter, not 46 samples."""
    settings = federation(sizes={"north": 12}, model="mini", tokenizer={"kind": "bytes"}, rounds=0)
    file = Path(settings.silos["north"].sources[0].train)
    rows = [json.dumps({"text": f"letter {number} is long " * 50}) + "\n" for number in range(12)]
    file.write_text("".join(rows), encoding="utf-8")
    folder = run(settings, tmp_path / "run", workers=0).folder
    silo = SiloHost(Runtime(settings, folder)).silo("north")
    held = silo.resident.examples("train")
    assert len(held) > 32, "the control: counted in windows, one letter would do"
    behind = silo.behind(Train(1, no_tensors()))
    assert 1 <= behind.samples <= 12
    scores = silo.behind(Evaluate(0, no_tensors(), "test", 1.0))
    assert sum(scores.groups.values()) <= 12
