"""One silo that lies, breaks or is shut out, over real sockets: left out with the reason, and the others go on."""

import threading
from dataclasses import replace
from time import monotonic

import pytest
import torch

from hansa.deploy import authority
from hansa.deploy.join import SiloTrade
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.serve import serve
from hansa.errors import RunFailed
from hansa.messages import Advertise, Card, Describe, Evaluate, Findings, Lost, Scores, Survey, Train
from hansa.runs.ledger import Ledger
from tests.deploy.conftest import joined, make_kits
from tests.deploy.test_strangers import bad_agent

QUIETLY = {"evaluate": {"every": 9, "share": 1.0}}


class Lying(SiloTrade):
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


def run_with_a_liar(settings, tmp_path, log, lies, liar="east"):
    kits = make_kits(settings, tmp_path / "kits")
    honest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n != liar}})
    kit = Kit(kits / liar)
    trade = Lying(kit, settings.silos[liar].sources, lies(kits) if callable(lies) else lies)
    with joined(honest, kits, tmp_path / "silos", log.say), bad_agent(kit, tmp_path / "silos" / liar, trade):
        return serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, log)


def events(folder, kind):
    ledger = Ledger(folder)
    try:
        return ledger.select("select round, node, text from events where kind=? order by round", kind)
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("lies", "reason"),
    [
        ({Survey: lambda *_: Findings({"a": -5})}, "counts word pieces as nobody can"),
        ({Survey: lambda *_: Scores({})}, "it sent a Scores"),
        ({Describe: lambda *_: Findings({})}, "it sent a Findings"),
        ({Describe: lambda *_: Card({"train": {"x": -9}}, 9)}, "a number of samples that no silo has"),
        ({Describe: lambda *_: Card({"train": {"x": 10**15}}, 9)}, "a number of samples that no silo has"),
        ({Describe: lambda *_: Card({}, 9)}, "no training samples"),
        ({Describe: lambda *_: Lost("gone \x1b[2J fishing")}, "gone \ufffd[2J fishing"),
    ],
    ids=range(7),
)
def test_nonsense_before_the_first_round_costs_the_liar_its_place_and_nothing_else(
    federation, tmp_path, log, lies, reason
):
    outcome = run_with_a_liar(federation(rounds=1, **QUIETLY), tmp_path, log, lies)
    [(round, node, text)] = events(outcome.folder, "lost")
    assert (round, node) == (0, "east")
    assert reason in text
    ledger = Ledger(outcome.folder)
    assert {n for (n,) in ledger.select("select node from traffic where seen > 0")} >= {"north", "south"}
    ledger.close()


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

    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30}
    settings = federation(rounds=1, sizes=sizes, secure=True, **QUIETLY)
    outcome = run_with_a_liar(settings, tmp_path, log, {Train: bare})
    assert [(n, t) for _, n, t in events(outcome.folder, "lost")] == [("east", "its update is not under a mask")]
    assert all(torch.isfinite(torch.tensor(list(m.values()))).all() for m in outcome.metrics.values())


def test_a_silo_that_signs_for_another_model_stops_the_sum_and_not_the_others(federation, tmp_path, log):
    """East lies about what it was told: the others refuse the whole list, and nothing is unmasked."""

    def other(request, honest):
        return honest(replace(request, model="0" * 64))

    with pytest.raises(RunFailed, match="nothing is unmasked") as failed:
        run_with_a_liar(federation(rounds=1, secure=True, **QUIETLY), tmp_path, log, {Advertise: other})
    assert "the silos on the list were told of different models" in str(failed.value)


def test_whoever_is_revoked_in_the_middle_of_a_round_is_lost_at_once(federation, tmp_path, log):
    """East never answers and there is no deadline: without this the round would take a week."""
    over = threading.Event()

    def lies(kits):
        def silent(request, honest):
            threading.Timer(0.2, authority.revoke, (kits, "east")).start()
            over.wait(600)
            return Lost("too late")

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
