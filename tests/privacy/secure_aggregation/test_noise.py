"""Distributed noise in whole rounds: the model moves by the plain mean and the stated noise, with drop-outs too."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core.errors import ConfigError
from hansa.core.messages import AdvertiseKeys, Failure, MaskingPart, ShareSecrets, Train, Update
from hansa.core.participation import Child
from hansa.core.round import Record, Server, Turn, federated_round
from hansa.core.state import ServerState
from hansa.links.local import LocalLink
from hansa.privacy.dp.accounting import price
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.rules import Purpose
from hansa.privacy.secure_aggregation.announcement import Announcement, model_digest
from hansa.privacy.secure_aggregation.server import MaskingServer
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from hansa.runs.topology import round_settings
from tests.conftest import Build, same, weights
from tests.privacy.secure_aggregation.test_rounds import DropOutLink

SIZES = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
UNIFORM = {"aggregate": {"weights": "uniform"}, "participation": {"quorum": 0.1}}


def noisy(federation: Build, threshold: float = 0.5, **noise: Any) -> Federation:
    secure = {"threshold": threshold, "noise": {"clip": 0.5, "seeded": True} | noise}
    return federation(rounds=1, sizes=SIZES, secure_aggregation=secure, **UNIFORM)


def one_round(settings: Federation, folder: Path, silent: set[str], kind: type) -> tuple[Record, ServerState, Any]:
    """The first round of a run, in which the ``silent`` silos do not answer requests of one kind."""
    runtime = Runtime(settings, folder)
    host = SiloHost(runtime)
    link = DropOutLink(LocalLink(lambda name: host.silo(name).answer), silent, kind)
    state = ServerState(runtime.start.copy(), {})
    children = {name: Child(10, 10) for name in settings.silos}
    server = Server("fed", children, link, runtime.method, round_settings(settings))
    masking = settings.secure_aggregation
    parts = [MaskingServer(masking, runtime.distributed)] if masking is not None else []
    return federated_round(server, state, Turn(1), parts), state, link


@pytest.fixture
def begun(federation: Build, tmp_path: Path) -> Path:
    """A run directory with a model to start from."""
    return run(federation(rounds=0, sizes=SIZES), tmp_path / "begun", workers=0).folder


@pytest.mark.parametrize("silent", [set(), {"north-2"}, {"north-2", "south-2"}])
def test_the_model_moves_by_the_mean_and_the_stated_noise(federation: Build, begun: Path, silent: Any) -> None:
    settings = noisy(federation, multiplier=0.7)
    record, state, link = one_round(settings, begun, silent, Train)
    assert not record.failed
    plain = settings.model_copy(update={"secure_aggregation": None})
    _, expected, _ = one_round(plain, begun, silent, Train)
    answered = 5 - len(silent)
    noise = (state.model.flat - expected.model.flat) * answered
    stated = 0.7 * 0.5  # the multiplier times the clipping norm, for the sum of the three that must answer
    assert float(noise.std()) == pytest.approx(stated * sqrt(answered / 3), rel=0.05)
    assert float(noise.std()) > 0.95 * stated
    parts = [reply.masked for reply in link.seen if isinstance(reply, Update)]
    assert all(part is not None and part.clipped == 0 for part in parts), "the noise does not cover it"


def test_one_below_the_threshold_nothing_is_unmasked(federation: Build, begun: Path) -> None:
    settings = noisy(federation)
    record, state, _ = one_round(settings, begun, {"north-2", "south-2", "east"}, Train)
    assert "the sum cannot be unmasked" in record.failed
    assert torch.equal(state.model.flat, Runtime(settings, begun).start.flat)


def test_with_next_to_no_noise_the_model_is_the_plain_one(federation: Build, begun: Path) -> None:
    settings = noisy(federation, multiplier=1e-4, clip=50.0)
    _, state, _ = one_round(settings, begun, set(), Train)
    _, expected, _ = one_round(settings.model_copy(update={"secure_aggregation": None}), begun, set(), Train)
    torch.testing.assert_close(state.model.flat, expected.model.flat, atol=6 * 1e-4 * 50 * sqrt(5 / 3) / 5, rtol=0)


def test_a_run_repeats_with_seeded_noise_only_and_states_its_price(federation: Build, tmp_path: Path) -> None:
    settings = noisy(federation, multiplier=3.0)
    folders = [run(settings, tmp_path / name, workers=w).folder for name, w in (("a", 0), ("b", 2))]
    assert same(*(weights(folder / "model") for folder in folders))
    secret = noisy(federation, multiplier=3.0, seeded=False)
    other = run(secret, tmp_path / "c", workers=0).folder
    assert not same(weights(other / "model"), weights(folders[0] / "model"))
    noted = Ledger(other).facts()["privacy"]
    mechanism = Runtime(secret, other).distributed
    assert mechanism is not None
    assert {one["epsilon"] for one in noted.values()} == {price(mechanism, 1).epsilon}
    assert set(noted) == set(SIZES)


class _Signer:
    """Signs as an organisation would; what it signs is not looked at here."""

    def sign(self, round: int, announcement: Any) -> str:
        return ""

    def check(self, round: int, roster: Any) -> None:
        return None


def test_between_organisations_seeded_noise_is_refused(federation: Build, begun: Path) -> None:
    for number, seeded, says in ((1, True, "drawn from the seed"), (2, False, "")):
        runtime = Runtime(noisy(federation, threshold=0.6, seeded=seeded), begun, signer=_Signer())
        silos = {name: SiloHost(runtime).silo(name) for name in ("north", "south", "east", "north-2")}
        model = runtime.start
        digest = model_digest(model)
        keys: dict[str, Any] = {n: silo.answer(AdvertiseKeys(number, digest)) for n, silo in silos.items()}
        roster = {name: Announcement.from_reply(reply).words for name, reply in keys.items()}
        for silo in silos.values():
            silo.answer(ShareSecrets(number, roster, 2))
        reply = silos["north"].answer(Train(number, model, masking=MaskingPart(roster)))
        assert isinstance(reply, Failure) == bool(says)
        assert says in getattr(reply, "reason", "")


def test_policies_and_disclosures_count_it(federation: Build) -> None:
    settings = noisy(federation, multiplier=4.0, seeded=False)
    purpose = Purpose.of(settings, "east")
    assert purpose.epsilon == pytest.approx(1.1, abs=0.2)
    said = " ".join(disclosures(settings))
    assert "the fewest silos that can be unmasked (3 of 5)" in said
    assert "the noise in the sum shrinks by √((3 − c)/3)" in said
    assert "wraps around" in said
    assert "seed" not in said
    assert "seed" in " ".join(disclosures(noisy(federation)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"aggregate": None}, "set aggregate: {weights: uniform}"),
        ({"method": "fedkc", "task": "classify"}, "not what method 'fedkc' has silos share"),
        ({"personal": {"nearby": 1}}, "personal.nearby"),
    ],
)
def test_what_the_noise_does_not_cover_is_refused(federation: Build, tmp_path: Path, change: Any, says: Any) -> None:
    with pytest.raises(ConfigError, match=says):
        run(federation(rounds=1, **({"secure_aggregation": {"noise": True}} | UNIFORM | change)), tmp_path, workers=0)


def test_local_noise_and_noise_in_shares_are_not_added_both(federation: Build, tmp_path: Path) -> None:
    settings = noisy(federation)
    node = settings.silos["east"]
    private = node.model_validate(node.model_dump(exclude_unset=True) | {"privacy": {}})
    with pytest.raises(ConfigError, match="both add noise to the same update"):
        run(settings.model_copy(update={"silos": settings.silos | {"east": private}}), tmp_path / "r", workers=0)
