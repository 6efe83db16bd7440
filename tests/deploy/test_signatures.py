"""Secure aggregation against a server that lies: each forgery is refused with its reason, and the same without it is
not. Cases 5 to 9 of tests/faults, between organisations."""

import json
from dataclasses import astuple, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.errors import ConfigError
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Failure,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    Train,
)
from hansa.core.tensors import Layout, Tensors
from hansa.deploy import authority
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import Kit
from hansa.deploy.signatures import KitSigner
from hansa.methods.fedavg import BySamples
from hansa.privacy.secure_aggregation import protocol as secagg
from hansa.privacy.secure_aggregation.announcement import SECRETS_FILE, Announcement, model_digest, roster_keys, mask_label, roster_weights
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets
from tests.deploy.conftest import make_kits

SIZES = {"north": 60, "south": 50, "east": 40, "north-2": 30}
LAYOUT = Layout(("w",), ((4,),))
MODEL = Tensors(LAYOUT, torch.tensor([1.0, 2.0, 3.0, 4.0]))
OTHER = Tensors(LAYOUT, torch.tensor([1.0, 2.0, 3.0, 5.0]))
RUN = "0123456789abcdef"
WEIGH, BOUND = BySamples(), 1.0


class Stage:
    """Four silos with kits, and a server that can do as it likes with what they say."""

    def __init__(self, federation, folder):
        self.kits, self.folder = make_kits(federation(sizes=SIZES), folder / "kits"), folder

    def signature(self, name, run=RUN, settings=b"{}", start="words"):
        home = self.folder / name / run
        (home / "start").mkdir(parents=True, exist_ok=True)
        (home / "start" / "tokenizer.json").write_text(start)
        return KitSigner(Kit(self.kits / name), home, settings)

    def wearer(self, name, **given):
        """As if its process had just been started: all that it knows is on its disk."""
        signature = self.signature(name, **given)
        return MaskingClient(name, "small", signature.folder, SIZES[name], signature)

    def advertise(self, round=1, model=MODEL):
        told = {name: self.wearer(name).answer(AdvertiseKeys(round, model_digest(model))) for name in SIZES}
        assert all(isinstance(reply, AdvertisedKeys) for reply in told.values()), told
        return {name: tuple(map(str, astuple(reply))) for name, reply in told.items()}

    def entrust(self, roster, threshold=2, round=1):
        replies = {name: self.wearer(name).answer(ShareSecrets(round, roster, threshold)) for name in roster}
        assert all(isinstance(reply, SecretShares) for reply in replies.values()), replies
        return {name: reply.sealed for name, reply in replies.items()}

    def train(self, name, request, values=(0.1, -0.2, 0.3, -0.4)):
        wearer = self.wearer(name)
        wearer.check(request)
        return wearer.cover(request, Tensors(LAYOUT, torch.tensor(values)), WEIGH, BOUND)[0]

    def reveal(self, name, sealed, answered, round=1):
        inbox = {sender: shares[name] for sender, shares in sealed.items() if sender != name}
        return self.wearer(name).answer(RevealShares(round, inbox, tuple(answered)))


@pytest.fixture
def stage(federation, tmp_path):
    return Stage(federation, tmp_path)


def test_without_lies_the_server_learns_the_mean_and_it_is_right(stage):
    """The control of everything below: honest, restarted after every step, one silo drops out."""
    roster = stage.advertise()
    sealed = stage.entrust(roster)
    rng = np.random.default_rng(3)
    values = {name: rng.uniform(-1, 1, 4).astype(np.float32) for name in SIZES}
    answered = ["east", "north", "south"]
    sent = [stage.train(name, Train(1, MODEL, roster=roster), values[name].tolist()) for name in answered]
    total = np.sum([update.flat.numpy().view(np.uint32) for update in sent], axis=0, dtype=np.uint32)
    shares: dict = {}
    for name in answered:
        reply = stage.reveal(name, sealed, answered)
        assert isinstance(reply, RevealedShares)
        for silo, (x, y) in reply.shares.items():
            shares.setdefault(silo, []).append((int(x, 16), int(y, 16)))
    plain = secagg.unmask(total, roster_keys(roster), answered, shares, 2, mask_label("small", 1, roster, 2))
    weights = roster_weights(roster, WEIGH)
    assert weights["north"] == pytest.approx(60 / 180)
    expected = sum(weights[name] * values[name] for name in answered) / sum(weights[name] for name in answered)
    got = secagg.from_fixed(plain, sum(weights[name] for name in answered), BOUND)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    for update in sent:
        assert np.abs(update.flat.numpy().view(np.int32)).max() > 2**28, "under its mask an update looks like chance"


# ── forged lists ──────────────────────────────────────────────────────────────────────────────────────────────────


def signed(stage, name, as_whom=None, **changes):
    """What the server would like ``name`` to have said, signed with the key of ``as_whom``."""
    given = {key: changes.pop(key) for key in ("run", "settings", "start") if key in changes}
    round = changes.pop("round", 1)
    said = replace(Announcement(Secrets.fresh().keys, SIZES[name], model_digest(MODEL)), **changes)
    signature = stage.signature(as_whom or name, **given)
    statement = signature._statement(round, name, said)
    return replace(said, vouch=signature.kit.key.sign(statement).hex()).words


def invented(stage, roster):
    """A silo that does not exist, to hide the others' absence."""
    return {**two(stage, roster), "east": roster["east"], "west": signed(stage, "south")}


def own_keys(stage, roster):
    """The server's keys for a silo that exists, with a key of its own under them."""
    said = Announcement(Secrets.fresh().keys, 50, model_digest(MODEL))
    forged = Ed25519PrivateKey.generate().sign(stage.signature("south")._statement(1, "south", said)).hex()
    return {**roster, "south": replace(said, vouch=forged).words}


def unsigned(stage, roster):
    return {**roster, "south": (*roster["south"][:4], "")}


def borrowed(stage, roster):
    """What another silo has signed, under the name of this one."""
    return {**roster, "south": signed(stage, "south", as_whom="east")}


def coordinators(stage, roster):
    """The coordinator is a member too, but no silo."""
    return {**two(stage, roster), "east": roster["east"], "coordinator": signed(stage, "south")}


def another_round(stage, roster):
    """Its secrets of an earlier round may be known: whoever dropped out had its key restored."""
    return {**roster, "south": signed(stage, "south", round=7)}


def another_run(stage, roster):
    return {**roster, "south": signed(stage, "south", run="fedcba9876543210")}


def other_settings(stage, roster):
    """South was told a learning rate of nothing, so that its update would be zero."""
    return {**roster, "south": signed(stage, "south", settings=b'{"train": {"lr": 0}}')}


def other_start(stage, roster):
    return {**roster, "south": signed(stage, "south", start="other words")}


def more_samples(stage, roster):
    """The weight of the others vanishes beside one that claims more than it signed."""
    return {**roster, "south": (*roster["south"][:2], "1000000", *roster["south"][3:])}


def other_model(stage, roster):
    """Case 8: South was told of another model (Pasquini et al., 2022)."""
    return {**roster, "south": signed(stage, "south", model=model_digest(OTHER))}


def revoked(stage, roster):
    authority.revoke(stage.kits, "south")
    return roster


def two(stage, roster):
    return {name: roster[name] for name in ("north", "south")}


def without_me(stage, roster):
    return {name: words for name, words in roster.items() if name != "north"}


def one_key_twice(stage, roster):
    """The same keys for two: whoever knows the one knows the other."""
    keys = Announcement.parse(roster["east"]).keys
    return {**roster, "south": signed(stage, "south", keys=keys)}


def no_key(stage, roster):
    return {**roster, "south": ("zz", *roster["south"][1:])}


FORGERIES = {
    invented: "'west' is on the list, and is no silo beside this one",
    own_keys: "what 'south' is said to have said is not signed by it",
    unsigned: "what 'south' is said to have said is not signed by it",
    borrowed: "what 'south' is said to have said is not signed by it",
    coordinators: "'coordinator' is on the list, and is no silo",
    another_round: "not signed by it for this round",
    another_run: "not signed by it for this round",
    other_settings: "with the settings and the common start that this silo was given",
    other_start: "with the settings and the common start that this silo was given",
    more_samples: "what 'south' is said to have said is not signed by it",
    other_model: "the silos on the list were told of different models",
    revoked: "'south' is on the list, and was revoked",
    two: "2 silos are on the list, and at least 3",
    without_me: "does not have this silo's own",
    one_key_twice: "the list of keys has one twice",
    no_key: "a silo's keys are no keys",
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_a_forged_list_is_refused_and_the_true_one_is_not(stage, forgery):
    roster = stage.advertise()
    refused = stage.wearer("north").answer(ShareSecrets(1, forgery(stage, roster), 2))
    assert isinstance(refused, Failure)
    assert FORGERIES[forgery] in refused.reason
    if forgery is not revoked:
        assert isinstance(stage.wearer("north").answer(ShareSecrets(1, roster, 2)), SecretShares), (
            "the refusal changed nothing"
        )


# ── doing things twice ────────────────────────────────────────────────────────────────────────────────────────────


def test_asked_again_for_its_keys_a_silo_says_the_same_or_nothing(stage):
    first, again = stage.advertise(), stage.advertise()
    assert first == again
    refused = stage.wearer("north").answer(AdvertiseKeys(1, model_digest(OTHER)))
    assert "told of another model in this round" in refused.reason
    assert isinstance(stage.wearer("north").answer(AdvertiseKeys(2, model_digest(OTHER))), AdvertisedKeys), (
        "the next round may"
    )
    assert "does not go back" in stage.wearer("north").answer(AdvertiseKeys(1, model_digest(MODEL))).reason


def test_secrets_are_entrusted_to_one_list(stage):
    roster = stage.advertise()
    stage.entrust(roster)
    fewer = {name: words for name, words in roster.items() if name != "north-2"}
    for asked in (roster, fewer):
        assert "does so once" in stage.wearer("north").answer(ShareSecrets(1, asked, 2)).reason


@pytest.mark.parametrize("threshold", [0, 1])
def test_half_of_the_others_must_not_suffice(stage, threshold):
    """Two lists of who answered, each shown to another half, would open both secrets of a silo."""
    roster = stage.advertise()
    refused = stage.wearer("north").answer(ShareSecrets(1, roster, threshold))
    assert "no more than half" in refused.reason


def test_a_second_update_under_the_same_masks_is_refused_also_after_a_restart(stage):
    """Their difference would be the difference of two updates: of another model, weight, or with one silo fewer."""
    roster = stage.advertise()
    stage.entrust(roster)
    fewer = {name: words for name, words in roster.items() if name != "north-2"}
    request = Train(1, MODEL, roster=roster)
    with pytest.raises(Refused, match="entrusted its secrets to"):
        stage.train("north", Train(1, MODEL, roster=invented(stage, roster)))
    with pytest.raises(Refused, match="entrusted its secrets to"):
        stage.train("north", Train(1, MODEL))
    stage.train("north", request)
    for again in (request, replace(request, roster=fewer)):
        with pytest.raises(Refused, match="sends no other under the same masks"):
            stage.train("north", again)
    with pytest.raises(Refused, match="no secrets for round 2"):
        stage.train("north", replace(request, round=2))
    roster = stage.advertise(round=2)
    stage.entrust(roster, round=2)
    stage.train("north", Train(2, MODEL, roster=roster))


def test_a_model_that_was_not_announced_is_not_trained(stage):
    roster = stage.advertise()
    stage.entrust(roster)
    with pytest.raises(Refused, match="not the one that the silos were told of"):
        stage.train("north", Train(1, OTHER, roster=roster))
    for other in ({"total": 9}, {"begin": 3}, {"probe": True}, {"room": 99}):
        with pytest.raises(Refused, match="the same plain round"):
            stage.train("north", Train(1, MODEL, roster=roster, **other))
    stage.train("north", Train(1, MODEL, roster=roster))


def test_shares_are_opened_for_one_list_of_who_answered(stage):
    roster = stage.advertise()
    sealed = stage.entrust(roster)
    assert "has sent no update" in stage.reveal("north", sealed, SIZES).reason
    for name in SIZES:
        stage.train(name, Train(1, MODEL, roster=roster))
    assert "more than 2 must hide" in stage.reveal("south", sealed, ["north", "south"]).reason
    strangers = stage.wearer("east").answer(RevealShares(1, {"west": "00"}, tuple(SIZES)))
    assert "that it was not masked with" in strangers.reason
    assert isinstance(stage.reveal("north", sealed, SIZES), RevealedShares)
    assert isinstance(stage.reveal("north", sealed, SIZES), RevealedShares), "asked again, the same"
    assert "both lists together" in stage.reveal("north", sealed, ["north", "south", "east"]).reason


def test_of_no_silo_can_both_secrets_be_had(stage):
    """Case 7: half of the silos are told that north answered, half that it did not."""
    roster = stage.advertise()
    sealed = stage.entrust(roster)
    for name in SIZES:
        stage.train(name, Train(1, MODEL, roster=roster))
    answered, dropped = list(SIZES), [name for name in SIZES if name != "north"]
    seeds, keys = [], []
    for name, told in (("south", answered), ("east", dropped), ("north-2", answered)):
        reply = stage.reveal(name, sealed, told)
        assert isinstance(reply, RevealedShares)
        x, y = reply.shares["north"]
        (seeds if told is answered else keys).append((int(x, 16), int(y, 16)))
    for name, told in (("south", dropped), ("east", answered), ("north-2", dropped)):
        assert isinstance(stage.reveal(name, sealed, told), Failure)
    note = json.loads((stage.wearer("north").home / SECRETS_FILE).read_text())["secrets"]
    assert f"{secagg.restore(seeds):064x}" == note["own"], "two of three open the one"
    assert len(keys) == 1, "one alone of three is left for the other"
    assert f"{secagg.restore(keys):064x}" != note["mask"]


def test_a_damaged_note_of_the_round_is_no_reason_to_begin_again(stage):
    stage.advertise()
    file = stage.wearer("north").home / SECRETS_FILE
    file.write_text(file.read_text()[:50])
    assert "is damaged" in stage.wearer("north").answer(AdvertiseKeys(1, model_digest(MODEL))).reason


def test_what_is_signed_for_one_thing_is_good_for_nothing_else(stage):
    """Any two statements that differ in anything differ in their bytes."""
    signature, said = stage.signature("north"), Announcement(Secrets.fresh().keys, 5, "0" * 64)
    statements = [
        signature._statement(1, "north", said),
        signature._statement(2, "north", said),
        signature._statement(1, "south", said),
        signature._statement(1, "north", replace(said, samples=6)),
        signature._statement(1, "north", replace(said, model="1" * 64)),
        stage.signature("north", run="fedcba9876543210")._statement(1, "north", said),
    ]
    assert all(one != other for one, other in pairwise(sorted(statements)))


def test_a_coordinator_does_not_begin_with_a_threshold_that_silos_refuse(federation, tmp_path, log):
    settings = federation(secure_aggregation={"threshold": 0.5}, sizes=SIZES)
    kits = make_kits(settings, tmp_path / "kits")
    with pytest.raises(ConfigError, match=r"secure_aggregation.threshold is 0.5: .* set it above 0.5"):
        serve(settings, Kit(kits / "coordinator"), tmp_path / "run", None, log)
