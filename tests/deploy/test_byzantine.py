"""One silo that lies, breaks or is shut out, over real sockets: left out with the reason, and the others go on."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from time import monotonic

import pytest
import torch

from hansa.core.errors import RunFailed
from hansa.core.messages import (
    AdvertiseKeys,
    CollectVocabulary,
    DataCard,
    DescribeData,
    Evaluate,
    Failure,
    Scores,
    ShareSecrets,
    Train,
    VocabularyCounts,
)
from hansa.deploy import authority
from hansa.deploy.coordinator import serve
from hansa.deploy.join import SiloService
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.link import NatsLink
from hansa.runs.ledger import Ledger
from tests.deploy.conftest import joined, make_kits, over_the_network
from tests.deploy.test_authentication import bad_agent

FOUR = {"north": 40, "south": 30, "east": 20, "north-2": 30}
QUIETLY = {"evaluate": {"every": 9, "share": 1.0}}


class Lying(SiloService):
    """Answers requests of some kinds with what ``lie`` makes of them."""

    def __init__(self, kit, sources, lies):
        super().__init__(kit, sources, ())
        self.lies = lies

    def open(self, folder, settings):
        honest = super().open(folder, settings)

        def answer(request):
            lie = self.lies.get(type(request))
            return honest(request) if lie is None else lie(request, honest)

        return answer


def run_with_liars(settings, tmp_path, log, liars):
    """``liars``: for some silos, what they make of requests of which kind."""
    kits = make_kits(settings, tmp_path / "kits")
    honest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n not in liars}})
    with ExitStack() as stack:
        stack.enter_context(joined(honest, kits, tmp_path / "silos", log.say))
        for name, lies in liars.items():
            kit = Kit(kits / name)
            service = Lying(kit, settings.silos[name].sources, lies(kits) if callable(lies) else lies)
            stack.enter_context(bad_agent(kit, tmp_path / "silos" / name, service))
        return serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log)


def run_with_a_liar(settings, tmp_path, log, lies):
    return run_with_liars(settings, tmp_path, log, {"east": lies})


def events(folder, kind):
    ledger = Ledger(folder)
    try:
        return ledger.select("select round, node, text from events where kind=? order by round", kind)
    finally:
        ledger.close()


ROLL = {
    "south-2": ({CollectVocabulary: lambda *_: VocabularyCounts({"a": -5})}, "counts word pieces as nobody can"),
    "south-3": ({CollectVocabulary: lambda *_: Scores({})}, "it sent a Scores"),
    "south-4": ({DescribeData: lambda *_: VocabularyCounts({})}, "it sent a Findings"),
    "south-5": ({DescribeData: lambda *_: DataCard({"train": {"x": -9}}, 9)}, "a number of samples that no silo has"),
    "south-6": (
        {DescribeData: lambda *_: DataCard({"train": {"x": 10**15}}, 9)},
        "a number of samples that no silo has",
    ),
    "south-7": ({DescribeData: lambda *_: DataCard({}, 9)}, "no training samples"),
    "south-8": ({DescribeData: lambda *_: Failure("gone \x1b[2J fishing")}, "gone \ufffd[2J fishing"),
}


def test_nonsense_before_the_first_round_costs_the_liars_their_place_and_nothing_else(federation, tmp_path, log):
    """Seven liars among nine. Who lied about words only, and not about its data, trains."""
    settings = federation(
        rounds=1, sizes={"north": 40, "east": 30} | dict.fromkeys(ROLL, 20), participation={"quorum": 0.2}, **QUIETLY
    )
    outcome = run_with_liars(settings, tmp_path, log, {name: lies for name, (lies, _) in ROLL.items()})
    said = {node: text for _, node, text in events(outcome.folder, "lost")}
    assert said.keys() == ROLL.keys()
    for name, (_, reason) in ROLL.items():
        assert reason in said[name]
    ledger = Ledger(outcome.folder)
    trained = {n for (n,) in ledger.select("select node from traffic where seen > 0")}
    ledger.close()
    assert trained == {"north", "east", "south-2", "south-3"}


def test_data_that_cannot_be_read_costs_a_silo_its_place_and_the_quorum_decides(federation, tmp_path, log):
    for name, quorum in (("enough", 0.6), ("all", 1.0)):
        settings = federation(rounds=1, participation={"quorum": quorum}, **QUIETLY)
        (tmp_path / "data" / "east.jsonl").write_text("this is no JSON\n" * 40)
        kits = make_kits(settings, tmp_path / name / "kits")
        with joined(settings, kits, tmp_path / name / "silos", log.say):
            if quorum == 1.0:
                with pytest.raises(RunFailed, match="silo 'east' could not answer a Survey request"):
                    serve(settings, Kit(kits / COORDINATOR), tmp_path / name / "run", None, log)
                continue
            outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / name / "run", None, log)
        assert [(round, node) for round, node, _ in events(outcome.folder, "lost")] == [(0, "east"), (0, "east")]
        assert not any("this is no JSON" in line for line in log.lines), "why, and not what"
        assert all("its own log says why" in text for _, _, text in events(outcome.folder, "lost"))
        assert any("40 of 40 lines cannot be used" in line for line in log.lines), "which its operator reads"


def test_nonsense_for_scores_and_a_mask_that_nobody_asked_for(federation, tmp_path, log):
    def masked(request, honest):
        """The finite check is not for updates under masks: NaN would get in, if this were believed."""
        update = honest(request)
        update.gradient.flat.fill_(float("nan"))
        return replace(update, masked=True)

    lies = {Train: masked, Evaluate: lambda *_: Scores({"east": {"hits": 3.0}})}
    outcome = run_with_a_liar(federation(rounds=2), tmp_path, log, lies)
    assert {(r, n) for r, n, t in events(outcome.folder, "lost") if "none was asked for" in t} == {
        (1, "east"),
        (2, "east"),
    }
    assert {n for _, n, t in events(outcome.folder, "not evaluated") if "no scores of this task" in t} == {"east"}
    assert "east" not in outcome.metrics


def test_an_update_without_its_mask_does_not_get_into_a_masked_sum(federation, tmp_path, log):
    def bare(request, honest):
        return replace(honest(request), masked=False)

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **QUIETLY)
    outcome = run_with_a_liar(settings, tmp_path, log, {Train: bare})
    assert [(n, t) for _, n, t in events(outcome.folder, "lost")] == [("east", "its update is not under a mask")]
    assert all(torch.isfinite(torch.tensor(list(m.values()))).all() for m in outcome.metrics.values())


def test_a_silo_that_signs_for_another_model_is_not_put_on_the_list(federation, tmp_path, log):
    def other(request, honest):
        return honest(replace(request, model="0" * 64))

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **QUIETLY)
    outcome = run_with_a_liar(settings, tmp_path, log, {AdvertiseKeys: other})
    [(_, node, reason)] = events(outcome.folder, "lost")
    assert (node, reason) == ("east", "it speaks of another model than it was told of")


def test_a_silo_that_does_not_stand_for_what_it_says_costs_itself_its_place_alone(federation, tmp_path, log):
    """The others would refuse a list with it on: an honest coordinator never makes one."""

    def borrowed(request, honest):
        return replace(honest(request), vouch="00" * 64)

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **QUIETLY)
    outcome = run_with_a_liar(settings, tmp_path, log, {AdvertiseKeys: borrowed})
    [(_, node, reason)] = events(outcome.folder, "lost")
    assert node == "east"
    assert "is not signed by it" in reason


def other_model(request):
    """Pasquini et al. (2022): where all other silos' updates are nothing, the sum is east's."""
    return replace(request, model=replace(request.model, flat=request.model.flat + 1e-3))


def list_of_two(request):
    return replace(request, roster={n: request.roster[n] for n in ("east", "north")})


LIES = [
    (Train, other_model, "the model is not the one that the silos were told of"),
    (Train, lambda request: replace(request, roster={}), "is not the one that this silo entrusted its secrets to"),
    (Train, list_of_two, "is not the one that this silo entrusted its secrets to"),
    (ShareSecrets, list_of_two, "2 silos are on the list, and at least 3 must hide in the sum"),
    (ShareSecrets, lambda request: replace(request, threshold=1), "no more than half"),
    (Train, lambda request: request, ""),
]


def test_a_coordinator_that_treats_one_silo_differently_gets_nothing_from_it(federation, tmp_path, log, monkeypatch):
    """Cases 8 and 9, over real sockets: east refuses, and says why. In the last round nobody lies."""
    settings = federation(rounds=len(LIES), sizes=FOUR, secure_aggregation=True, **QUIETLY)
    honest = NatsLink.ask

    def told(node, request):
        kind, lie, _ = LIES[getattr(request, "round", 1) - 1]
        return lie(request) if node == "east" and isinstance(request, kind) else request

    monkeypatch.setattr(
        NatsLink, "ask", lambda self, asks, until: honest(self, {n: told(n, r) for n, r in asks.items()}, until)
    )
    outcome = over_the_network(settings, tmp_path / "there", log)
    lost = {round: (node, why) for round, node, why in events(outcome.folder, "lost")}
    assert lost.keys() == set(range(1, len(LIES)))
    for round, (node, why) in lost.items():
        assert node == "east"
        assert why.startswith("it refuses: ")
        assert LIES[round - 1][2] in why


def test_whoever_is_revoked_in_the_middle_of_a_round_is_lost_at_once(federation, tmp_path, log):
    """East never answers and there is no deadline: without this the round would take a week."""
    over = threading.Event()

    def lies(kits):
        def silent(request, honest):
            threading.Timer(0.2, authority.revoke, (kits, "east")).start()
            over.wait(600)
            return Failure("too late")

        return {Train: silent}

    began = monotonic()
    try:
        outcome = run_with_a_liar(federation(rounds=2, **QUIETLY), tmp_path, log, lies)
    finally:
        over.set()
    assert monotonic() - began < 300
    lost = events(outcome.folder, "lost")
    assert [(round, node) for round, node, _ in lost] == [(1, "east"), (2, "east")]
    assert {text for _, _, text in lost} == {"it was revoked"}
