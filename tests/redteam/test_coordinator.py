"""A coordinator that lies, against agents in processes of their own: settings, scores, models, rounds and runs.

Every attack works with its defence switched off (undefended.py) and fails with it on.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hansa.config.federation import Federation
from hansa.core.messages import DataCard, DescribeData, Evaluate, Failure, Scores, Train, Update
from hansa.core.tensors import Tensors
from hansa.models import build, tokenizer
from hansa.privacy.policy.audit_log import entries
from hansa.privacy.policy.proposal import POLICY_FILE
from hansa.tasks.base import TASKS
from tests.conftest import Build
from tests.faults.processes import Deployment
from tests.redteam.lying import Liar, lying, make_start, save_start, spelled, spelling_model


@pytest.fixture
def settings(federation: Build) -> Federation:
    """One silo with 96 training texts, read as bytes; the attacker wants them."""
    return federation(
        sizes={"north": 120},
        model="mini",
        tokenizer={"kind": "bytes"},
        data={"max_length": 64, "valid": 0.0, "test": 0.2},
        train={"lr": 0.1, "batch": 8, "samples": {"floor": 64}},
    )


def real_limits(deployment: Deployment, **limits: Any) -> None:
    """Give the silo's policy limits that a hospital would have; the tests' own have none."""
    file = deployment.kits / "north" / POLICY_FILE
    usual = {"min_samples": 20, "min_update_samples": 32, "max_model_step": 0.5, "max_model_drift": 2.0}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"limits": usual | limits}))


Attack = Callable[[Liar, Federation, Path], Any]


def attacked(settings: Federation, folder: Path, behaviour: str, attack: Attack, **limits: Any) -> Any:
    """What an attack on the agent of north gives; ``behaviour``: the defences that are switched off."""
    with Deployment(settings, folder) as deployment:
        real_limits(deployment, **limits)
        with lying(deployment) as liar:
            deployment.start("north", behaviour=behaviour)
            liar.settings(settings)
            return attack(liar, settings, folder)


# ── evaluation as an oracle ───────────────────────────────────────────────────────────────────────────────────────


def read_tokens(liar: Liar, settings: Federation, folder: Path) -> float:
    """The share of the training samples of which one request with a crafted model tells a byte."""
    crafted = spelling_model(make_start(settings, folder / "start"))
    liar.start(folder / "start")
    card = liar.ask("north", DescribeData())
    assert isinstance(card, DataCard)
    reply = liar.ask("north", Evaluate(0, crafted, split="train", share=1.0, parts=card.samples()))
    if not isinstance(reply, Scores):
        return 0.0
    read = [spelled(crafted, sums["nll"]) for sums in reply.sums.values() if sums["tokens"] == 1]
    texts = (folder.parent / "data" / "north.jsonl").read_text(encoding="utf-8")
    assert all(token is not None and chr(token - 5) in texts for token in read), "each is a byte of a training text"
    assert len(set(read)) > 5
    return len(read) / card.samples()


def test_scores_of_crafted_models_on_training_data_read_the_text(settings: Federation, tmp_path: Path) -> None:
    short = settings.model_copy(update={"data": settings.data.model_copy(update={"max_length": 8})})
    open_doors = "no_request_limits+no_model_check"
    assert attacked(short, tmp_path / "off", open_doors, read_tokens, min_samples=1) > 0.2
    assert attacked(short, tmp_path / "on", "", read_tokens) == 0.0


def test_each_door_of_the_oracle_is_closed_by_itself(settings: Federation, tmp_path: Path) -> None:
    """Training data, parts, small groups and crafted models are refused separately."""

    def ask(liar: Liar, settings: Federation, folder: Path) -> dict[str, Any]:
        start = make_start(settings, folder / "start")
        liar.start(folder / "start")
        requests = {
            "training data": Evaluate(0, start, split="train"),
            "many parts": Evaluate(0, start, parts=96),
            "a small share": Evaluate(0, start, share=0.05),
            "a round that is not scored": Evaluate(1, start),
            "a crafted model": Evaluate(0, spelling_model(start)),
            "honest": Evaluate(0, start),
        }
        return {name: liar.ask("north", request) for name, request in requests.items()}

    replies = attacked(settings, tmp_path, "", ask)
    assert isinstance(replies.pop("honest"), Scores)
    for name, reply in replies.items():
        assert isinstance(reply, Failure), name
        assert "north" not in reply.reason, "the coordinator learns that it was refused, and nothing else"
        assert not any(word in reply.reason for word in ("train", "share", "limit", "rule"))


# ── settings that were not approved ─────────────────────────────────────────────────────────────────────────────────


CHANGES: dict[str, dict[str, Any]] = {
    "batches of one text": {"train": {"lr": 0.1, "batch": 1, "samples": {"floor": 1}}},
    "everything masked": {"task": {"name": "mlm", "mask": 0.999999}},
    "more rounds": {"rounds": 1000},
    "rehearsal": {"simulate": {"poison": {"north": {"kind": "scale", "factor": 1e-9}}}},
    "copies of what leaves": {"release_log": {"updates": True}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_were_changed_after_the_approval(
    settings: Federation, tmp_path: Path, change: str, federation: Build
) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        make_start(settings, folder / "start")
        liar.start(folder / "start")
        changed = Federation.model_validate(settings.model_dump(mode="json") | CHANGES[change])
        liar.settings(changed)
        return liar.ask("north", DescribeData())

    assert isinstance(attacked(settings, tmp_path / "off", "no_approvals", ask), DataCard)
    reply = attacked(settings, tmp_path / "on", "", ask)
    assert isinstance(reply, Failure)
    assert "has not approved" in reply.reason
    refusals = [e for e in entries(tmp_path / "on" / "homes" / "north" / "audit.jsonl") if e["event"] == "refusal"]
    assert refusals, "the operator finds the reason"
    if "rehearsal" not in change and "copies" not in change:
        assert "→" in refusals[-1]["reason"], "with a readable difference"
        pending = list((tmp_path / "on" / "homes" / "north" / "pending").glob("*.json"))
        assert len(pending) == 1


def test_a_dropped_privacy_section_is_refused(federation: Build, tmp_path: Path) -> None:
    private = federation(sizes={"north": 120}, model="mini", tokenizer={"kind": "bytes"})
    node = private.silos["north"].model_dump(mode="json") | {"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}
    promised = Federation.model_validate(private.model_dump(mode="json") | {"silos": {"north": node}})

    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        make_start(settings, folder / "start")
        liar.start(folder / "start")
        liar.settings(private)
        return liar.ask("north", DescribeData())

    assert isinstance(attacked(promised, tmp_path / "off", "no_approvals", ask), DataCard)
    assert isinstance(attacked(promised, tmp_path / "on", "", ask), Failure)


def test_a_starting_model_with_other_weights(settings: Federation, tmp_path: Path) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        words = tokenizer.byte_tokenizer()
        auto = TASKS.build(settings.task).auto
        model = build.initial(settings.model, auto, words, settings.data.max_length, (), settings.seed)
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
        save_start(model, words, folder / "start")
        liar.start(folder / "start")
        return liar.ask("north", DescribeData())

    assert isinstance(attacked(settings, tmp_path / "off", "no_approvals", ask), DataCard)
    assert isinstance(attacked(settings, tmp_path / "on", "", ask), Failure)


def test_another_run_of_the_approved_settings(settings: Federation, tmp_path: Path) -> None:
    """An approval is for so many runs: each further run would be another oracle."""
    with Deployment(settings, tmp_path) as deployment:
        file = next((deployment.kits / "north" / "approvals").glob("*.json"))
        file.write_text(json.dumps(json.loads(file.read_text()) | {"runs": 1}))
        make_start(settings, tmp_path / "start")
        deployment.start("north")
        replies = []
        for name in ("first", "second"):
            with lying(deployment, name) as liar:
                liar.settings(settings)
                liar.start(tmp_path / "start")
                replies.append(liar.ask("north", DescribeData()))
    assert isinstance(replies[0], DataCard)
    assert isinstance(replies[1], Failure)


# ── rounds and models ─────────────────────────────────────────────────────────────────────────────────────────────


def trained(liar: Liar, settings: Federation, folder: Path) -> tuple[Tensors, Tensors]:
    """The start, and the model after an honest first round."""
    start = make_start(settings, folder / "start")
    liar.start(folder / "start")
    update = liar.ask("north", Train(1, start))
    assert isinstance(update, Update), update
    return start, Tensors(start.layout, start.flat - update.gradient.flat)


def test_another_model_for_the_same_round(settings: Federation, tmp_path: Path) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        _, after = trained(liar, settings, folder)
        first = liar.ask("north", Train(2, after))
        second = liar.ask("north", Train(2, Tensors(after.layout, after.flat * 1.001)))
        return first, second

    for behaviour, refused in (("no_model_check", False), ("", True)):
        first, second = attacked(settings, tmp_path / (behaviour or "on"), behaviour, ask)
        assert isinstance(first, Update)
        assert isinstance(second, Failure) == refused


def test_a_model_far_from_the_last_one_or_not_the_start(settings: Federation, tmp_path: Path) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        start = make_start(settings, folder / "start")
        liar.start(folder / "start")
        other = Tensors(start.layout, start.flat + 0.01)
        first = liar.ask("north", Train(1, other))
        liar.ask("north", Train(1, start))
        far = liar.ask("north", Train(2, Tensors(start.layout, start.flat + 0.05 * torch.randn(start.layout.size))))
        return first, far

    assert all(isinstance(r, Update) for r in attacked(settings, tmp_path / "off", "no_model_check", ask))
    assert all(isinstance(r, Failure) for r in attacked(settings, tmp_path / "on", "", ask))


def test_more_rounds_than_approved(settings: Federation, tmp_path: Path) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        start = make_start(settings, folder / "start")
        liar.start(folder / "start")
        return liar.ask("north", Train(settings.rounds + 1, start))

    assert isinstance(attacked(settings, tmp_path / "off", "no_request_limits", ask), Update)
    assert isinstance(attacked(settings, tmp_path / "on", "", ask), Failure)


def test_an_update_of_too_few_texts(settings: Federation, tmp_path: Path) -> None:
    """The policy's least number holds even for settings that an administrator approved without a second look."""
    few = {"train": {"lr": 0.1, "batch": 1, "samples": {"floor": 1}}}
    small = Federation.model_validate(settings.model_dump(mode="json") | few)

    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        start = make_start(settings, folder / "start")
        liar.start(folder / "start")
        return liar.ask("north", Train(1, start))

    assert isinstance(attacked(small, tmp_path / "off", "no_least_samples", ask), Update)
    assert isinstance(attacked(small, tmp_path / "on", "", ask), Failure)
    assert isinstance(attacked(settings, tmp_path / "enough", "", ask), Update)


def test_the_log_alone_says_what_was_asked_and_what_left(settings: Federation, tmp_path: Path) -> None:
    def ask(liar: Liar, settings: Federation, folder: Path) -> Any:
        start, _ = trained(liar, settings, folder)
        liar.ask("north", Evaluate(0, start, split="train"))
        return liar.ask("north", Evaluate(0, start))

    assert isinstance(attacked(settings, tmp_path, "", ask), Scores)
    found = [e for e in entries(tmp_path / "homes" / "north" / "audit.jsonl") if e["event"] != "approved"]
    assert all(len(e["settings"]) == 64 and len(e["run"]) == 16 for e in found)
    asked = [(e["event"], e["message"], e.get("split")) for e in found if e["message"] in ("Evaluate", "Scores")]
    assert ("refusal", "Evaluate", "train") in asked
    assert ("release", "Scores", "test") in asked
    models = {e["model"] for e in found if "model" in e}
    assert len(models) == 1, "the start was trained and scored, and no other model"
