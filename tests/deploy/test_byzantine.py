"""A silo or a coordinator that deviates from the protocol, over real sockets: left out or refused, with the reason."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

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
    MaskedPart,
    MaskingPart,
    Request,
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
from tests.conftest import Build
from tests.deploy.conftest import joined, make_kits, over_the_network
from tests.deploy.test_authentication import run_agent

FOUR = {"north": 40, "south": 30, "east": 20, "north-2": 30}
NO_EVALUATION = {"evaluate": {"every": 9, "share": 1.0}}


class ByzantineService(SiloService):
    """Answers requests of some types with ``replies``, called with the request and the honest answer."""

    def __init__(self, kit: Any, sources: Any, replies: Any) -> None:
        super().__init__(kit, sources, ())
        self.replies = replies

    def open_run(self, folder: Any, settings: Any) -> Any:
        honest = super().open_run(folder, settings)

        def answer(request: Request) -> Any:
            reply = self.replies.get(type(request))
            return honest(request) if reply is None else reply(request, honest)

        return answer


def run_with(settings: Any, tmp_path: Path, log: Any, byzantine: Any) -> Any:
    """Run a federation; ``byzantine``: silo → its replies by type of request, or a function that makes them."""
    kits = make_kits(settings, tmp_path / "kits")
    honest = settings.model_copy(update={"silos": {n: s for n, s in settings.silos.items() if n not in byzantine}})
    with ExitStack() as stack:
        stack.enter_context(joined(honest, kits, tmp_path / "silos", log.say))
        for name, replies in byzantine.items():
            kit = Kit(kits / name)
            service = ByzantineService(
                kit, settings.silos[name].sources, replies(kits) if callable(replies) else replies
            )
            stack.enter_context(run_agent(kit, tmp_path / "silos" / name, service))
        return serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [log])


def run_with_east(settings: Any, tmp_path: Path, log: Any, replies: Any) -> Any:
    return run_with(settings, tmp_path, log, {"east": replies})


def events(folder: Any, kind: Any) -> Any:
    ledger = Ledger(folder)
    try:
        return ledger.select("select round, node, text from events where kind=? order by round", kind)
    finally:
        ledger.close()


ENROLMENT = {
    "south-2": ({CollectVocabulary: lambda *_: VocabularyCounts({"a": -5})}, "a word count outside of"),
    "south-3": ({CollectVocabulary: lambda *_: Scores({})}, "it sent a Scores"),
    "south-4": ({DescribeData: lambda *_: VocabularyCounts({})}, "it sent a VocabularyCounts"),
    "south-5": ({DescribeData: lambda *_: DataCard({"train": {"x": -9}}, 9)}, "a number of samples outside of"),
    "south-6": (
        {DescribeData: lambda *_: DataCard({"train": {"x": 10**15}}, 9)},
        "a number of samples outside of",
    ),
    "south-7": ({DescribeData: lambda *_: DataCard({}, 9)}, "no training samples"),
    "south-8": ({DescribeData: lambda *_: Failure("gone \x1b[2J fishing")}, "gone \ufffd[2J fishing"),
}


def test_silos_with_invalid_enrolment_replies_are_left_out(federation: Build, tmp_path: Path, log: Any) -> None:
    """Seven of nine silos are invalid. Those with an invalid vocabulary but valid data still train."""
    settings = federation(
        rounds=1,
        sizes={"north": 40, "east": 30} | dict.fromkeys(ENROLMENT, 20),
        participation={"quorum": 0.2},
        **NO_EVALUATION,
    )
    outcome = run_with(settings, tmp_path, log, {name: replies for name, (replies, _) in ENROLMENT.items()})
    reasons = {node: text for _, node, text in events(outcome.folder, "lost")}
    assert reasons.keys() == ENROLMENT.keys()
    for name, (_, reason) in ENROLMENT.items():
        assert reason in reasons[name]
    ledger = Ledger(outcome.folder)
    trained = {n for (n,) in ledger.select("select node from traffic where seen > 0")}
    ledger.close()
    assert trained == {"north", "east", "south-2", "south-3"}


def test_a_silo_with_unreadable_data_is_left_out_if_the_quorum_allows(
    federation: Build, tmp_path: Path, log: Any
) -> None:
    for name, quorum in (("enough", 0.6), ("all", 1.0)):
        settings = federation(rounds=1, participation={"quorum": quorum}, **NO_EVALUATION)
        (tmp_path / "data" / "east.jsonl").write_text("this is not JSON\n" * 40)
        kits = make_kits(settings, tmp_path / name / "kits")
        with joined(settings, kits, tmp_path / name / "silos", log.say):
            if quorum == 1.0:
                with pytest.raises(RunFailed, match=r"silo 'east' could not answer a CollectVocabulary.*are needed"):
                    serve(settings, Kit(kits / COORDINATOR), tmp_path / name / "run", None, [log])
                continue
            outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / name / "run", None, [log])
        assert [(round, node) for round, node, _ in events(outcome.folder, "lost")] == [(0, "east"), (0, "east")]
        assert not any("this is not JSON" in line for line in log.lines), "the data is not quoted"
        assert all("see the log of the node" in text for _, _, text in events(outcome.folder, "lost"))
        assert any("40 of 40 lines cannot be used" in line for line in log.lines), "for the silo's own operator"


def test_invalid_scores_and_an_unexpected_mask_are_rejected(federation: Build, tmp_path: Path, log: Any) -> None:
    def masked(request: Train, honest: Any) -> Any:
        """Masked updates are not checked for NaN, so this update would enter the model if the mask were accepted."""
        update = honest(request)
        update.gradient.flat.fill_(float("nan"))
        return replace(update, masked=MaskedPart())

    replies = {Train: masked, Evaluate: lambda *_: Scores({"east": {"hits": 3.0}})}
    outcome = run_with_east(federation(rounds=2), tmp_path, log, replies)
    assert {(r, n) for r, n, t in events(outcome.folder, "lost") if "no masks were asked for" in t} == {
        (1, "east"),
        (2, "east"),
    }
    assert {n for _, n, t in events(outcome.folder, "not evaluated") if "no scores of this task" in t} == {"east"}
    assert "east" not in outcome.metrics


def test_an_update_without_a_mask_is_rejected(federation: Build, tmp_path: Path, log: Any) -> None:
    def bare(request: Train, honest: Any) -> Any:
        return replace(honest(request), masked=None)

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **NO_EVALUATION)
    outcome = run_with_east(settings, tmp_path, log, {Train: bare})
    assert [(n, t) for _, n, t in events(outcome.folder, "lost")] == [
        ("east", "its update is not masked, and secure aggregation needs masked updates")
    ]
    assert all(torch.isfinite(torch.tensor(list(m.values()))).all() for m in outcome.metrics.values())


def test_a_silo_that_announces_another_model_is_not_on_the_roster(federation: Build, tmp_path: Path, log: Any) -> None:
    def other(request: AdvertiseKeys, honest: Any) -> Any:
        return honest(replace(request, model="0" * 64))

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **NO_EVALUATION)
    outcome = run_with_east(settings, tmp_path, log, {AdvertiseKeys: other})
    [(_, node, reason)] = events(outcome.folder, "lost")
    assert (node, reason) == ("east", "it announced another model than the one of this round")


def test_an_invalid_signature_excludes_only_its_silo(federation: Build, tmp_path: Path, log: Any) -> None:
    """The other silos would refuse a roster with it, so the coordinator leaves it out."""

    def borrowed(request: AdvertiseKeys, honest: Any) -> Any:
        return replace(honest(request), signature="00" * 64)

    settings = federation(rounds=1, sizes=FOUR, secure_aggregation=True, **NO_EVALUATION)
    outcome = run_with_east(settings, tmp_path, log, {AdvertiseKeys: borrowed})
    [(_, node, reason)] = events(outcome.folder, "lost")
    assert node == "east"
    assert "is not signed by it" in reason


def other_model(request: Train) -> Train:
    """Pasquini et al. (2022): if the updates of all other silos are zero, the sum is the update of east."""
    return replace(request, model=replace(request.model, flat=request.model.flat + 1e-3))


def two_silos(request: ShareSecrets) -> ShareSecrets:
    return replace(request, roster={n: request.roster[n] for n in ("east", "north")})


def masked_with_two(request: Train) -> Train:
    assert request.masking is not None
    return replace(request, masking=MaskingPart({n: request.masking.roster[n] for n in ("east", "north")}))


DEVIATIONS = [
    (Train, other_model, "the model is not the one that was announced to the silos"),
    (Train, lambda request: replace(request, masking=None), "is not the one that this silo shared its secrets with"),
    (Train, masked_with_two, "is not the one that this silo shared its secrets with"),
    (ShareSecrets, two_silos, "the roster has 2 silos; secure aggregation needs at least 3"),
    (ShareSecrets, lambda request: replace(request, threshold=1), "no more than half"),
    (Train, lambda request: request, ""),
]


def test_a_silo_refuses_requests_that_differ_from_those_of_the_others(
    federation: Build, tmp_path: Path, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 8 and 9, over real sockets: east refuses with the reason. The last round is honest."""
    settings = federation(rounds=len(DEVIATIONS), sizes=FOUR, secure_aggregation=True, **NO_EVALUATION)
    honest = NatsLink.ask

    def deviating(node: str, request: Request) -> Any:
        kind, change, _ = DEVIATIONS[getattr(request, "round", 1) - 1]
        return change(request) if node == "east" and isinstance(request, kind) else request

    monkeypatch.setattr(
        NatsLink, "ask", lambda self, asks, until: honest(self, {n: deviating(n, r) for n, r in asks.items()}, until)
    )
    outcome = over_the_network(settings, tmp_path / "there", log)
    lost = {round: (node, why) for round, node, why in events(outcome.folder, "lost")}
    assert lost.keys() == set(range(1, len(DEVIATIONS)))
    for round, (node, why) in lost.items():
        assert node == "east"
        assert why.startswith("it refuses: ")
        assert DEVIATIONS[round - 1][2] in why


def test_a_silo_revoked_during_a_round_is_dropped_at_once(federation: Build, tmp_path: Path, log: Any) -> None:
    """East never answers and there is no deadline: the round would take a week."""
    over = threading.Event()

    def replies(kits: Any) -> Any:
        def silent(request: Train, honest: Any) -> Any:
            threading.Timer(0.2, authority.revoke, (kits, "east")).start()
            over.wait(600)
            return Failure("too late")

        return {Train: silent}

    began = monotonic()
    try:
        outcome = run_with_east(federation(rounds=2, **NO_EVALUATION), tmp_path, log, replies)
    finally:
        over.set()
    assert monotonic() - began < 300
    lost = events(outcome.folder, "lost")
    assert [(round, node) for round, node, _ in lost] == [(1, "east"), (2, "east")]
    assert {text for _, _, text in lost} == {"it was revoked"}
