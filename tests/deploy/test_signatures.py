"""Secure aggregation with a malicious server: each forgery is refused with its reason, and the original is accepted.

Cases 5 to 9 of tests/faults, between organisations.
"""

import json
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.core.errors import ConfigError
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Failure,
    MaskingPart,
    RevealedShares,
    RevealShares,
    SecretShares,
    ShareSecrets,
    StepWindow,
    Train,
)
from hansa.core.tensors import Layout, Tensors
from hansa.deploy import authority
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import Kit
from hansa.deploy.signatures import KitSigner
from hansa.methods.fedavg import BySamples
from hansa.privacy.secure_aggregation import protocol
from hansa.privacy.secure_aggregation.announcement import (
    SECRETS_FILE,
    Announcement,
    mask_label,
    model_digest,
    roster_keys,
    roster_weights,
)
from hansa.privacy.secure_aggregation.client import MaskingClient
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets
from tests.conftest import Build
from tests.deploy.conftest import make_kits

SIZES = {"north": 60, "south": 50, "east": 40, "north-2": 30}
LAYOUT = Layout(("w",), ((4,),))
MODEL = Tensors(LAYOUT, torch.tensor([1.0, 2.0, 3.0, 4.0]))
OTHER = Tensors(LAYOUT, torch.tensor([1.0, 2.0, 3.0, 5.0]))
RUN = "0123456789abcdef"
WEIGH, BOUND = BySamples(), 1.0


class Stage:
    """Four silos with kits, and a server that can change their announcements."""

    def __init__(self, federation: Build, folder: Any) -> None:
        self.kits, self.folder = make_kits(federation(sizes=SIZES), folder / "kits"), folder

    def signer(self, name: Any, run: Any = RUN, settings: Any = b"{}", start: str = "words") -> Any:
        home = self.folder / name / run
        (home / "start").mkdir(parents=True, exist_ok=True)
        (home / "start" / "tokenizer.json").write_text(start)
        return KitSigner(Kit(self.kits / name), home, settings)

    def client(self, name: Any, **given: Any) -> Any:
        """The client as after a restart of its process: its state is on its disk."""
        signer = self.signer(name, **given)
        return MaskingClient(name, "small", signer.folder, SIZES[name], signer)

    def advertise(self, round: int = 1, model: Any = MODEL) -> Any:
        replies = {name: self.client(name).answer(AdvertiseKeys(round, model_digest(model))) for name in SIZES}
        assert all(isinstance(reply, AdvertisedKeys) for reply in replies.values()), replies
        return {name: tuple(map(str, astuple(reply))) for name, reply in replies.items()}

    def share_secrets(self, roster: Any, threshold: int = 2, round: int = 1) -> Any:
        replies = {name: self.client(name).answer(ShareSecrets(round, roster, threshold)) for name in roster}
        assert all(isinstance(reply, SecretShares) for reply in replies.values()), replies
        return {name: reply.sealed for name, reply in replies.items()}

    def train(self, name: Any, request: Train, values: Any = (0.1, -0.2, 0.3, -0.4)) -> Any:
        client = self.client(name)
        client.check(request)
        return client.mask(request, Tensors(LAYOUT, torch.tensor(values)), BOUND)[0]

    def reveal(self, name: Any, sealed: Any, answered: Any, round: int = 1) -> Any:
        inbox = {sender: shares[name] for sender, shares in sealed.items() if sender != name}
        return self.client(name).answer(RevealShares(round, inbox, tuple(answered)))


@pytest.fixture
def stage(federation: Build, tmp_path: Path) -> Any:
    return Stage(federation, tmp_path)


def test_an_honest_server_gets_the_mean(stage: Any) -> None:
    """The control of the tests below: silos are restarted after every step, and one drops out."""
    roster = stage.advertise()
    sealed = stage.share_secrets(roster)
    rng = np.random.default_rng(3)
    values = {name: rng.uniform(-1, 1, 4).astype(np.float32) for name in SIZES}
    answered = ["east", "north", "south"]
    sent = [stage.train(name, Train(1, MODEL, masking=MaskingPart(roster)), values[name].tolist()) for name in answered]
    total = np.stack([update.flat.numpy().view(np.uint32) for update in sent]).sum(axis=0, dtype=np.uint32)
    shares: dict[str, list[tuple[int, int]]] = {}
    for name in answered:
        reply = stage.reveal(name, sealed, answered)
        assert isinstance(reply, RevealedShares)
        for silo, (x, y) in reply.shares.items():
            shares.setdefault(silo, []).append((int(x, 16), int(y, 16)))
    plain = protocol.unmask(total, roster_keys(roster), answered, shares, 2, mask_label("small", 1, roster, 2))
    weights = roster_weights(roster, WEIGH)
    assert weights["north"] == pytest.approx(60 / 180)
    expected = sum(weights[name] * values[name] for name in answered) / sum(weights[name] for name in answered)
    got = protocol.from_fixed(plain, sum(weights[name] for name in answered), BOUND)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    for update in sent:
        assert np.abs(update.flat.numpy().view(np.int32)).max() > 2**28, "a masked update looks random"


# ── forged rosters ────────────────────────────────────────────────────────────────────────────────────────────────────


def signed(stage: Any, name: Any, signed_by: Any = None, **changes: Any) -> Any:
    """An announcement of ``name`` that is signed with the key of ``signed_by``."""
    given = {key: changes.pop(key) for key in ("run", "settings", "start") if key in changes}
    round = changes.pop("round", 1)
    announcement = replace(Announcement(Secrets.fresh().keys, SIZES[name], model_digest(MODEL)), **changes)
    signer = stage.signer(signed_by or name, **given)
    statement = signer._statement(round, name, announcement)
    return replace(announcement, signature=signer.kit.key.sign(statement).hex()).words


def invented(stage: Any, roster: Any) -> Any:
    """A silo that does not exist, in place of one that is missing."""
    return {**two(stage, roster), "east": roster["east"], "west": signed(stage, "south")}


def own_keys(stage: Any, roster: Any) -> Any:
    """Keys of the server for a silo that exists, signed with a key of the server."""
    announcement = Announcement(Secrets.fresh().keys, 50, model_digest(MODEL))
    forged = Ed25519PrivateKey.generate().sign(stage.signer("south")._statement(1, "south", announcement)).hex()
    return {**roster, "south": replace(announcement, signature=forged).words}


def unsigned(stage: Any, roster: Any) -> Any:
    return {**roster, "south": (*roster["south"][:4], "")}


def borrowed(stage: Any, roster: Any) -> Any:
    """An announcement that another silo has signed."""
    return {**roster, "south": signed(stage, "south", signed_by="east")}


def coordinators(stage: Any, roster: Any) -> Any:
    """The coordinator is a member, but not a silo."""
    return {**two(stage, roster), "east": roster["east"], "coordinator": signed(stage, "south")}


def another_round(stage: Any, roster: Any) -> Any:
    """Secrets of an earlier round may be known: keys of silos that dropped out were reconstructed."""
    return {**roster, "south": signed(stage, "south", round=7)}


def another_run(stage: Any, roster: Any) -> Any:
    return {**roster, "south": signed(stage, "south", run="fedcba9876543210")}


def other_settings(stage: Any, roster: Any) -> Any:
    """South received a learning rate of 0, so that its update would be zero."""
    return {**roster, "south": signed(stage, "south", settings=b'{"train": {"lr": 0}}')}


def other_start(stage: Any, roster: Any) -> Any:
    return {**roster, "south": signed(stage, "south", start="other words")}


def more_samples(stage: Any, roster: Any) -> Any:
    """A silo with more samples than it signed would outweigh the others."""
    return {**roster, "south": (*roster["south"][:2], "1000000", *roster["south"][3:])}


def other_model(stage: Any, roster: Any) -> Any:
    """Case 8: another model was announced to south (Pasquini et al., 2022)."""
    return {**roster, "south": signed(stage, "south", model=model_digest(OTHER))}


def revoked(stage: Any, roster: Any) -> Any:
    authority.revoke(stage.kits, "south")
    return roster


def two(stage: Any, roster: Any) -> Any:
    return {name: roster[name] for name in ("north", "south")}


def without_me(stage: Any, roster: Any) -> Any:
    return {name: words for name, words in roster.items() if name != "north"}


def one_key_twice(stage: Any, roster: Any) -> Any:
    """The same keys for two silos."""
    keys = Announcement.parse(roster["east"]).keys
    return {**roster, "south": signed(stage, "south", keys=keys)}


def malformed_key(stage: Any, roster: Any) -> Any:
    return {**roster, "south": ("zz", *roster["south"][1:])}


FORGERIES = {
    invented: "the roster has 'west', which is not a silo or region of the same parent",
    own_keys: "the announcement of 'south' is not signed by it",
    unsigned: "the announcement of 'south' is not signed by it",
    borrowed: "the announcement of 'south' is not signed by it",
    coordinators: "the roster has 'coordinator', which is not a silo",
    another_round: "not signed by it for this round",
    another_run: "not signed by it for this round",
    other_settings: "with the same settings and the same initial model",
    other_start: "with the same settings and the same initial model",
    more_samples: "the announcement of 'south' is not signed by it",
    other_model: "different models were announced to the silos on the roster",
    revoked: "the roster has 'south', which was revoked",
    two: "the roster has 2 silos; secure aggregation needs at least 3",
    without_me: "does not contain this silo's own keys",
    one_key_twice: "the roster contains the same key twice",
    malformed_key: "an announcement has malformed keys",
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_a_forged_roster_is_refused_and_the_original_is_accepted(stage: Any, forgery: Any) -> None:
    roster = stage.advertise()
    refused = stage.client("north").answer(ShareSecrets(1, forgery(stage, roster), 2))
    assert isinstance(refused, Failure)
    assert FORGERIES[forgery] in refused.reason
    if forgery is not revoked:
        assert isinstance(stage.client("north").answer(ShareSecrets(1, roster, 2)), SecretShares), (
            "the refusal changed no state"
        )


# ── repeated requests ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repeated_request_for_keys_gets_the_same_keys_or_a_refusal(stage: Any) -> None:
    first, again = stage.advertise(), stage.advertise()
    assert first == again
    refused = stage.client("north").answer(AdvertiseKeys(1, model_digest(OTHER)))
    assert "another model was announced to it in this round" in refused.reason
    assert isinstance(stage.client("north").answer(AdvertiseKeys(2, model_digest(OTHER))), AdvertisedKeys), (
        "the next round may have another model"
    )
    assert "does not go back" in stage.client("north").answer(AdvertiseKeys(1, model_digest(MODEL))).reason


def test_secrets_are_shared_with_one_roster(stage: Any) -> None:
    roster = stage.advertise()
    stage.share_secrets(roster)
    fewer = {name: words for name, words in roster.items() if name != "north-2"}
    for shown in (roster, fewer):
        assert "does so once" in stage.client("north").answer(ShareSecrets(1, shown, 2)).reason


@pytest.mark.parametrize("threshold", [0, 1])
def test_a_threshold_of_half_of_the_other_silos_is_refused(stage: Any, threshold: Any) -> None:
    """Two lists of silos that answered, each shown to one half, would reconstruct both secrets of a silo."""
    roster = stage.advertise()
    refused = stage.client("north").answer(ShareSecrets(1, roster, threshold))
    assert "no more than half" in refused.reason


def test_a_second_update_under_the_same_masks_is_refused(stage: Any) -> None:
    """The difference of both would be the difference of two updates: of another model or weight, or of one silo."""
    roster = stage.advertise()
    stage.share_secrets(roster)
    fewer = {name: words for name, words in roster.items() if name != "north-2"}
    request = Train(1, MODEL, masking=MaskingPart(roster))
    with pytest.raises(Refused, match="shared its secrets with"):
        stage.train("north", Train(1, MODEL, masking=MaskingPart(invented(stage, roster))))
    with pytest.raises(Refused, match="shared its secrets with"):
        stage.train("north", Train(1, MODEL))
    stage.train("north", request)
    for again in (request, replace(request, masking=MaskingPart(fewer))):
        with pytest.raises(Refused, match="sends no other under the same masks"):
            stage.train("north", again)
    with pytest.raises(Refused, match="no secrets for round 2"):
        stage.train("north", replace(request, round=2))
    roster = stage.advertise(round=2)
    stage.share_secrets(roster, round=2)
    stage.train("north", Train(2, MODEL, masking=MaskingPart(roster)))


def test_a_model_that_was_not_announced_is_refused(stage: Any) -> None:
    roster = stage.advertise()
    stage.share_secrets(roster)
    with pytest.raises(Refused, match="not the one that was announced to the silos"):
        stage.train("north", Train(1, OTHER, masking=MaskingPart(roster)))
    for other in (
        {"schedule": StepWindow(0, 9)},
        {"schedule": StepWindow(3, 9)},
        {"reference": True},
        {"capacity": 99},
    ):
        with pytest.raises(Refused, match="the same plain round"):
            stage.train("north", Train(1, MODEL, masking=MaskingPart(roster), **other))
    stage.train("north", Train(1, MODEL, masking=MaskingPart(roster)))


def test_shares_are_revealed_for_one_list_of_silos_that_answered(stage: Any) -> None:
    roster = stage.advertise()
    sealed = stage.share_secrets(roster)
    assert "has sent no update" in stage.reveal("north", sealed, SIZES).reason
    for name in SIZES:
        stage.train(name, Train(1, MODEL, masking=MaskingPart(roster)))
    assert "2 silos answered, and this silo requires" in stage.reveal("south", sealed, ["north", "south"]).reason
    unknown = stage.client("east").answer(RevealShares(1, {"west": "00"}, tuple(SIZES)))
    assert "that it was not masked with" in unknown.reason
    assert isinstance(stage.reveal("north", sealed, SIZES), RevealedShares)
    assert isinstance(stage.reveal("north", sealed, SIZES), RevealedShares), "a repeated request gets the same reply"
    assert "both lists together" in stage.reveal("north", sealed, ["north", "south", "east"]).reason


def test_no_server_gets_both_secrets_of_a_silo(stage: Any) -> None:
    """Case 7: the server tells half of the silos that north answered, the other half that it did not."""
    roster = stage.advertise()
    sealed = stage.share_secrets(roster)
    for name in SIZES:
        stage.train(name, Train(1, MODEL, masking=MaskingPart(roster)))
    answered, dropped = list(SIZES), [name for name in SIZES if name != "north"]
    seeds: list[tuple[int, int]] = []
    keys: list[tuple[int, int]] = []
    for name, listed in (("south", answered), ("east", dropped), ("north-2", answered)):
        reply = stage.reveal(name, sealed, listed)
        assert isinstance(reply, RevealedShares)
        x, y = reply.shares["north"]
        (seeds if listed is answered else keys).append((int(x, 16), int(y, 16)))
    for name, listed in (("south", dropped), ("east", answered), ("north-2", dropped)):
        assert isinstance(stage.reveal(name, sealed, listed), Failure)
    stored = json.loads((stage.client("north").home / SECRETS_FILE).read_text())["secrets"]
    assert f"{protocol.reconstruct_secret(seeds):064x}" == stored["own"], "two of three shares reconstruct the seed"
    assert len(keys) == 1, "only one of three shares of the key was revealed"
    assert f"{protocol.reconstruct_secret(keys):064x}" != stored["mask"]


def test_a_damaged_file_of_secrets_ends_the_round(stage: Any) -> None:
    stage.advertise()
    file = stage.client("north").home / SECRETS_FILE
    file.write_text(file.read_text()[:50])
    assert "is damaged" in stage.client("north").answer(AdvertiseKeys(1, model_digest(MODEL))).reason


def test_statements_that_differ_have_different_bytes(stage: Any) -> None:
    signer, announcement = stage.signer("north"), Announcement(Secrets.fresh().keys, 5, "0" * 64)
    statements = [
        signer._statement(1, "north", announcement),
        signer._statement(2, "north", announcement),
        signer._statement(1, "south", announcement),
        signer._statement(1, "north", replace(announcement, samples=6)),
        signer._statement(1, "north", replace(announcement, model="1" * 64)),
        stage.signer("north", run="fedcba9876543210")._statement(1, "north", announcement),
    ]
    assert all(one != other for one, other in pairwise(sorted(statements)))


def test_a_coordinator_refuses_a_threshold_of_half(federation: Build, tmp_path: Path, log: Any) -> None:
    settings = federation(secure_aggregation={"threshold": 0.5}, sizes=SIZES)
    kits = make_kits(settings, tmp_path / "kits")
    with pytest.raises(ConfigError, match=r"secure_aggregation.threshold is 0.5: .* set it above 0.5"):
        serve(settings, Kit(kits / "coordinator"), tmp_path / "run", None, [log])
