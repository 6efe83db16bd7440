"""Losses and scores under secure aggregation: the server sees sums over silos alone, and they are the right ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.core.errors import ConfigError
from hansa.core.link import Answer, Link
from hansa.core.messages import (
    AdvertisedKeys,
    AdvertiseKeys,
    Evaluate,
    Failure,
    MaskingPart,
    RevealShares,
    Scores,
    ShareSecrets,
    Train,
    Update,
)
from hansa.core.participation import Child
from hansa.core.round import Server, Turn, federated_round
from hansa.core.state import ServerState
from hansa.links.local import LocalLink
from hansa.privacy.policy.disclosures import disclosures
from hansa.privacy.policy.guard import Guard
from hansa.privacy.policy.preview import preview_policy
from hansa.privacy.policy.releases import released_items
from hansa.privacy.policy.rules import Purpose
from hansa.privacy.secure_aggregation.announcement import Announcement, evaluation_digest
from hansa.privacy.secure_aggregation.server import MaskingServer
from hansa.report.html import write
from hansa.runs.ledger import Ledger
from hansa.runs.masked_evaluation import MaskedEvaluation
from hansa.runs.results import RunResults
from hansa.runs.run import run
from hansa.runs.topology import round_settings
from hansa.tasks.base import NamedSums
from tests.conftest import Build, same, weights
from tests.privacy.policy.policies import policy
from tests.privacy.secure_aggregation.test_rounds import DropOutLink

SIZES = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
MASKED = {"secure_aggregation": {"metrics": True, "threshold": 0.5}, "participation": {"quorum": 0.1}}


@pytest.mark.parametrize("task", ["mlm", "classify", "causal-lm"])
def test_a_run_states_the_sums_and_nothing_of_a_silo(federation: Build, tmp_path: Path, task: Any) -> None:
    given = {"rounds": 2, "task": task}
    masked = run(federation(**given, **MASKED), tmp_path / "masked", workers=0)
    plain = run(federation(**given, secure_aggregation={"threshold": 0.5}), tmp_path / "plain", workers=0)
    assert same(weights(masked.folder / "model"), weights(plain.folder / "model")), "the model is not touched"
    assert list(masked.metrics) == ["all"]
    assert len(plain.metrics) == 3
    ours, theirs = Ledger(masked.folder), Ledger(plain.folder)
    query = "select round, seen, steps from rounds order by round"
    assert ours.select(query) == theirs.select(query), "sums of counts are exact"
    assert ours.select("select distinct loss, seen from traffic") == [(None, 0)]
    losses = dict(theirs.select("select round, avg(loss) from traffic group by round"))
    for number, loss in ours.select("select round, loss from rounds"):
        assert loss == pytest.approx(losses[number], abs=1e-6), "the mean over silos"
    read = RunResults.read(masked.folder)
    assert set(read.deviations["all"]) == set(masked.metrics["all"]), "from four parts, each a sum over silos"
    write([("r", masked.folder)], tmp_path / "report.html")


def evaluation(settings: Federation, folder: Path, link: Link) -> tuple[MaskedEvaluation, Evaluate]:
    runtime = Runtime(settings, folder)
    children = {name: Child(10, 10) for name in settings.silos}
    server = Server("fed", children, link, runtime.method, round_settings(settings))
    assert settings.secure_aggregation is not None
    task = runtime.task
    assert isinstance(task, NamedSums)
    names = lambda decode: task.sum_names(runtime.vocabulary.labels, decode)  # noqa: E731
    return MaskedEvaluation(server, settings.secure_aggregation, names), Evaluate(1, runtime.start, "test", 1.0)


def local(settings: Federation, folder: Path) -> Link:
    host = SiloHost(Runtime(settings, folder))
    return LocalLink(lambda name: host.silo(name).answer)


@pytest.fixture
def begun(federation: Build, tmp_path: Path) -> Path:
    """A run directory with a model to start from."""
    return run(federation(rounds=0, sizes=SIZES), tmp_path / "begun", workers=0).folder


def plain_sums(settings: Federation, folder: Path, request: Evaluate, without: set[str]) -> dict[str, float]:
    """The oracle: what the silos would say without masks, added up."""
    settings = settings.model_copy(update={"secure_aggregation": None})
    asks = {name: request for name in settings.silos if name not in without}
    total: dict[str, float] = {}
    for answer in local(settings, folder).ask(asks, None):
        assert isinstance(answer.reply, Scores)
        for sums in answer.reply.sums.values():
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + value
    return total


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Evaluate, RevealShares])
def test_silos_may_drop_out_in_every_phase(federation: Build, begun: Path, kind: Any) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    link = DropOutLink(local(settings, begun), {"north-2"}, kind)
    masked, request = evaluation(settings, begun, link)
    found, failures = masked.ask(request)
    gone = {"north-2"} if kind is not RevealShares else set()
    expected = plain_sums(settings, begun, request, gone)
    assert found.sums["all"] == pytest.approx(expected, abs=1e-6)
    assert found.sums["all"]["tokens"] == expected["tokens"], "whole numbers are exact"
    assert set(failures) == {"north-2"}
    replies = [reply for reply in link.seen if isinstance(reply, Scores)]
    assert replies
    assert all(not reply.sums and reply.masked is not None for reply in replies), "nothing leaves in the clear"


@pytest.mark.parametrize("kind", [AdvertiseKeys, ShareSecrets, Evaluate, RevealShares])
def test_one_below_the_threshold_nothing_is_unmasked(federation: Build, begun: Path, kind: Any) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    link = DropOutLink(local(settings, begun), {"north-2", "south-2", "east"}, kind)
    masked, request = evaluation(settings, begun, link)
    found, failures = masked.ask(request)
    if kind is RevealShares:  # the two that are left hold too few shares
        assert "silos revealed their share" in failures["fed"]
    assert found.sums == {}
    assert "the sum of the scores cannot be unmasked" in failures["fed"]


def test_one_silos_words_look_random_and_differ_each_time(federation: Build, begun: Path) -> None:
    """The attack: read a silo's scores off its reply. It succeeds where metrics are not masked."""
    settings = federation(sizes=SIZES, **MASKED)
    seen: list[Any] = []
    for _ in range(2):
        link = DropOutLink(local(settings, begun), set(), Evaluate)
        masked, request = evaluation(settings, begun, link)
        masked.ask(request)
        seen.append(
            [r.masked.flat.view(torch.int32) for r in link.seen if isinstance(r, Scores) and r.masked is not None]
        )
    first, second = seen
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all((words.abs() > 2**16).float().mean() > 0.9 for words in first), "limbs without masks are smaller"
    reply = local(settings.model_copy(update={"secure_aggregation": None}), begun)
    [answer] = reply.ask({"east": request}, None)
    assert isinstance(answer.reply, Scores)
    assert answer.reply.sums, "the control: without 'metrics' the scores can be read"


def test_a_silo_refuses_scores_without_masks(federation: Build, begun: Path) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    _, request = evaluation(settings, begun, local(settings, begun))
    [answer] = local(settings, begun).ask({"east": request}, None)
    assert isinstance(answer.reply, Failure)
    assert "leave under masks" in answer.reply.reason
    other = federation(sizes=SIZES, secure_aggregation=True)
    [answer] = local(other, begun).ask({"east": request}, None)
    assert isinstance(answer.reply, Scores), "the control: where the file does not ask for it"


class _Signer:
    def sign(self, round: int, announcement: Any) -> str:
        return ""

    def check(self, round: int, roster: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"share": 0.5}, "not the one that was announced"),
        ({"decode": True}, "not the one that was announced"),
        ({"own": True}, "not the one that was announced"),
        ({"split": "valid"}, "no secrets"),
        ({"split": "train"}, "not for evaluation"),
        ({"parts": 4}, "no secrets"),
    ],
)
def test_between_organisations_the_evaluation_is_the_announced_one(
    federation: Build, begun: Path, change: Any, says: Any
) -> None:
    runtime = Runtime(federation(sizes=SIZES, **MASKED), begun, signer=_Signer())
    silos = {name: SiloHost(runtime).silo(name) for name in ("north", "south", "east", "north-2")}
    request = Evaluate(1, runtime.start, "test", 1.0)
    digest = evaluation_digest(request)
    keys: dict[str, Any] = {n: silo.answer(AdvertiseKeys(1, digest, "test")) for n, silo in silos.items()}
    roster = {name: Announcement.from_reply(reply).words for name, reply in keys.items()}
    for silo in silos.values():
        silo.answer(ShareSecrets(1, roster, 2, "test"))
    asked = replace(request, masking=MaskingPart(roster), **change)
    reply = silos["north"].answer(asked)
    assert isinstance(reply, Failure) == bool(says)
    assert says in getattr(reply, "reason", "")
    if not says:
        again = silos["north"].answer(asked)
        assert isinstance(again, Failure)
        assert "no other under the same masks" in again.reason


class ChangingLink:
    """A link on which the replies of silo 'north' to one kind of request are changed."""

    size, remote, posting = 1, False, None

    def __init__(self, link: Link, kind: type, change: Callable[[Any], Any]) -> None:
        self.link, self.kind, self.change = link, kind, change

    def ask(self, asks: Mapping[str, Any], until: float | None) -> Iterator[Answer]:
        for answer in self.link.ask(asks, until):
            lies = answer.node == "north" and isinstance(asks[answer.node], self.kind)
            yield Answer(answer.node, self.change(answer.reply)) if lies else answer


@pytest.mark.parametrize("change", [lambda r: Scores({"fr": {"nll": 1.0}}), lambda r: AdvertisedKeys("", "", 1)])
def test_a_silo_with_other_scores_is_left_out(federation: Build, begun: Path, change: Any) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    masked, request = evaluation(settings, begun, ChangingLink(local(settings, begun), Evaluate, change))
    found, failures = masked.ask(request)
    assert found.sums["all"] == pytest.approx(plain_sums(settings, begun, request, {"north"}), abs=1e-6)
    assert failures == {"north": "it sent no masked scores of this task"}


def one_round(settings: Federation, folder: Path, link: Link) -> Any:
    runtime = Runtime(settings, folder)
    children = {name: Child(10, 10) for name in settings.silos}
    server = Server("fed", children, link, runtime.method, round_settings(settings))
    assert settings.secure_aggregation is not None
    return federated_round(
        server, ServerState(runtime.start.copy(), {}), Turn(1), [MaskingServer(settings.secure_aggregation)]
    )


def test_an_update_states_no_figures_of_its_own(federation: Build, begun: Path) -> None:
    for uniform in (True, False):
        more = {"aggregate": {"weights": "uniform"}} if uniform else {}
        settings = federation(sizes=SIZES, **MASKED, **more)
        link = DropOutLink(local(settings, begun), set(), Train)
        record = one_round(settings, begun, link)
        replies = [reply for reply in link.seen if isinstance(reply, Update)]
        assert len(replies) == 5
        assert {(u.loss, u.seen, u.steps, u.seconds) for u in replies} == {(0.0, 0, 0, 0.0)}
        announced = {reply.samples for reply in link.seen if isinstance(reply, AdvertisedKeys)}
        assert ({u.samples for u in replies} == announced == {1}) == uniform, "true counts only where they are weights"
        assert record.totals.seen == 5 * 16
        assert record.totals.steps == 10
        assert 1.0 < record.loss < 10.0


def test_an_update_without_masked_figures_is_left_out(federation: Build, begun: Path) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    bare = ChangingLink(local(settings, begun), Train, lambda u: replace(u, masked=replace(u.masked, metrics=None)))
    record = one_round(settings, begun, bare)
    assert not record.failed
    assert record.failures == {
        "north": "its loss and counts are not masked, and secure_aggregation.metrics asks for it"
    }
    assert record.totals.seen == 4 * 16


def test_a_run_goes_on_where_scores_cannot_be_unmasked(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Any, masked: Any) -> Any:
        from hansa.privacy.secure_aggregation.protocol import Refused

        raise Refused("2 silos answered")

    monkeypatch.setattr(MaskingServer, "total", lost)
    done = run(federation(rounds=1, **MASKED), tmp_path / "r", workers=0)
    assert done.metrics == {}
    assert (done.folder / "model").is_dir()
    kinds = Ledger(done.folder).select("select distinct kind, text from events")
    assert kinds == [("not evaluated", "the sum of the scores cannot be unmasked, because 2 silos answered")]
    write([("r", done.folder)], tmp_path / "report.html")


def test_policies_know_the_masked_fields(federation: Build, begun: Path, tmp_path: Path) -> None:
    settings = federation(sizes=SIZES, **MASKED)
    link = DropOutLink(local(settings, begun), set(), Train)
    masked, request = evaluation(settings, begun, link)
    masked.ask(request)
    reply = next(reply for reply in link.seen if isinstance(reply, Scores))
    items = released_items(reply, request, Runtime(settings, begun).part_of)
    assert items is not None
    assert [item.kind for item in items] == ["metrics"]
    found = policy(tmp_path, release={"tensors": "any", "samples": True})
    refused = {d.request for d in preview_policy(found, settings) if not d.verdict.allowed}
    assert refused >= {"Evaluate"}
    guard = Guard(lambda r: reply, tmp_path / "policy.yaml", Purpose.of(settings, "east"), _NoLog(), str, "x")  # type: ignore[arg-type]
    assert isinstance(guard(AdvertiseKeys(1, "", "test")), Failure), "keys for scores are asked for as metrics"
    assert "only their sums over the silos are known" in " ".join(disclosures(settings))


class _NoLog:
    node = "east"

    def add(self, *_: Any, **__: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"personal": {"rounds": 1}}, "silo by silo"),
        ({"task": {"name": "keyword", "words": ["fever"]}}, "no method 'sum_names'"),
    ],
)
def test_what_cannot_be_summed_is_refused(federation: Build, tmp_path: Path, change: Any, says: Any) -> None:
    plugin = str(Path(__file__).parents[3] / "examples" / "keyword_task.py")
    with pytest.raises(ConfigError, match=says):
        run(federation(rounds=1, plugins=[plugin], **(MASKED | change)), tmp_path / "r", workers=0)
