"""Secure aggregation in whole rounds: the plain model up to rounding, with any drop-outs, or no model at all."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core.errors import ConfigError, RunFailed
from hansa.core.link import Answer, Link
from hansa.core.messages import AdvertisedKeys, AdvertiseKeys, Failure, RevealShares, ShareSecrets, Train, Update
from hansa.core.participation import Child
from hansa.core.round import Record, Server, Turn, federated_round
from hansa.core.state import ServerState
from hansa.links.local import LocalLink
from hansa.privacy.secure_aggregation.announcement import SECRETS_FILE, Announcement, mask_label
from hansa.privacy.secure_aggregation.client import MaskingClient, RoundProgress
from hansa.privacy.secure_aggregation.limits import capped
from hansa.privacy.secure_aggregation.protocol import Secrets, mask, mask_stream
from hansa.privacy.secure_aggregation.server import MaskingServer
from hansa.runs.run import run
from hansa.runs.topology import round_settings
from tests.conftest import Build, same, weights

SECURE = {"secure_aggregation": True, "participation": {"quorum": 0.1}}


def test_the_model_is_the_plain_one_but_for_rounding(federation: Build, tmp_path: Path) -> None:
    even = {"aggregate": {"weights": {"by": "samples", "temperature": 0.3}}}  # no silo above the largest weight
    plain = run(federation(rounds=2, **even), tmp_path / "plain", workers=0).folder
    masked = run(federation(rounds=2, **even, **SECURE), tmp_path / "masked", workers=0).folder
    pool = run(federation(rounds=2, **even, **SECURE), tmp_path / "pool", workers=2).folder
    assert same(weights(masked / "model"), weights(pool / "model")), "with any keys and any number of workers"
    for name, tensor in weights(plain / "model").items():
        torch.testing.assert_close(weights(masked / "model")[name], tensor, atol=1e-5, rtol=1e-4)


class DropOutLink:
    """A link on which some silos do not answer one kind of request."""

    size, remote, posting = 1, False, None

    def __init__(self, link: Link, silent: set[str], kind: type) -> None:
        self.link, self.silent, self.kind, self.seen = link, silent, kind, list[Any]()

    def ask(self, asks: Mapping[str, Any], until: float | None) -> Iterator[Answer]:
        for answer in self.link.ask(asks, until):
            self.seen.append(answer.reply)
            lost = answer.node in self.silent and isinstance(asks[answer.node], self.kind)
            yield Answer(answer.node, Failure("it has dropped out")) if lost else answer


def one_round(
    settings: Federation, folder: Path, silent: set[str], kind: type, change: Callable[[Link], Link] = lambda link: link
) -> tuple[Record, ServerState, DropOutLink]:
    """The first round of a run, in which the ``silent`` silos do not answer requests of one kind."""
    runtime = Runtime(settings, folder)
    host = SiloHost(runtime)
    link = DropOutLink(change(LocalLink(lambda name: host.silo(name).answer)), silent, kind)
    children = {name: Child(len(host.silo(name).resident.examples("train")), 10) for name in settings.silos}
    state = ServerState(runtime.start.copy(), {})
    server = Server("fed", children, link, runtime.method, round_settings(settings))
    parts = [MaskingServer(settings.secure_aggregation)] if settings.secure_aggregation is not None else []
    return federated_round(server, state, Turn(1), parts), state, link


def test_a_silo_with_most_of_the_data_has_the_largest_weight_that_is_allowed(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=1, sizes={"north": 300, "south": 40, "east": 30}, **SECURE)
    plain = settings.model_copy(update={"secure_aggregation": None})
    folder = run(plain, tmp_path / "r", workers=0).folder
    record, state, _ = one_round(settings, folder, set(), Train)
    assert not record.failed
    runtime = Runtime(plain, folder)
    host, start = SiloHost(runtime), runtime.start.copy()
    samples, gradients = dict[str, float](), dict[str, torch.Tensor]()
    for name in settings.silos:
        update: Any = host.silo(name).answer(Train(1, start))
        samples[name], gradients[name] = update.samples, update.gradient.flat.clone()
    shares = capped(samples, 0.4)
    assert max(shares, key=lambda name: shares[name]) == "north"
    assert shares["north"] == pytest.approx(0.4)
    mean = torch.stack([shares[name] * gradients[name] for name in settings.silos]).sum(0)
    torch.testing.assert_close(start.flat - state.model.flat, mean, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Train, RevealShares])
def test_silos_may_drop_out_in_every_phase(federation: Build, tmp_path: Path, kind: Any) -> None:
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation={"threshold": 0.5}, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    record, state, _ = one_round(settings, folder, {"north-2"}, kind)
    assert not record.failed
    plain = settings.model_copy(update={"secure_aggregation": None})
    gone = {"north-2"} if kind is not RevealShares else set()  # by then its update is in the sum
    _, expected, _ = one_round(plain, folder, gone, Train)
    torch.testing.assert_close(state.model.flat, expected.model.flat, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Train, RevealShares])
def test_one_below_the_threshold_nothing_is_unmasked(federation: Build, tmp_path: Path, kind: Any) -> None:
    settings = federation(rounds=1, **SECURE)
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    record, state, link = one_round(settings, folder, {"east"}, kind)
    assert "the sum cannot be unmasked" in record.failed
    assert torch.equal(state.model.flat, Runtime(settings, folder).start.flat), "the model has not moved"
    updates = [reply for reply in link.seen if isinstance(reply, Update)]
    assert all(update.masked is not None for update in updates), "the server has seen no update without masks"


class LyingLink:
    """A link on which the replies of silo 'north' to one kind of request are changed."""

    size, remote, posting = 1, False, None

    def __init__(self, link: Link, kind: type, change: Callable[[Any], Any]) -> None:
        self.link, self.kind, self.change = link, kind, change

    def ask(self, asks: Mapping[str, Any], until: float | None) -> Iterator[Answer]:
        for answer in self.link.ask(asks, until):
            lies = answer.node == "north" and isinstance(asks[answer.node], self.kind)
            yield Answer(answer.node, self.change(answer.reply)) if lies else answer


LIES: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "an announcement has malformed keys": (AdvertiseKeys, lambda reply: replace(reply, seal="zz")),
    "an announcement has -5 samples": (AdvertiseKeys, lambda reply: replace(reply, samples=-5)),
    "it announced another model": (AdvertiseKeys, lambda reply: replace(reply, model="0" * 64)),
    "its shares are not for the silos on the roster": (ShareSecrets, lambda reply: replace(reply, sealed={})),
    "its update is not masked": (Train, lambda reply: replace(reply, masked=None)),
    "it sent a AdvertisedKeys instead of SecretShares": (ShareSecrets, lambda reply: AdvertisedKeys("", "", 1)),
    "it is not there": (ShareSecrets, lambda reply: Failure("it is not there")),
}


@pytest.mark.parametrize("reason", LIES)
def test_one_silo_that_lies_is_left_out_and_the_sum_is_right(federation: Build, tmp_path: Path, reason: Any) -> None:
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation=True, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder
    kind, change = LIES[reason]
    record, state, _ = one_round(settings, folder, set(), Train, lambda link: LyingLink(link, kind, change))
    assert not record.failed
    assert reason in record.failures["north"]
    plain = settings.model_copy(update={"secure_aggregation": None})
    _, expected, _ = one_round(plain, folder, {"north"}, Train)
    torch.testing.assert_close(state.model.flat, expected.model.flat, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "shares", [{"south": ("zz", "1")}, {"south": ("1",)}, {"south": ("0", "1"), "x": ("1", "1")}, {}]
)
def test_invalid_shares_reveal_nothing_and_do_no_harm(federation: Build, tmp_path: Path, shares: Any) -> None:
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation=True, participation={"quorum": 0.1})
    folder = run(settings.model_copy(update={"secure_aggregation": None}), tmp_path / "r", workers=0).folder

    def lying(link: Link) -> Link:
        return LyingLink(link, RevealShares, lambda reply: replace(reply, shares=shares))

    record, state, _ = one_round(settings, folder, set(), Train, lying)
    assert not record.failed
    _, expected, _ = one_round(settings.model_copy(update={"secure_aggregation": None}), folder, set(), Train)
    torch.testing.assert_close(state.model.flat, expected.model.flat, atol=1e-6, rtol=0)


def test_masks_do_not_cancel_among_silos_with_different_rosters(tmp_path: Path) -> None:
    """A server that shows silos different rosters learns nothing: their masks are derived from the roster."""
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

    def total(*shown: str) -> Any:
        words = [mask(n, mine[n], roster, values, label) for n, label in zip("ab", shown, strict=True)]
        own = [mask_stream(bytes.fromhex(secret.own), 2) for secret in mine.values()]
        return sum(words[1:], words[0]) - own[0] - own[1]

    assert total("one", "one").tolist() == [10, 14], "with the same roster they cancel"
    assert total("one", "two").tolist() != [10, 14]


def test_values_beyond_the_bound_are_clipped_and_nothing_overflows(federation: Build, tmp_path: Path) -> None:
    settings = federation(rounds=1, secure_aggregation={"bound": 1e-6}, participation={"quorum": 0.1})
    folder = run(settings, tmp_path / "r", workers=0).folder
    start = Runtime(settings, folder).start
    moved = max(float((weights(folder / "model")[n] - start[n]).abs().max()) for n in start.layout.names)
    assert 0 < moved <= 1.1e-6


def test_a_round_that_must_stay_masked_ends_the_run_with_the_reason(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MaskingClient, "_reveal", lambda *_: Failure("it has dropped out"))
    with pytest.raises(RunFailed, match="the sum cannot be unmasked, because 0 silos revealed their share"):
        run(federation(rounds=1, **SECURE), tmp_path / "r", workers=0)


def test_a_silo_reveals_shares_for_one_list_only(tmp_path: Path) -> None:
    clients = {name: MaskingClient(name, "fed", tmp_path / name, 10) for name in "abcd"}

    def ask(name: str, request: AdvertiseKeys | ShareSecrets | RevealShares) -> Any:
        return clients[name].answer(request)

    replies = {name: ask(name, AdvertiseKeys(1, "0" * 64)) for name in clients}
    roster = {name: Announcement.from_reply(reply).words for name, reply in replies.items()}
    sealed = {name: ask(name, ShareSecrets(1, roster, 2)).sealed for name in clients}
    inbox = {sender: sealed[sender]["a"] for sender in "bcd"}
    assert "has sent no update" in ask("a", RevealShares(1, inbox, tuple("abcd"))).reason
    file = tmp_path / "a" / SECRETS_FILE
    progress = RoundProgress.load(file)
    assert progress is not None
    replace(progress, masked_with=roster).save(file)
    assert set(ask("a", RevealShares(1, inbox, tuple("abc"))).shares) == set("bcd")
    assert set(ask("a", RevealShares(1, inbox, tuple("abc"))).shares) == set("bcd"), "asked again, the same"
    assert "both lists" in ask("a", RevealShares(1, inbox, tuple("abd"))).reason
    assert "no secrets for round 2" in ask("a", ShareSecrets(2, roster, 2)).reason
    assert file.stat().st_mode & 0o077 == 0, "other users may not read it"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"round": 1}', '{"round": 1, "secrets": {"seal": "a"}}'])
def test_a_silo_refuses_to_go_on_with_a_damaged_file(tmp_path: Path, damage: Any) -> None:
    client = MaskingClient("a", "fed", tmp_path, 10)
    client.answer(AdvertiseKeys(1, "0" * 64))
    saved = json.loads((tmp_path / SECRETS_FILE).read_text())
    assert set(saved["secrets"]) == {"seal", "mask", "own"}
    (tmp_path / SECRETS_FILE).write_text(damage)
    reply = client.answer(ShareSecrets(1, {}, 2))
    assert isinstance(reply, Failure)
    assert "is damaged" in reply.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"aggregate": "median"}, "must see each by itself"),
        ({"method": "dga"}, "known before training"),
        ({"method": "qffl"}, "must see each by itself"),
        ({"upload": {"steps": ["int8"]}}, "leave 'upload' out"),
        ({"participation": {"count": 2}}, "a cohort of at least 3"),
    ],
)
def test_incompatible_settings_are_refused(federation: Build, tmp_path: Path, change: Any, says: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        run(federation(rounds=1, **({"secure_aggregation": True} | change)), tmp_path / "r", workers=0)


def test_an_update_that_is_not_finite_is_not_hidden_under_a_mask(federation: Build, tmp_path: Path) -> None:
    """The sum would not be finite, and the server could not see which silo caused it."""
    poison = {"poison": {"east": {"kind": "scale", "factor": 1e39}}}
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30}
    settings = federation(rounds=1, sizes=sizes, secure_aggregation={"threshold": 0.5}, simulate=poison)
    folder = run(federation(rounds=1, sizes=sizes), tmp_path / "r", workers=0).folder
    record, state, _ = one_round(settings, folder, set(), Train)
    assert "not finite" in record.failures["east"]
    assert not record.failed
    assert state.model.flat.isfinite().all()
