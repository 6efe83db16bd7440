"""Knowledge exchange: the same over any link, counted to the byte, and knowledge that fails its checks is dropped."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.release_log import logged_releases
from hansa.client.runtime import Runtime
from hansa.core import wire
from hansa.core.errors import ConfigError
from hansa.core.exchange import KnowledgeExchange
from hansa.core.knowledge import Sizes
from hansa.core.messages import Failure, Knowledge, KnowledgePart, Scores, ShareKnowledge, Train, Update, no_tensors
from hansa.core.participation import Child, RoundSettings
from hansa.core.round import Server, Turn, federated_round
from hansa.core.state import ServerState
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.methods.fedavg import fedavg
from hansa.methods.fedkc import fedkc
from hansa.preview.preview import preview
from hansa.runs.run import run
from tests.classifiers import CLASSES, WIDTH, pairs
from tests.conftest import Build, same, weights
from tests.core.trees import run_over, select
from tests.toys import update

KC = {"name": "fedkc", "layer": "last", "q": 3, "floor": 1, "alpha": 2.0}


@pytest.fixture
def classify(federation: Build) -> Any:
    def build(**settings: Any) -> Any:
        return federation(**{"task": "classify", "method": KC, "tokenizer": {"kind": "bytes"}, "rounds": 2} | settings)

    return build


# ── one round ─────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = pairs(torch.ones(2, WIDTH), torch.full((2, CLASSES), 1 / CLASSES))
BAD = {
    "width must be 8": pairs(torch.ones(2, 5), torch.full((2, CLASSES), 1 / CLASSES)),
    "not distributions": pairs(torch.ones(2, WIDTH), torch.ones(2, CLASSES)),
    "not finite": pairs(torch.full((2, WIDTH), float("nan")), torch.full((2, CLASSES), 1 / CLASSES)),
    "number of rows": replace(GOOD, members=(1,)),
    "no sample": replace(GOOD, members=(3, 0)),
    "no numbers": Knowledge(Tensors.zeros(Layout((), ())), members=(1,)),
    "has no numbers": pairs(torch.ones(2, 0), torch.ones(2, 0)),
    "4 groups of its samples are too small": Knowledge(Tensors.zeros(Layout((), ())), withheld=4),
    "it shared nothing": Knowledge(Tensors.zeros(Layout((), ()))),
    "a Scores instead": Scores({}),
    "gone": Failure("gone"),
}


def one_round(replies: Any) -> Any:
    """A round of FedKC among nodes whose replies to `ShareKnowledge` are given; all requests are kept."""
    asked: dict[str, list[Any]] = {name: [] for name in replies}

    def answer(name: str) -> Any:
        def reply(request: Any) -> Any:
            asked[name].append(request)
            return replies[name] if isinstance(request, ShareKnowledge) else update([1.0, -1.0], samples=10)

        return reply

    state = ServerState(Tensors(Layout(("w",), ((2,),)), torch.tensor([5.0, 5.0])))
    method = fedkc(fedavg(), "last", 2, 1.0, 1)
    server = Server("root", {name: Child(10, 10) for name in replies}, LocalLink(answer), method, RoundSettings())
    assert method.exchange is not None
    exchange = KnowledgeExchange(method.exchange, lambda: Sizes(WIDTH, WIDTH, CLASSES, 12))
    return federated_round(server, state, Turn(1), [exchange]), asked


def test_every_silo_receives_what_the_others_shared_and_not_its_own() -> None:
    replies = {
        name: pairs(torch.full((2, WIDTH), v), torch.full((2, CLASSES), 1 / 3))
        for name, v in zip("abc", (1.0, 2.0, 3.0), strict=True)
    }
    _, asked = one_round(replies)
    for name in replies:
        share, train = asked[name]
        assert isinstance(share, ShareKnowledge)
        assert isinstance(train, Train)
        assert train.knowledge is not None
        received = [float(one.tensors["centroids"][0, 0]) for one in train.knowledge.items]
        assert received == [float(replies[n].tensors["centroids"][0, 0]) for n in replies if n != name]


@pytest.mark.parametrize("reason", BAD)
def test_knowledge_that_fails_its_checks_is_dropped_and_the_round_goes_on(reason: str) -> None:
    found, asked = one_round({"bad": BAD[reason], "good": GOOD, "other": GOOD})
    assert reason in found.exchange.rejected["bad"]
    assert not found.failed
    assert set(found.updates) == {"bad", "good", "other"}, "a silo whose knowledge was rejected still trains"
    parts = [asked[name][1].knowledge for name in ("bad", "good", "other")]
    assert [0 if part is None else len(part.items) for part in parts] == [0 if reason == "gone" else 2, 1, 1]
    held = parts[0] is not None and parts[0].model_held
    assert held == (reason != "gone"), "a silo that did not answer is sent the model again"


def test_an_active_set_of_one_trains_alone() -> None:
    found, asked = one_round({"only": GOOD})
    assert asked["only"][1].knowledge.items == ()
    assert not found.failed


def test_the_model_travels_once() -> None:
    found, asked = one_round({"a": GOOD, "b": GOOD})
    share, train = asked["a"]
    assert wire.payload(train) == wire.payload(GOOD), "the other silo's knowledge, and no model"
    assert found.sent["a"] == wire.size(share) + wire.size(train)
    assert wire.decode(wire.encode(train)).model.layout.names == ()


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_link_does_not_matter(classify: Build, tmp_path: Path) -> None:
    settings = classify()
    direct = run_over(settings, tmp_path / "direct", lambda host: LocalLink(host.answer))
    wired = run_over(settings, tmp_path / "wired", lambda host: LocalLink(host.answer, True))
    pooled = weights(run(settings, tmp_path / "pool", workers=2).folder / "model")
    assert same(direct, wired)
    assert same(direct, pooled)


@pytest.mark.parametrize("layer", ["last", "all"])
def test_the_extra_traffic_is_what_the_paper_says_to_the_byte(classify: Build, tmp_path: Path, layer: Any) -> None:
    """2·q·n·(d + k) numbers, or 2·q·n·(T·d + k).

    q·n pairs go up and the same q·n pairs come down: each silo gets all but its own, so the pairs of n − 1 silos.
    """
    q, n, d, k, longest = 3, 3, 64, 2, 16
    outcome = run(classify(rounds=1, method=KC | {"layer": layer}), tmp_path / "run", workers=0)
    pair = 4 * (d + k if layer == "last" else longest * d + k)
    [(up, down)] = select(outcome.folder, "select sum(offered), sum(told) from traffic")
    assert up == q * n * pair
    assert down == (n - 1) * q * n * pair
    assert up + down / (n - 1) == 2 * q * n * pair
    plain = run(classify(rounds=1, method="fedavg"), tmp_path / "plain", workers=0)
    [(sent, received)] = select(outcome.folder, "select sum(sent), sum(received) from traffic")
    [(sent_plain, received_plain)] = select(plain.folder, "select sum(sent), sum(received) from traffic")
    headers = 40_000  # names and layouts, in JSON
    assert 0 < sent - sent_plain - down < headers
    assert 0 < received - received_plain - up < headers


def test_without_weight_it_is_fedavg_bit_for_bit(classify: Build, tmp_path: Path) -> None:
    plain = run(classify(method="fedavg"), tmp_path / "plain", workers=0)
    limit = run(classify(method=KC | {"alpha": 0.0}), tmp_path / "limit", workers=0)
    with_it = run(classify(), tmp_path / "with", workers=0)
    assert same(weights(plain.folder / "model"), weights(limit.folder / "model"))
    assert not same(weights(plain.folder / "model"), weights(with_it.folder / "model"))


def test_a_silo_below_the_floor_is_not_heard_and_the_run_says_so(classify: Build, tmp_path: Path) -> None:
    outcome = run(classify(rounds=1, method=KC | {"floor": 30}), tmp_path / "run", workers=0)
    events = select(outcome.folder, "select node, text from events where kind='not heard'")
    assert "east" in dict(events)
    assert "too small" in dict(events)["east"]


def test_what_left_can_be_recorded_with_the_samples_behind_it(classify: Build, tmp_path: Path) -> None:
    settings = classify(release_log={"knowledge": True, "updates": True})
    outcome = run(settings, tmp_path / "run", workers=0)
    found = list(logged_releases(outcome.folder, "knowledge"))
    assert [(one.silo, one.round) for one in found] == [(s, r) for s in ("east", "north", "south") for r in (1, 2)]
    for one in found:
        assert one.notes["members"] == [len(rows) for rows in one.notes["samples"]]
        assert one.tensors["centroids"].shape == (3, 64)
        assert one.received
    updates = list(logged_releases(outcome.folder, "update"))
    assert len(updates) == 6
    assert len(updates[0].notes["samples"]) == 16
    assert updates[0].tensors.keys() == updates[0].received.keys()
    silent = run(classify(), tmp_path / "silent", workers=0)
    assert list(logged_releases(silent.folder, "knowledge")) == []
    assert same(weights(outcome.folder / "model"), weights(silent.folder / "model"))


@pytest.mark.parametrize("method", ["moon", "fedmix", {"name": "fedkc", "layer": "all", "local": "moon", "floor": 1}])
def test_other_methods_and_combinations_run(classify: Build, tmp_path: Path, method: Any) -> None:
    outcome = run(classify(method=method), tmp_path / "run", workers=0)
    assert all(0 <= metrics["accuracy"] <= 1 for metrics in outcome.metrics.values())


def test_a_silo_that_failed_still_holds_the_model_for_its_second_try(
    classify: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error must not hide behind another."""
    settings = classify(method={"name": "fedkc", "floor": 1, "q": 2})
    outcome = run(settings, tmp_path / "run", workers=0)
    host = SiloHost(Runtime(settings, outcome.folder))
    silo, model = host.silo("north"), host.runtime.start.copy()
    assert isinstance(silo.answer(ShareKnowledge(1, model)), Knowledge)
    held = Train(1, no_tensors(), knowledge=KnowledgePart((), model_held=True))
    assert isinstance(silo.answer(replace(held, round=2)), Failure), "not one of another round"
    with monkeypatch.context() as broken:
        broken.setattr(silo.resident, "batches", lambda *_: iter([[None]]))
        with pytest.raises(AttributeError):
            silo.answer(held)
    assert isinstance(silo.answer(held), Update)
    assert isinstance(silo.answer(held), Failure), "and then lets it go"


# ── refused before anything is loaded ─────────────────────────────────────────────────────────────────────────────


def test_a_tree_is_refused(classify: Build) -> None:
    settings = classify()
    below = settings.silos["north"].model_copy(update={"sources": (), "silos": {"n": settings.silos["north"]}})
    with pytest.raises(ConfigError, match="list all silos at the top level of 'silos'"):
        preview(settings.model_copy(update={"silos": settings.silos | {"north": below}}))


@pytest.mark.parametrize("method", ["fedkc", "moon", "fedmix"])
def test_a_task_without_whole_texts_is_refused(federation: Build, method: Any) -> None:
    with pytest.raises(ConfigError, match="use it with 'classify'"):
        preview(federation(method=method))


def test_the_method_in_the_documentation_runs(classify: Build, tmp_path: Path) -> None:
    """A method whose silos share something before they train, in one file, as docs/own-method.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "own-method.md").read_text(encoding="utf-8")
    [code] = re.findall(r'```python title="priors.py"\n(.*?)```', page, re.S)
    (tmp_path / "priors.py").write_text(code)
    outcome = run(
        classify(plugins=[str(tmp_path / "priors.py")], method="priors", rounds=1), tmp_path / "run", workers=0
    )
    [(up, down)] = select(outcome.folder, "select sum(offered), sum(told) from traffic")
    assert (up, down) == (3 * 2 * 4, 3 * 2 * 2 * 4), "two numbers from each of three silos, to two others"
