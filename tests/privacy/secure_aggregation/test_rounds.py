"""Secure aggregation in whole runs: the same model but for rounding, whoever drops out, or no model at all."""

import json
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from hansa.client.runtime import Runtime
from hansa.core.errors import ConfigError, RunFailed
from hansa.core.messages import AdvertiseKeys, Failure, RevealShares, ShareSecrets, Train
from hansa.core.participation import Child, ServerState
from hansa.core.round import federated_round
from hansa.links.local import LocalLink
from hansa.privacy.secure_aggregation.announcement import SECRETS_FILE, mask_label
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.protocol import Secrets, mask, mask_stream
from hansa.runs.run import run
from tests.conftest import same, weights

SECURE = {"secure_aggregation": True, "participation": {"quorum": 0.1}}


def test_the_model_is_the_plain_one_but_for_rounding(federation, tmp_path):
    plain = run(federation(rounds=2), tmp_path / "plain", workers=0).folder
    masked = run(federation(rounds=2, **SECURE), tmp_path / "masked", workers=0).folder
    pool = run(federation(rounds=2, **SECURE), tmp_path / "pool", workers=2).folder
    assert same(weights(masked / "model"), weights(pool / "model")), "whatever keys were drawn, and wherever"
    for name, tensor in weights(plain / "model").items():
        torch.testing.assert_close(weights(masked / "model")[name], tensor, atol=1e-5, rtol=1e-4)


class Truant:
    """A link on which some silos say nothing to one kind of request."""

    def __init__(self, link, silent, kind):
        self.link, self.silent, self.kind, self.seen = link, silent, kind, []

    def ask(self, asks, until):
        for answer in self.link.ask(asks, until):
            self.seen.append(answer.reply)
            lost = answer.node in self.silent and isinstance(asks[answer.node], self.kind)
            yield type(answer)(answer.node, Failure("it has gone")) if lost else answer


def one_round(settings, folder, silent, kind, lie=lambda link: link):
    runtime = Runtime(settings, folder)
    link = Truant(lie(LocalLink(lambda name: runtime.silo(name).answer)), silent, kind)
    members = {name: Child(len(runtime.silo(name).examples("train")), 10) for name in settings.silos}
    moving = ServerState(runtime.start.copy(), {})
    record = federated_round("fed", members, link, runtime.method, settings, moving, 0)
    return record, moving, link


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Train, RevealShares])
def test_silos_may_drop_out_in_every_phase(federation, tmp_path, kind):
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation={"threshold": 0.5}, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    record, moving, _ = one_round(settings, folder, {"north-2"}, kind)
    assert not record.failed
    plain = settings.model_copy(update={"secure_aggregation": None})
    gone = {"north-2"} if kind is not RevealShares else set()  # by then its update is in the sum
    _, expected, _ = one_round(plain, folder, gone, Train)
    torch.testing.assert_close(moving.model.flat, expected.model.flat, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Train, RevealShares])
def test_one_below_the_threshold_nothing_is_unmasked(federation, tmp_path, kind):
    settings = federation(rounds=1, **SECURE)
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    record, moving, link = one_round(settings, folder, {"east"}, kind)
    assert "nothing is unmasked" in record.failed
    assert torch.equal(moving.model.flat, Runtime(settings, folder).start.flat), "the model has not moved"
    updates = [reply for reply in link.seen if hasattr(reply, "masked")]
    assert all(update.masked for update in updates), "no update was ever seen by itself"


class Liar:
    """A link on which one silo's replies to one kind of request are changed."""

    def __init__(self, link, kind, change):
        self.link, self.kind, self.change = link, kind, change

    def ask(self, asks, until):
        for answer in self.link.ask(asks, until):
            lies = answer.node == "north" and isinstance(asks[answer.node], self.kind)
            yield type(answer)(answer.node, self.change(answer.reply)) if lies else answer


LIES = {
    "no keys": (AdvertiseKeys, lambda reply: replace(reply, seal="zz")),
    "a number of samples that none has": (AdvertiseKeys, lambda reply: replace(reply, samples=-5)),
    "shares are not for those on the list": (ShareSecrets, lambda reply: replace(reply, sealed={})),
    "is not under a mask": (Train, lambda reply: replace(reply, masked=False)),
    "it sent a Lost": (ShareSecrets, lambda reply: Failure("it sent a Lost")),
}


@pytest.mark.parametrize("reason", LIES)
def test_one_silo_that_lies_is_left_out_and_the_sum_is_right(federation, tmp_path, reason):
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation=True, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    kind, change = LIES[reason]
    record, moving, _ = one_round(settings, folder, set(), Train, lambda link: Liar(link, kind, change))
    assert not record.failed
    assert reason in record.lost["north"]
    plain = settings.model_copy(update={"secure_aggregation": None})
    _, expected, _ = one_round(plain, folder, {"north"}, Train)
    torch.testing.assert_close(moving.model.flat, expected.model.flat, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "shares", [{"south": ("zz", "1")}, {"south": ("1",)}, {"south": ("0", "1"), "x": ("1", "1")}, {}]
)
def test_shares_that_are_none_open_nothing_and_break_nothing(federation, tmp_path, shares):
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation=True, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    lie = lambda link: Liar(link, RevealShares, lambda reply: replace(reply, shares=shares))  # noqa: E731
    record, moving, _ = one_round(settings, folder, set(), Train, lie)
    assert not record.failed
    _, expected, _ = one_round(settings.model_copy(update={"secure_aggregation": None}), folder, set(), Train)
    torch.testing.assert_close(moving.model.flat, expected.model.flat, atol=1e-6, rtol=0)


def test_masks_do_not_cancel_among_silos_that_were_shown_different_lists(tmp_path):
    """A server that shows some silos one list and some another learns nothing: their masks are made for the list."""
    assert mask_label("fed", 1, {"a": ("1",), "b": ("2",)}, 2) == mask_label("fed", 1, {"b": ("2",), "a": ("1",)}, 2)
    labels = {
        mask_label("fed", 1, {"a": ("1",), "b": ("2",)}, 2),
        mask_label("fed", 1, {"a": ("1",)}, 2),
        mask_label("fed", 1, {"a": ("1",), "b": ("3",)}, 2),
        mask_label("fed", 1, {"a": ("1",), "b": ("2",)}, 3),
        mask_label("fed", 2, {"a": ("1",), "b": ("2",)}, 2),
    }
    assert len(labels) == 5
    mine = {name: Secrets.fresh() for name in "ab"}
    roster = {name: secret.keys for name, secret in mine.items()}
    values = np.array([5, 7], np.uint32)

    def total(*shown):
        words = [mask(n, mine[n], roster, values, label) for n, label in zip("ab", shown, strict=True)]
        own = [mask_stream(bytes.fromhex(secret.own), 2) for secret in mine.values()]
        return sum(words[1:], words[0]) - own[0] - own[1]

    assert total("one", "one").tolist() == [10, 14], "the same list: they cancel"
    assert total("one", "two").tolist() != [10, 14]


def test_what_is_beyond_the_bound_is_cut_and_nothing_overflows(federation, tmp_path):
    settings = federation(rounds=1, secure_aggregation={"bound": 1e-6}, participation={"quorum": 0.1})
    folder = run(settings, tmp_path / "r", workers=0).folder
    start = Runtime(settings, folder).start
    moved = max(float((weights(folder / "model")[n] - start[n]).abs().max()) for n in start.layout.names)
    assert 0 < moved <= 1.1e-6


def test_a_round_that_must_stay_masked_ends_the_run_with_the_reason(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(MaskingClient, "_reveal", lambda *_: Failure("it has gone"))
    with pytest.raises(RunFailed, match="nothing is unmasked, because 0 silos gave their share"):
        run(federation(rounds=1, **SECURE), tmp_path / "r", workers=0)


def test_a_silo_opens_what_it_holds_for_one_list_only(tmp_path):
    wearers = {name: MaskingClient(name, "fed", tmp_path / name, 10) for name in "abcd"}
    roster = {name: astuple(w.answer(AdvertiseKeys(1, "0" * 64))) for name, w in wearers.items()}
    roster = {name: tuple(map(str, told)) for name, told in roster.items()}
    sealed = {name: w.answer(ShareSecrets(1, roster, 2)).sealed for name, w in wearers.items()}
    inbox = {sender: sealed[sender]["a"] for sender in "bcd"}
    assert "has sent no update" in wearers["a"].answer(RevealShares(1, inbox, tuple("abcd"))).reason
    note = json.loads((tmp_path / "a" / SECRETS_FILE).read_text())
    wearers["a"]._keep(1, note | {"masked with": roster})
    assert set(wearers["a"].answer(RevealShares(1, inbox, tuple("abc"))).shares) == set("bcd")
    assert set(wearers["a"].answer(RevealShares(1, inbox, tuple("abc"))).shares) == set("bcd"), "asked again, the same"
    assert "both lists" in wearers["a"].answer(RevealShares(1, inbox, tuple("abd"))).reason
    assert "no secrets for round 2" in wearers["a"].answer(ShareSecrets(2, roster, 2)).reason
    assert (tmp_path / "a" / SECRETS_FILE).stat().st_mode & 0o077 == 0, "nobody else may read it"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"aggregate": "median"}, "must see each by itself"),
        ({"method": "dga"}, "known before anybody trains"),
        ({"method": "qffl"}, "must see each by itself"),
        ({"upload": {"steps": ["int8"]}}, "leave 'upload' out"),
        ({"participation": {"count": 2}}, "a cohort of at least 3"),
    ],
)
def test_what_makes_no_sense_with_it_is_refused(federation, tmp_path, change, says):
    with pytest.raises(ConfigError, match=says):
        run(federation(rounds=1, **({"secure_aggregation": True} | change)), tmp_path / "r", workers=0)


def test_an_update_that_is_not_finite_is_not_hidden_under_a_mask(federation, tmp_path):
    """The sum would be spoilt, and nobody could see by whom."""
    poison = {"poison": {"east": {"kind": "scale", "factor": 1e39}}}
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation={"threshold": 0.5}, simulate=poison)
    folder = run(federation(rounds=1, sizes=sizes), tmp_path / "r", workers=0).folder
    record, moving, _ = one_round(settings, folder, set(), Train)
    assert "not finite" in record.lost["east"]
    assert not record.failed
    assert moving.model.flat.isfinite().all()
