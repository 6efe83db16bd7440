"""Secure aggregation that configuration empties: a coordinator with its own kit wants the update of one silo.

Every silo answers as between organisations: with its kit's key, a folder of its own and the settings that the
coordinator sends. Each attack succeeds with its limit switched off, and fails with it on. Success: the coordinator
knows the update of silo 'east' up to a tenth of its length.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client import masking
from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config import compatibility
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.config.nodes import Node
from hansa.config.sections import SecureAggregation
from hansa.config.shared import for_members
from hansa.config.tree import holders
from hansa.core.errors import ConfigError, RunFailed
from hansa.core.messages import Failure, RevealShares, ShareSecrets, Train, Update
from hansa.core.participation import Child
from hansa.core.round import Server, Turn, federated_round
from hansa.core.state import ServerState
from hansa.core.tensors import Tensors
from hansa.deploy import join
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService, own_settings
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_protocol import InvalidRequest
from hansa.deploy.signatures import KitSigner
from hansa.links.local import LocalLink
from hansa.privacy.secure_aggregation.limits import MaskingLimits
from hansa.privacy.secure_aggregation.memory import CohortMemory
from hansa.privacy.secure_aggregation.server import MaskingServer
from hansa.runs.run import run
from hansa.runs.topology import round_settings
from tests.conftest import Build
from tests.deploy.conftest import Log, joined, make_kits

EAST = "east"
SIZES = {EAST: 60, "north": 40, "south": 40, "north-2": 40}
NO_LIMITS = MaskingLimits(min_cohort=1, threshold=0.0, max_share=1.0, max_share_answered=1.0, min_rest=0.0)
UNIFORM = {"weights": "uniform"}


@dataclass
class Silos:
    """The silos of a federation, each with its kit and its home; ``limits``: of their administrators' policies."""

    folder: Path
    kits: Path
    start: Path
    limits: MaskingLimits | None = None
    refusals: dict[str, str] = field(default_factory=dict)

    def host(self, name: str, settings: Federation, run: str) -> SiloHost:
        """A silo as after a restart of its process, in a run whose settings the coordinator chose."""
        home = self.folder / name / "runs" / run
        if not home.exists():
            shutil.copytree(self.start, home / "start")
        signer = KitSigner(Kit(self.kits / name), home, settings.model_dump_json().encode())
        return SiloHost(Runtime(settings, home, signer, limits=self.limits))

    def round(
        self,
        settings: Federation,
        run: str,
        cohort: list[str] | None = None,
        change: Callable[[str, Any], Any] = lambda _, request: request,
    ) -> Tensors | None:
        """One round of a coordinator: the mean that it learns, None if nothing.

        ``change``: the coordinator's requests, as it really sends them; None: the silo is not asked and dropped out.
        """
        names = cohort or list(settings.silos)
        hosts = {name: self.host(name, settings, run) for name in names}

        def answer(name: str) -> Callable[[Any], Any]:
            def ask(request: Any) -> Any:
                sent = change(name, request)
                return Failure("it is not asked") if sent is None else hosts[name].silo(name).answer(sent)

            return ask

        runtime = Runtime(settings, self.folder / names[0] / "runs" / run)
        children = {name: Child(10, 10) for name in names}
        state = ServerState(runtime.start.copy(), {})
        server = Server("fed", children, LocalLink(answer), runtime.method, round_settings(settings))
        assert settings.secure_aggregation is not None
        record = federated_round(server, state, Turn(1), [MaskingServer(settings.secure_aggregation)])
        self.refusals = record.failures
        return None if record.failed else Tensors(state.model.layout, runtime.start.flat - state.model.flat)

    def truth(self, settings: Federation, name: str = EAST) -> Tensors:
        """The update that the coordinator wants."""
        plain = settings.model_copy(update={"secure_aggregation": None, "simulate": settings.simulate})
        runtime = Runtime(plain, self.start.parent)
        reply: Any = SiloHost(runtime).silo(name).answer(Train(1, runtime.start.copy()))
        return reply.gradient  # type: ignore[no-any-return]


def known(found: Tensors | None, truth: Tensors) -> bool:
    """Whether the coordinator knows the update."""
    return found is not None and bool((found.flat - truth.flat).norm() < 0.1 * truth.flat.norm())


@pytest.fixture
def silos(federation: Build, tmp_path: Path) -> Callable[..., Silos]:
    """Makes the silos of a federation with kits and a common start."""

    def build(settings: Federation, limits: MaskingLimits | None = None) -> Silos:
        plain = settings.model_copy(update={"secure_aggregation": None, "rounds": 0})
        folder = run(plain, tmp_path / "start", workers=0).folder
        return Silos(tmp_path / "homes", make_kits(settings, tmp_path / "kits"), folder / "start", limits)

    return build


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switches the limits of all silos off."""

    def switch() -> None:
        monkeypatch.setattr(MaskingLimits, "of", staticmethod(lambda settings: NO_LIMITS))

    return switch


def federated(federation: Build, **settings: Any) -> Federation:
    usual = {"sizes": SIZES, "rounds": 1, "participation": {"quorum": 0.1}, "secure_aggregation": {"bound": 4.0}}
    return federation(**(usual | settings))


def test_an_honest_round_gives_the_mean_and_no_single_update(federation: Build, silos: Callable[..., Silos]) -> None:
    """The control of the harness."""
    settings = federated(federation, aggregate=UNIFORM)
    members = silos(settings)
    found = members.round(settings, "run-1")
    assert found is not None
    mean = torch.stack([members.truth(settings, name).flat for name in SIZES]).mean(0)
    torch.testing.assert_close(found.flat, mean, atol=1e-6, rtol=0)
    assert not known(found, members.truth(settings))


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def uncapped(settings: Federation) -> Federation:
    """Settings that give a silo all the weight, as a coordinator would have to write them."""
    masks = SecureAggregation.model_construct(threshold=0.6, bound=4.0, max_share=1.0, min_cohort=3)
    return settings.model_copy(update={"secure_aggregation": masks})


def test_a_temperature_that_gives_one_silo_all_the_weight(
    federation: Build, silos: Callable[..., Silos], unlimited: Callable[[], None]
) -> None:
    settings = federated(federation, aggregate={"weights": {"by": "samples", "temperature": 60}})
    members = silos(settings)
    truth = members.truth(settings)
    assert not known(members.round(settings, "capped"), truth), "three silos or more make up the sum"
    assert members.round(uncapped(settings), "sent") is None
    assert all("one silo would have 100% of the weight" in reason for reason in members.refusals.values())
    with pytest.raises(InvalidRequest, match="cannot be used"):
        own_settings(for_members(uncapped(settings)), EAST, (), ())
    unlimited()
    assert known(members.round(uncapped(settings), "attacked"), truth)


def test_weights_that_are_no_numbers_are_refused(federation: Build, silos: Callable[..., Silos]) -> None:
    settings = federated(federation, aggregate={"weights": {"by": "samples", "temperature": 1e6}})
    members = silos(settings)
    assert members.round(settings, "huge") is None
    assert all("no finite positive numbers" in reason for reason in members.refusals.values())


# ── threshold and cohort ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_threshold_below_the_approved_one(
    federation: Build, silos: Callable[..., Silos], unlimited: Callable[[], None]
) -> None:
    """The file says 0.9 of six others; the coordinator asks for four, and drops two silos of its choice."""
    names = {EAST: 40, **{f"{word}-{i}": 40 for i in (1, 2) for word in ("north", "south", "east")}}
    settings = federated(
        federation, sizes=names, aggregate=UNIFORM, secure_aggregation={"threshold": 0.9, "bound": 4.0}
    )
    members = silos(settings)

    def lower(name: str, request: Any) -> Any:
        return replace(request, threshold=4) if isinstance(request, ShareSecrets) else request

    assert members.round(settings, "lowered", change=lower) is None
    assert all("the threshold is 4 of 6 other silos" in reason for reason in members.refusals.values())
    unlimited()
    members.round(settings, "attacked", change=lower)
    assert not any("the threshold is" in reason for reason in members.refusals.values()), "the silos shared secrets"


def test_shares_for_fewer_silos_than_the_policy_requires(federation: Build, silos: Callable[..., Silos]) -> None:
    """Five silos send their updates, and the policy requires five; the coordinator claims that four answered."""
    names = {EAST: 40, **{f"{word}-{i}": 40 for i in (1, 2) for word in ("north", "south")}}
    settings = federated(federation, sizes=names, aggregate=UNIFORM)
    members = silos(settings, MaskingLimits(min_cohort=5))

    def dropping(name: str, request: Any) -> Any:
        return None if name == "south-2" and isinstance(request, Train) else request

    reasons: list[str] = []

    def watched(name: str, request: Any) -> Any:
        if isinstance(request, RevealShares):
            reply = members.host(name, settings, "dropped").silo(name).answer(request)
            reasons.append(reply.reason if isinstance(reply, Failure) else "")
        return dropping(name, request)

    assert members.round(settings, "dropped", change=watched) is None
    assert len(reasons) == 4
    assert all("4 silos answered, and this silo requires at least 5" in reason for reason in reasons)
    assert members.round(settings, "whole") is not None, "all five may be summed"
    off = replace(members, limits=None, folder=members.folder / "off")
    assert off.round(settings, "attacked", change=dropping) is not None


# ── differencing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def difference(one: Tensors | None, other: Tensors | None, n: int) -> Tensors | None:
    """The update that a mean of n silos has, and one of the n − 1 others lacks."""
    if one is None or other is None:
        return None
    return Tensors(one.layout, n * one.flat - (n - 1) * other.flat)


OTHERS = [name for name in SIZES if name != EAST]


def less_one(name: str, request: Any) -> Any:
    """The coordinator claims that east has dropped out, after it was on the roster."""
    return None if name == EAST and isinstance(request, Train) else request


@pytest.mark.parametrize("order", ["larger first", "smaller first", "dropped out"])
def test_two_runs_with_n_and_with_n_minus_one_silos(
    federation: Build, silos: Callable[..., Silos], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    settings = federated(federation, aggregate=UNIFORM)
    members, all_of_them = silos(settings), list(SIZES)
    truth = members.truth(settings)

    def both(tag: str) -> tuple[Tensors | None, Tensors | None]:
        if order == "smaller first":
            smaller = members.round(settings, f"{tag}-1", OTHERS)
            return members.round(settings, f"{tag}-2", all_of_them), smaller
        larger = members.round(settings, f"{tag}-1", all_of_them)
        if order == "dropped out":
            return larger, members.round(settings, f"{tag}-2", all_of_them, less_one)
        return larger, members.round(settings, f"{tag}-2", OTHERS)

    larger, smaller = both("guarded")
    assert (larger is None) != (smaller is None), "the first is answered, the second is not"
    if order != "dropped out":
        assert {name for name, why in members.refusals.items() if "with another cohort before" in why} == set(OTHERS)
    assert members.round(settings, "again", OTHERS if order == "smaller first" else all_of_them) is not None
    monkeypatch.setattr(CohortMemory, "check", lambda *_: None)
    assert known(difference(*both("attacked"), len(SIZES)), truth)


def test_runs_with_the_same_silos_and_other_weights(
    federation: Build, silos: Callable[..., Silos], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many sums with different weights as silos are equations that give every update."""
    masks = {"bound": 4.0, "max_share": 0.4}

    def settings(temperature: float) -> Federation:
        weights = {"weights": {"by": "samples", "temperature": temperature}}
        return federated(federation, sizes={EAST: 60, "north": 40, "south": 50}, aggregate=weights,
                         secure_aggregation=masks)  # fmt: skip

    members = silos(settings(0.0))
    truth = members.truth(settings(0.0))

    def attack(tag: str) -> Tensors | None:
        rows, sums = [], []
        for temperature in (0.0, 0.3, 0.6):
            chosen = settings(temperature)
            found = members.round(chosen, f"{tag}-{temperature}")
            if found is None:
                return None
            samples = [len(members.host(n, chosen, "x").silo(n).resident.examples("train")) for n in chosen.silos]
            weights = torch.tensor(samples, dtype=torch.float64) ** temperature
            rows.append(weights / weights.sum())
            sums.append(found.flat.double())
        solved = torch.linalg.solve(torch.stack(rows), torch.stack(sums))
        return Tensors(truth.layout, solved[list(settings(0.0).silos).index(EAST)].float())

    assert attack("guarded") is None
    assert all("with another cohort before" in reason for reason in members.refusals.values())
    monkeypatch.setattr(CohortMemory, "check", lambda *_: None)
    assert known(attack("attacked"), truth)


def test_two_runs_over_the_network(federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real agents, two runs of one coordinator: all four silos, then three of them from the same start."""
    log, settings = Log(), federated(federation, aggregate=UNIFORM, evaluate={"every": 9, "share": 1.0})
    three = settings.model_copy(update={"participation": settings.participation.model_copy(update={"count": 3})})
    kits = make_kits(settings, tmp_path / "kits")
    with joined(settings, kits, tmp_path / "silos", log.say):
        serve(settings, Kit(kits / COORDINATOR), tmp_path / "four", None, [log])
        with pytest.raises(RunFailed, match="summed from this model on the same data with another cohort before"):
            serve(three, Kit(kits / COORDINATOR), tmp_path / "three", None, [log])
        monkeypatch.setattr(CohortMemory, "check", lambda *_: None)
        serve(three, Kit(kits / COORDINATOR), tmp_path / "attacked", None, [log])


# ── rehearsals and trees ──────────────────────────────────────────────────────────────────────────────────────────────


def test_others_are_scaled_to_nothing(
    federation: Build, silos: Callable[..., Silos], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = {name: {"kind": "scale", "factor": 1e-6} for name in OTHERS}
    settings = federated(federation, aggregate=UNIFORM, simulate={"poison": poison})
    members = silos(settings)
    truth = members.truth(settings)
    assert members.round(settings, "guarded") is None
    assert all("'simulate.poison'" in reason for reason in members.refusals.values())
    monkeypatch.setattr(masking, "POISON", "")
    found = members.round(settings, "attacked")
    assert found is not None
    assert known(Tensors(found.layout, len(SIZES) * found.flat), truth)


def test_a_silo_that_the_settings_call_a_region(
    federation: Build, silos: Callable[..., Silos], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a region trains on data of its own stays in its process, without masks; a silo must not be taken for one."""
    honest = federated(federation, aggregate=UNIFORM)
    members = silos(honest)
    below = {f"{name}-below": node for name, node in honest.silos.items()}
    region = honest.silos[EAST].model_copy(update={"silos": below})
    settings = honest.model_copy(update={"silos": honest.silos | {EAST: region}})
    home = members.folder / EAST / "runs" / "region"
    shutil.copytree(members.start, home / "start")
    service = SiloService(Kit(members.kits / EAST), honest.silos[EAST].sources, ())

    def ask() -> Any:
        answer = service.open_run(home, for_members(settings))
        return answer(Train(1, Runtime(honest, home).start.copy()))

    with pytest.raises(InvalidRequest, match="the settings have nodes below this silo"):
        ask()
    monkeypatch.setattr(join, "check_leaf", lambda *_: None)
    reply = ask()
    assert isinstance(reply, Update)
    assert reply.masked is None
    assert known(reply.gradient, members.truth(honest))


SINGLED_OUT: dict[str, dict[str, Any]] = {
    "privacy": {"privacy": {"clip": 1e-9, "noise_multiplier": 1e-9}},
    "method": {"method": {"name": "fedprox", "mu": 4.9}},  # at this learning rate each step undoes those before it
}


@pytest.mark.parametrize("setting", SINGLED_OUT)
def test_settings_of_all_others_that_empty_their_updates(
    federation: Build, silos: Callable[..., Silos], monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    plain = federated(federation, aggregate=UNIFORM)
    nodes = {
        name: Node.model_validate(node.model_dump() | SINGLED_OUT[setting]) if name in OTHERS else node
        for name, node in plain.silos.items()
    }
    settings = plain.model_copy(update={"silos": nodes})
    with pytest.raises(ConfigError, match=f"have a different '{setting}'"):
        build_method(settings)
    monkeypatch.setattr(compatibility, "_same_work", lambda family: None)
    members = silos(settings)
    found, truth = members.round(settings, "attacked"), members.truth(settings)
    assert found is not None
    recovered = Tensors(found.layout, len(SIZES) * found.flat)
    if setting == "privacy":
        assert known(recovered, truth)
    else:  # a proximal term shortens the others' updates
        rest = recovered.flat - truth.flat
        honest = torch.stack([members.truth(plain, name).flat for name in OTHERS]).sum(0)
        assert rest.norm() < 0.7 * honest.norm()


GUARDED: dict[str, Any] = {
    "privacy": ({"privacy": {"noise_multiplier": 1.0}}, {}),
    "a policy": ({"policy": "policy.yaml"}, {}),
    "secure aggregation": ({}, {"secure_aggregation": True}),
}


@pytest.mark.parametrize("kind", GUARDED)
@pytest.mark.parametrize("where", ["root", "west"])
def test_a_mixture_over_a_guarded_leaf(
    federation: Build, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    """An inner node that reads its leaves' text trains on it without their noise, masks and rules."""
    leaf, top = GUARDED[kind]
    files = {name: federation(sizes={name: 30}).silos[name].sources[0].train for name in SIZES}
    west: dict[str, Any] = {"silos": {name: {"train": files[name]} for name in OTHERS}}
    west["silos"]["north"] |= leaf
    raw = {"name": "tree", "task": "causal-lm", "method": "worldlm", "silos": {"west": west}} | top
    if where == "root":
        raw["root"] = "mixture"
    else:
        west["mixture"] = True
    settings = parse(raw)
    with pytest.raises(ConfigError, match=f"'{where}' trains on the mixture .* has {kind}, which would not cover"):
        build_method(settings)
    monkeypatch.setattr(compatibility, "_mixtures", lambda federation: None)
    build_method(settings)
    assert files["north"] in {source.train for source in holders(settings)[where].sources}, "it reads the leaf's text"
