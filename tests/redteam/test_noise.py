"""Attacks of a coordinator on the noise of updates: each succeeds without its defence, and fails with it."""

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.shared import for_members
from hansa.core.errors import RunFailed
from hansa.core.grid import Grid
from hansa.core.messages import CollectVocabulary, Failure, Reply, Request, Train, Update, VocabularyCounts
from hansa.core.noise import SeededSource
from hansa.deploy import request_worker
from hansa.deploy.agent import Agent
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.deploy.reply_store import ReplyStore
from hansa.deploy.server_session import server_session
from hansa.privacy.dp.budget import BUDGET_FILE, charges
from hansa.privacy.dp.charging import RunCharging
from hansa.privacy.policy.audit_log import entries
from hansa.runs.inference import open_run
from hansa.runs.run import run
from tests.conftest import Build
from tests.deploy.conftest import make_kits
from tests.deploy.test_agent import alive

SEED, CLIP, NOISE = 5, 0.5, 1.0
WAIT_SECONDS = 120.0
Answer = Callable[[Request], Reply]


def private(federation: Build, **privacy: Any) -> Federation:
    settings = federation(sizes={"north": 40, "south": 20}, model="mini", rounds=1, seed=SEED)
    raw = settings.model_dump(mode="json", exclude_defaults=True)
    raw["silos"]["north"]["privacy"] = {"noise_multiplier": NOISE, "clip": CLIP, "delta": 1e-5} | privacy
    return parse(raw)


def silo(settings: Federation, folder: Path) -> tuple[Answer, Train]:
    """How silo 'north' answers, and a request for an update from the common start."""
    runtime = open_run(run(settings, folder, workers=0).folder)
    runtime.federation = settings
    return SiloHost(runtime).silo("north").answer, Train(round=1, model=runtime.start)


def released(answer: Answer, request: Train) -> torch.Tensor:
    reply = answer(request)
    assert isinstance(reply, Update)
    return reply.gradient.flat.clone()


def true_update(federation: Build, folder: Path) -> torch.Tensor:
    """What 'north' would send without noise, clipped: what the attacker is after."""
    update = released(*silo(private(federation, noise_multiplier=1e-9, seeded=True), folder))
    assert 0.01 < float(update.norm()) <= CLIP * 1.0001
    return update


@pytest.mark.parametrize("seeded", [True, False])
def test_noise_from_the_seed_is_subtracted_and_secret_noise_is_not(
    federation: Build, tmp_path: Path, seeded: bool
) -> None:
    truth = true_update(federation, tmp_path / "truth")
    update = released(*silo(private(federation, seeded=seeded), tmp_path / "run"))
    grid = Grid(CLIP, update.numel(), NOISE)
    guess, drawn = torch.empty_like(update), grid.rounded(torch.zeros_like(update))
    grid.add_noise(drawn, SeededSource(SEED, 1, "north", "noise"))  # as the source code says
    grid.write(drawn, guess)
    error = float((update - guess - truth).norm() / truth.norm())
    if seeded:
        assert error < 1e-3, "the attack works on a simulation"
    else:
        assert error > 0.5 * NOISE * math.sqrt(update.numel())


@pytest.fixture
def organisation(federation: Build, tmp_path: Path) -> Callable[..., Any]:
    """A coordinator and the agent of 'north' over real sockets; returns the replies to a request."""

    def build(settings: Federation, request: Request) -> list[Reply]:
        kits = make_kits(settings, tmp_path / "kits")
        kit, home = Kit(kits / "north"), tmp_path / "north"
        service = SiloService(kit, settings.silos["north"].sources, (), PolicyEnforcer.load(kit, None, home))
        with (
            server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link,
            alive(Agent(kit, home, service, lambda text: None)),
        ):
            link.share_settings(for_members(settings))
            return [answer.reply for answer in link.ask({"north": request}, monotonic() + WAIT_SECONDS)]

    return build


@pytest.mark.parametrize("seeded", [True, False])
def test_a_deployed_silo_refuses_noise_from_the_seed(
    federation: Build, organisation: Callable[..., Any], tmp_path: Path, seeded: bool
) -> None:
    settings = private(federation, seeded=seeded)
    [reply] = organisation(settings, CollectVocabulary(5))
    refused = [e["reason"] for e in entries(tmp_path / "north" / "audit.jsonl") if e["event"] == "refusal"]
    if seeded:
        assert isinstance(reply, Failure)
        assert "comes from the seed" in reply.reason
        assert any("comes from the seed" in reason for reason in refused)
    else:
        assert isinstance(reply, VocabularyCounts)
        assert not refused


@pytest.mark.parametrize("defended", [False, True])
def test_asking_for_the_same_round_again_averages_the_noise_away_unless_the_run_is_held_to_its_price(
    federation: Build, tmp_path: Path, defended: bool
) -> None:
    """Every computation draws new noise. Without a budget, the mean of many versions is the update itself."""
    truth = true_update(federation, tmp_path / "truth")
    settings = private(federation, noise_multiplier=0.5)
    answer, request = silo(settings, tmp_path / "run")
    charging = RunCharging(settings, "north", tmp_path / "home", holds_promise=defended)

    def guarded(asked: Request) -> Reply:
        why = charging.refusal(None, "a-run", asked)
        return Failure(why) if why else answer(asked)

    versions = []
    for _ in range(12):
        reply = guarded(request)
        if isinstance(reply, Failure):
            assert "would bring the privacy spent" in reply.reason
            break
        assert isinstance(reply, Update)
        versions.append(reply.gradient.flat.clone())
    one = float((versions[0] - truth).norm())
    mean = float((torch.stack(versions).mean(dim=0) - truth).norm())
    if defended:
        assert len(versions) == settings.rounds, "as many releases as there are rounds"
        assert len(charges(tmp_path / "home" / "runs" / "a-run" / BUDGET_FILE)) == settings.rounds
        again = RunCharging(settings, "north", tmp_path / "home", holds_promise=True)
        assert again.refusal(None, "a-run", request), "also after a restart"
        assert not again.refusal(None, "another-run", request), "which needs an approval of its own"
        assert again.refusal((1.0, 1e-5), "another-run", request), "and fits into the silo's budget, if it has one"
    else:
        assert len(versions) == 12
        assert mean == pytest.approx(one / math.sqrt(12), rel=0.1), "the noise shrinks with every version"


def test_a_crash_before_the_reply_is_stored_releases_one_version(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first computation ends before its reply is stored: none of it leaves. Asked again, the reply is the same."""
    settings = private(federation)
    answer, request = silo(settings, tmp_path / "run")
    computed: list[torch.Tensor] = []

    class Service:
        anchors = None

        def open_run(self, folder: Path, settings: bytes) -> Answer:
            def compute(asked: Request) -> Reply:
                reply = answer(asked)
                assert isinstance(reply, Update)
                computed.append(reply.gradient.flat.clone())
                return reply

            return compute

        def log_refusal(self, message: str, round: int, reason: str) -> None:
            raise AssertionError(reason)

    kept = ReplyStore.keep

    def crash(*arguments: Any, **named: Any) -> Any:
        if len(computed) < 2:
            raise RunFailed("the process ended here")
        return kept(*arguments, **named)

    monkeypatch.setattr(ReplyStore, "keep", crash)
    monkeypatch.setattr(request_worker, "RETRY_SECONDS", 0.05)
    kits = make_kits(settings, tmp_path / "kits")
    kit, home = Kit(kits / "north"), tmp_path / "north"
    received: list[torch.Tensor] = []
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lambda text: None) as link:
        link.share_settings(for_members(settings))
        for _ in range(2):  # a restarted agent in between
            with alive(Agent(kit, home, Service(), lambda text: None)):
                [reply] = link.ask({"north": request}, monotonic() + WAIT_SECONDS)
                assert isinstance(reply.reply, Update)
                received.append(reply.reply.gradient.flat.clone())
    assert len(computed) == 2
    assert not torch.equal(computed[0], computed[1]), "noise is never drawn twice the same"
    assert torch.equal(received[0], computed[1])
    assert torch.equal(received[1], computed[1]), "one version left, however often it was asked for"
