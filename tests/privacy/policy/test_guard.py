"""The guard: what a policy does not allow does not leave, and every request and reply is in the audit log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
import torch

from hansa.core import messages
from hansa.core.codec import encoded_fields
from hansa.core.encoding import EncodedTensor, EncodedUpdate
from hansa.core.messages import (
    CollectVocabulary,
    Evaluate,
    Failure,
    MaskedPart,
    MaskingPart,
    Reply,
    RevealedShares,
    RevealShares,
    Scores,
    Train,
    Update,
    no_tensors,
)
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import attempt
from hansa.privacy.policy.audit_log import AuditLog, entries
from hansa.privacy.policy.guard import Guard
from hansa.privacy.policy.releases import RELEASE_KINDS, digest, released_items, requested_items
from hansa.privacy.policy.rules import Kind, Purpose, ReleaseItem
from tests.privacy.policy.policies import ALL, HERE, policy

MODEL_PARTS = ("head", "embeddings", "block")


def part_of(tensor: str) -> str:
    """The part of a tensor named PART-NAME; KeyError for tensors that the model does not have."""
    part = tensor.split("-")[0]
    if part not in MODEL_PARTS:
        raise KeyError(tensor)
    return part


def update(*names: str) -> Update:
    gradient = Tensors(Layout(names, ((2,),) * len(names)), torch.ones(2 * len(names)))
    return Update(gradient, 10, 10, 1, 0.5, 0.1)


def guard(folder: Path, answer: Callable[[Any], Any], **rule: Any) -> Guard:
    log = AuditLog(folder / "audit.jsonl", "north")
    policy(folder, **rule)
    return Guard(answer, folder / "policy.yaml", HERE, log, part_of, "federation small")


def reason(reply: Reply) -> str:
    """The reason of a refusal."""
    assert isinstance(reply, Failure)
    return reply.reason


def declared_fields(kind: Any, prefix: str = "") -> Iterator[str]:
    """The fields of a message type, those of optional parts as ``part.field``."""
    for name, hint in encoded_fields(kind):
        inner = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
        if inner is None or inner in (Tensors, EncodedUpdate):
            yield prefix + name
        else:
            yield from declared_fields(inner, f"{prefix}{name}.")


def test_every_field_of_every_message_has_a_kind() -> None:
    """A new request, reply or field must be listed in privacy/policy/guard.py with what it releases."""
    for reply in get_args(messages.Reply):
        if reply is not Failure:
            assert set(RELEASE_KINDS[reply]) == set(declared_fields(reply)), reply
            assert set(RELEASE_KINDS[reply].values()) <= set(get_args(Kind))
    model = Tensors.zeros(Layout(("w",), ((1,),)))
    values = {"round": 1, "model": model, "start": model, "label": "", "roster": {}, "threshold": 2}
    values |= {"sealed": {}, "answered": (), "leader": "", "floor": 20}
    for request in get_args(messages.Request):
        made = request(**{f.name: values[f.name] for f in fields(request) if f.name in values})
        assert requested_items(made) is not None, request


def test_fields_that_the_sender_keeps_are_not_released() -> None:
    assert "staleness" in get_type_hints(Update)
    assert "staleness" not in set(declared_fields(Update))


def test_a_change_of_the_policy_takes_effect_with_the_next_request(tmp_path: Path) -> None:
    held = guard(tmp_path, lambda request: Scores({"a": {"n": 1.0}}))
    ask = Evaluate(1, no_tensors())
    assert isinstance(held(ask), Scores)
    (tmp_path / "policy.yaml").unlink()
    assert isinstance(held(ask), Failure)


def test_the_guard_judges_what_the_reply_contains(tmp_path: Path) -> None:
    """The request does not show that embeddings would leave: the reply does."""
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


def test_encoded_updates_are_judged_by_the_tensors_in_them(tmp_path: Path) -> None:
    encoded = EncodedUpdate.of({"embeddings-w": EncodedTensor((2,), torch.ones(2))})
    held = guard(
        tmp_path,
        lambda request: Update(no_tensors(), 1, 1, 1, 0.5, 0.1, encoded=encoded),
        release=ALL | {"tensors": ["head"]},
    )
    reply = held(Train(1, update("head-w").gradient))
    assert isinstance(reply, Failure)
    assert "does not release tensors of embeddings" in reply.reason


@pytest.mark.parametrize(
    ("state", "tensors", "refused"),
    [
        ("embeddings-w", ["head"], "does not release tensors of embeddings"),
        ("embeddings-w", ["head", "embeddings"], ""),
        ("embeddings-w", "any", ""),
        ("counter", ["head"], "does not release tensors of shared_state"),
        ("counter", ["head", "shared_state"], ""),
        ("counter", "any", ""),
    ],
)
def test_contributions_to_a_shared_state_are_judged_as_tensors(
    tmp_path: Path, state: Any, tensors: Any, refused: Any
) -> None:
    """Of any method: by the part of the model that a tensor belongs to, or as 'shared_state' if it belongs to none."""
    sent = Tensors(Layout((state,), ((2,),)), torch.ones(2))
    held = guard(
        tmp_path,
        lambda request: replace(update("head-w"), shared_state=sent),
        release=ALL | {"tensors": tensors},
    )
    reply = held(Train(1, update("head-w").gradient, shared_state=sent))
    assert isinstance(reply, Failure if refused else Update)
    assert refused in getattr(reply, "reason", "")


def test_a_request_with_a_shared_state_asks_for_tensors_also_if_no_model_is_sent() -> None:
    state = update("head-w").gradient
    assert ReleaseItem("tensors") not in (requested_items(Train(1, no_tensors())) or [])
    assert ReleaseItem("tensors") in (requested_items(Train(1, no_tensors(), shared_state=state)) or [])


def test_an_update_with_a_tensor_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    assert released_items(update("diary-w"), Train(1, no_tensors()), part_of) is None
    reply = guard(tmp_path, lambda request: update("diary-w"))(Train(1, update("head-w").gradient))
    assert isinstance(reply, Failure)
    assert "content that policies do not know" in reply.reason


def test_a_promise_of_secure_aggregation_is_held_against_each_request(tmp_path: Path) -> None:
    """The file says `secure_aggregation`, and the server asks for an update without masks, or among too few silos."""
    model, names = update("head-w").gradient, ("north", "south", "east")
    roster: dict[str, tuple[str, ...]] = dict.fromkeys(names, ("a", "b"))
    strict = {"require": {"secure_aggregation": True, "cohort": 3}}

    def answer(request: Train) -> Update:
        return replace(update("head-w"), masked=MaskedPart() if request.masking else None)

    held = guard(tmp_path, answer, **strict)
    held = replace(held, purpose=Purpose("small", "fedavg", 3, None, True))
    assert isinstance(held(Train(1, model, masking=MaskingPart(roster))), Update)
    assert "asks for an update without masks" in reason(held(Train(2, model)))
    few = {name: roster[name] for name in names[:2]}
    assert "a round may consist of 2" in reason(held(Train(3, model, masking=MaskingPart(few))))
    lying = replace(held, answer=lambda request: update("head-w"))
    reply = lying(Train(4, model, masking=MaskingPart(roster)))
    assert isinstance(reply, Failure), "an update that is not masked in the end does not leave"
    revealing = replace(held, answer=lambda request: RevealedShares({"south": ("1", "2")}))
    assert isinstance(revealing(RevealShares(1, {}, names)), RevealedShares)
    for answered in (names[:2], ("north", "north", "south"), ()):
        assert "a round may consist of" in reason(revealing(RevealShares(1, {}, answered)))


def test_refused_work_is_not_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = list[Any]()

    def answer(request: Any) -> Scores:
        done.append(request)
        return Scores({})

    refusing = guard(tmp_path, answer, release={"samples": True})
    reply = refusing(Evaluate(3, no_tensors()))
    assert isinstance(reply, Failure)
    assert reply.reason.startswith("its policy refuses: metrics may not leave")
    assert not done
    assert "north refused a Evaluate of federation small" in caplog.text


def test_the_message_of_an_error_stays_at_the_silo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: object) -> Scores:
        raise KeyError("Mme Durand, 12 rue des Lilas")

    reply = attempt(guard(tmp_path, fail), Evaluate(1, no_tensors()))
    assert isinstance(reply, Failure)
    assert "KeyError" in reply.reason
    for text in (reply.reason, caplog.text, (tmp_path / "audit.jsonl").read_text()):
        assert "Durand" not in text


def test_unlisted_messages_are_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Diary:
        pages: str = "secret"

    assert isinstance(guard(tmp_path, lambda request: Diary())(CollectVocabulary(5)), Failure)
    assert isinstance(guard(tmp_path, lambda request: Scores({}))(cast(Any, Diary())), Failure)


def test_nothing_leaves_that_the_audit_log_cannot_take(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    reply = attempt(guard(tmp_path, lambda request: Scores({"a": {"n": 1.0}})), Evaluate(1, no_tensors()))
    assert isinstance(reply, Failure)
    assert "nothing may leave, because the audit log cannot be written" in reply.reason


def test_digests_tell_messages_apart() -> None:
    assert digest(Scores({"a": {"n": 1.0}})) == digest(Scores({"a": {"n": 1.0}}))
    assert digest(Scores({"a": {"n": 1.0}})) != digest(Scores({"a": {"n": 2.0}}))
