"""Silos that tell one another what they know: over any link the same, counted, and bad offers go no further."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hansa.client import release_log as record
from hansa.client.runtime import Runtime
from hansa.config.file import parse
from hansa.core import wire
from hansa.core.errors import ConfigError
from hansa.core.exchange import Sizes
from hansa.core.messages import Failure, Knowledge, Scores, ShareKnowledge, Train, Update
from hansa.core.participation import Child, ServerState
from hansa.core.round import federated_round
from hansa.core.tensors import Layout, Tensors
from hansa.links.local import LocalLink
from hansa.methods.fedavg import fedavg
from hansa.methods.fedkc import fedkc
from hansa.preview.preview import preview
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.classifiers import CLASSES, WIDTH, pairs
from tests.conftest import same, weights
from tests.runs.test_determinism import run_over
from tests.toys import update

KC = {"name": "fedkc", "layer": "last", "q": 3, "floor": 1, "alpha": 2.0}


@pytest.fixture
def classify(federation):
    def build(**settings):
        return federation(**{"task": "classify", "method": KC, "tokenizer": {"kind": "bytes"}, "rounds": 2} | settings)

    return build


def answers(link, query):
    ledger = Ledger(link)
    try:
        return ledger.select(query)
    finally:
        ledger.close()


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
    "it told nothing": Knowledge(Tensors.zeros(Layout((), ()))),
    "a Scores instead": Scores({}),
    "gone": Failure("gone"),
}


def one_round(offers):
    """A round of FedKC among nodes whose offers are given; what each was asked is remembered."""
    asked = {name: [] for name in offers}

    def answer(name):
        def reply(request):
            asked[name].append(request)
            return offers[name] if isinstance(request, ShareKnowledge) else update([1.0, -1.0], samples=10)

        return reply

    settings = parse({"silos": dict.fromkeys(offers, "x")})
    moving = ServerState(Tensors(Layout(("w",), ((2,),)), torch.tensor([5.0, 5.0])), {})
    members = {name: Child(10, 10) for name in offers}
    method = fedkc(fedavg(), "last", 2, 1.0, 1)
    sizes = Sizes(WIDTH, WIDTH, CLASSES, 12)
    return federated_round("root", members, LocalLink(answer), method, settings, moving, 0, sizes), asked


def test_everyone_hears_the_others_and_not_itself():
    offers = {
        name: pairs(torch.full((2, WIDTH), v), torch.full((2, CLASSES), 1 / 3))
        for name, v in zip("abc", (1.0, 2.0, 3.0), strict=True)
    }
    _, asked = one_round(offers)
    for name in offers:
        trade, train = asked[name]
        assert isinstance(trade, ShareKnowledge)
        assert isinstance(train, Train)
        heard = [float(offer.knowledge["centroids"][0, 0]) for offer in train.offers]
        assert heard == [float(offers[n].knowledge["centroids"][0, 0]) for n in offers if n != name]


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_offer_goes_no_further_and_the_round_goes_on(reason):
    found, asked = one_round({"bad": BAD[reason], "good": GOOD, "other": GOOD})
    assert reason in found.traded.unheard["bad"]
    assert not found.failed
    assert set(found.updates) == {"bad", "good", "other"}, "whoever made a bad offer still trains"
    assert [len(asked[name][1].offers) for name in ("bad", "good", "other")] == [
        0 if reason == "gone" else 2,
        1,
        1,
    ]
    assert asked["bad"][1].held == (reason != "gone"), "who did not answer is sent the model again"


def test_an_active_set_of_one_trains_alone():
    found, asked = one_round({"only": GOOD})
    assert asked["only"][1].offers == ()
    assert not found.failed


def test_the_model_travels_once():
    found, asked = one_round({"a": GOOD, "b": GOOD})
    trade, train = asked["a"]
    assert wire.payload(train) == wire.payload(GOOD), "the others' offers, and no model"
    assert found.sent["a"] == wire.size(trade) + wire.size(train)
    assert wire.decode(wire.encode(train)).model.layout.names == ()


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_link_does_not_matter(classify, tmp_path):
    settings = classify()
    direct = run_over(settings, tmp_path / "direct", lambda runtime: LocalLink(lambda n: runtime.silo(n).answer))
    wired = run_over(settings, tmp_path / "wired", lambda runtime: LocalLink(lambda n: runtime.silo(n).answer, True))
    pooled = weights(run(settings, tmp_path / "pool", workers=2).folder / "model")
    assert same(direct, wired)
    assert same(direct, pooled)


@pytest.mark.parametrize("layer", ["last", "all"])
def test_the_extra_traffic_is_what_the_paper_says_to_the_byte(classify, tmp_path, layer):
    """2·q·n·(d + k) numbers, or 2·q·n·(T·d + k): q·n pairs go up, and the same q·n pairs come down (each silo gets all
    but its own, so n − 1 silos' worth of them reach it)."""
    q, n, d, k, longest = 3, 3, 128, 2, 16
    outcome = run(classify(rounds=1, method=KC | {"layer": layer}), tmp_path / "run", workers=0)
    pair = 4 * (d + k if layer == "last" else longest * d + k)
    [(up, down)] = answers(outcome.folder, "select sum(offered), sum(told) from traffic")
    assert up == q * n * pair
    assert down == (n - 1) * q * n * pair
    assert up + down / (n - 1) == 2 * q * n * pair
    plain = run(classify(rounds=1, method="fedavg"), tmp_path / "plain", workers=0)
    [(sent, received)] = answers(outcome.folder, "select sum(sent), sum(received) from traffic")
    [(sent_plain, received_plain)] = answers(plain.folder, "select sum(sent), sum(received) from traffic")
    headers = 40_000  # names and layouts, in JSON
    assert 0 < sent - sent_plain - down < headers
    assert 0 < received - received_plain - up < headers


def test_without_weight_it_is_fedavg_bit_for_bit(classify, tmp_path):
    plain = run(classify(method="fedavg"), tmp_path / "plain", workers=0)
    limit = run(classify(method=KC | {"alpha": 0.0}), tmp_path / "limit", workers=0)
    with_it = run(classify(), tmp_path / "with", workers=0)
    assert same(weights(plain.folder / "model"), weights(limit.folder / "model"))
    assert not same(weights(plain.folder / "model"), weights(with_it.folder / "model"))


def test_a_silo_below_the_floor_is_not_heard_and_the_run_says_so(classify, tmp_path):
    outcome = run(classify(rounds=1, method=KC | {"floor": 30}), tmp_path / "run", workers=0)
    events = answers(outcome.folder, "select node, text from events where kind='not heard'")
    assert "east" in dict(events)
    assert "too small" in dict(events)["east"]


def test_what_left_can_be_recorded_with_the_samples_behind_it(classify, tmp_path):
    settings = classify(record={"offers": True, "updates": True})
    outcome = run(settings, tmp_path / "run", workers=0)
    found = list(record.releases(outcome.folder, "offer"))
    assert [(one.silo, one.round) for one in found] == [(s, r) for s in ("east", "north", "south") for r in (1, 2)]
    for one in found:
        assert one.notes["members"] == [len(rows) for rows in one.notes["samples"]]
        assert one.tensors["centroids"].shape == (3, 128)
        assert one.received
    updates = list(record.releases(outcome.folder, "update"))
    assert len(updates) == 6
    assert len(updates[0].notes["samples"]) == 16
    assert updates[0].tensors.keys() == updates[0].received.keys()
    silent = run(classify(), tmp_path / "silent", workers=0)
    assert list(record.releases(silent.folder, "offer")) == []
    assert same(weights(outcome.folder / "model"), weights(silent.folder / "model"))


@pytest.mark.parametrize("method", ["moon", "fedmix", {"name": "fedkc", "layer": "all", "local": "moon", "floor": 1}])
def test_rivals_and_compositions_run(classify, tmp_path, method):
    outcome = run(classify(method=method), tmp_path / "run", workers=0)
    assert all(0 <= metrics["accuracy"] <= 1 for metrics in outcome.metrics.values())


def test_a_silo_that_failed_still_holds_the_model_for_its_second_try(classify, tmp_path, monkeypatch):
    """The first error must not hide behind another."""
    settings = classify(method={"name": "fedkc", "floor": 1, "q": 2})
    outcome = run(settings, tmp_path / "run", workers=0)
    runtime = Runtime(settings, outcome.folder)
    silo, model = runtime.silo("north"), runtime.start.copy()
    assert isinstance(silo.answer(ShareKnowledge(1, model)), Knowledge)
    held = Train(1, Tensors.zeros(Layout((), ())), held=True)
    assert isinstance(silo.answer(replace(held, round=2)), Failure), "not one of another round"
    with monkeypatch.context() as broken:
        broken.setattr(silo, "batches", lambda *_: iter([[None]]))
        with pytest.raises(AttributeError):
            silo.answer(held)
    assert isinstance(silo.answer(held), Update)
    assert isinstance(silo.answer(held), Failure), "and then lets it go"


# ── refused before anything is loaded ─────────────────────────────────────────────────────────────────────────────


def test_a_tree_is_refused(classify):
    settings = classify()
    below = settings.silos["north"].model_copy(update={"sources": (), "silos": {"n": settings.silos["north"]}})
    with pytest.raises(ConfigError, match="directly below 'silos'"):
        preview(settings.model_copy(update={"silos": settings.silos | {"north": below}}))


@pytest.mark.parametrize("method", ["fedkc", "moon", "fedmix"])
def test_a_task_without_whole_texts_is_refused(federation, method):
    with pytest.raises(ConfigError, match="use it with 'classify'"):
        preview(federation(method=method))


def test_the_method_in_the_documentation_runs(classify, tmp_path):
    """A method whose silos talk before they train, in one file, as docs/papers.md has it."""
    page = (Path(__file__).parent.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(# priors.py.*?)```", page, re.S)
    (tmp_path / "priors.py").write_text(code)
    outcome = run(
        classify(plugins=[str(tmp_path / "priors.py")], method="priors", rounds=1), tmp_path / "run", workers=0
    )
    [(up, down)] = answers(outcome.folder, "select sum(offered), sum(told) from traffic")
    assert (up, down) == (3 * 2 * 4, 3 * 2 * 2 * 4), "two numbers from each of three silos, to two others"
