"""Wang et al. (2022): clusters become pairs, pairs become a consistency loss."""

from statistics import stdev
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.core import wire
from hansa.core.errors import ConfigError
from hansa.core.knowledge import Sizes
from hansa.core.learner import Learner
from hansa.core.messages import Knowledge
from hansa.core.seeds import torch_seeded
from hansa.methods.fedavg import PlainObjective
from hansa.methods.fedkc import ClusterPairs, ConsistencyLoss
from hansa.methods.fedprox import Proximal
from hansa.methods.moon import ContrastiveLoss, PreviousModel
from tests.classifiers import CLASSES, WIDTH, batch_of, classifier, pairs, samples_of, texts_of, work_of

SIZES = Sizes(WIDTH, WIDTH, CLASSES, 12)


def by_hand(learner: Learner, text: Any) -> Any:
    """One text alone through BERT's own modules: embedding output, pooled output, prediction."""
    ids = torch.tensor([text])
    model: Any = learner.model
    with torch.inference_mode():
        embedded = model.bert.embeddings(ids)
        pooled = model.bert(ids).pooler_output
        return embedded[0], pooled[0], model.classifier(pooled).softmax(-1)[0]


@pytest.mark.parametrize("layer", ["last", "all"])
def test_a_pair_is_the_mean_over_its_members_and_nobody_elses(layer: Any) -> None:
    learner, (texts, labels) = classifier(), texts_of(20)
    shared = ClusterPairs(layer, 3, 1).share(work_of(learner), samples_of(texts, labels))
    assert sorted(i for members in shared.samples for i in members) == list(range(20)), "every sample in one cluster"
    assert shared.knowledge.members == tuple(map(len, shared.samples))
    for row, members in enumerate(shared.samples):
        seen = [by_hand(learner, texts[i]) for i in members]
        prediction = torch.stack([y for *_, y in seen]).mean(0)
        torch.testing.assert_close(shared.knowledge.tensors["predictions"][row], prediction, rtol=1e-4, atol=1e-6)
        centroid = shared.knowledge.tensors["centroids"][row]
        if layer == "last":
            torch.testing.assert_close(centroid, torch.stack([e for _, e, _ in seen]).mean(0), rtol=1e-4, atol=1e-5)
            continue
        longest = max(len(texts[i]) for i in members)
        assert shared.knowledge.lengths[row] == longest
        for position in range(longest):
            there = [e[position] for e, *_ in seen if len(e) > position]
            torch.testing.assert_close(centroid[position], torch.stack(there).mean(0), rtol=1e-4, atol=1e-5)
        assert not centroid[longest:].any(), "nothing where no member has a token"


def test_clusters_are_k_means_clusters() -> None:
    """Each pooled output lies nearest to the mean of its own cluster (Lloyd's fixed point)."""
    learner, (texts, labels) = classifier(), texts_of(30)
    shared = ClusterPairs("last", 4, 1).share(work_of(learner), samples_of(texts, labels))
    pooled = np.stack([by_hand(learner, text)[1].numpy() for text in texts])
    means = np.stack([pooled[members].mean(0) for members in shared.samples])
    nearest = ((pooled[:, None] - means) ** 2).sum(-1).argmin(1)
    assert all(nearest[i] == row for row, members in enumerate(shared.samples) for i in members)


def test_without_k_means_there_is_one_pair_of_everything() -> None:
    shared = ClusterPairs("last", 1, 1).share(work_of(classifier()), samples_of(*texts_of(9)))
    assert shared.knowledge.members == (9,)


def test_small_clusters_are_withheld() -> None:
    learner, data = classifier(), texts_of(20)
    everything = ClusterPairs("last", 6, 1).share(work_of(learner), samples_of(*data)).knowledge
    floored = ClusterPairs("last", 6, 4).share(work_of(learner), samples_of(*data)).knowledge
    assert floored.members == tuple(n for n in everything.members if n >= 4)
    assert floored.withheld == sum(n < 4 for n in everything.members) > 0
    nothing = ClusterPairs("last", 6, 99).share(work_of(learner), samples_of(*data)).knowledge
    assert (nothing.members, nothing.withheld) == ((), len(everything.members))


def test_fewer_samples_than_clusters_one_class_and_equal_texts_still_make_offers() -> None:
    learner = classifier()
    few = ClusterPairs("all", 10, 1).share(work_of(learner), samples_of([[3, 4], [5]], [0, 0]))
    assert few.knowledge.members == (1, 1)
    equal = ClusterPairs("last", 10, 1).share(work_of(learner), samples_of([[3, 4]] * 5, [1] * 5))
    assert sum(equal.knowledge.members) == 5


@pytest.mark.parametrize(("layer", "texts"), [("last", 20), ("all", 20)])
def test_the_same_seed_gives_the_same_offer(layer: Any, texts: Any) -> None:
    knowledge = [
        ClusterPairs(layer, 3, 1).share(work_of(classifier()), samples_of(*texts_of(texts))).knowledge for _ in "ab"
    ]
    assert wire.equal(*knowledge)


# ── Equation 8 ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_loss_is_the_cross_entropy_of_mean_prediction_and_ours_on_the_last_layers_centroid() -> None:
    learner, generator = classifier(), torch.Generator().manual_seed(3)
    centroids = torch.randn(5, WIDTH, generator=generator)
    told = torch.randn(5, CLASSES, generator=generator).softmax(-1)
    work = work_of(learner, pairs(centroids[:2], told[:2]), pairs(centroids[2:], told[2:]))
    head: Any = learner.model.classifier
    ours = (centroids @ head.weight.T + head.bias).softmax(-1).detach()
    expected = -sum(float((y * p.log()).sum()) for y, p in zip(told, ours, strict=True)) / 5
    task_loss = torch.tensor(0.25)
    loss = ConsistencyLoss(PlainObjective(), 2.0, "last").loss(work, lambda: task_loss).detach()
    assert float(loss) == pytest.approx(0.25 + 2.0 * expected)


def test_a_centroid_of_one_text_goes_through_every_block_as_the_text_itself() -> None:
    """All layers: with clusters of one, f(e) is the model's own prediction, padding or not."""
    learner, (texts, labels) = classifier(), texts_of(6)
    shared = ClusterPairs("all", 6, 1).share(work_of(learner), samples_of(texts, labels))
    with torch.inference_mode():
        loss = ConsistencyLoss(PlainObjective(), 1.0, "all").consistency(work_of(learner, shared.knowledge))
    entropies = [-(y * y.log()).sum() for *_, y in (by_hand(learner, text) for text in texts)]
    assert float(loss) == pytest.approx(float(torch.stack(entropies).mean()), rel=1e-4)


def moved_by(layer: Any, knowledge: Any) -> Any:
    """Which parameters the consistency loss alone moves."""
    learner = classifier(seed=1)
    learner.grad.zero_()
    ConsistencyLoss(PlainObjective(), 1.0, layer).consistency(work_of(learner, knowledge)).backward()  # type: ignore[no-untyped-call]
    return {name for name, span in learner.layout.spans.items() if learner.grad[span].abs().sum() > 0}


def test_last_moves_the_head_and_all_moves_every_block_but_no_embedding() -> None:
    data = texts_of(8)
    knowledge = {
        layer: ClusterPairs(layer, 3, 1).share(work_of(classifier()), samples_of(*data)).knowledge
        for layer in ("last", "all")
    }
    assert moved_by("last", knowledge["last"]) == {"classifier.weight", "classifier.bias"}
    moved = moved_by("all", knowledge["all"])
    assert {"bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.1.output.dense.weight"} <= moved
    assert not any("embeddings" in name for name in moved)


def test_without_offers_or_weight_it_is_the_local_objective() -> None:
    learner, task_loss = classifier(), torch.tensor(1.0, requires_grad=True)
    knowledge = ClusterPairs("last", 2, 1).share(work_of(learner), samples_of(*texts_of(8))).knowledge
    assert ConsistencyLoss(PlainObjective(), 3.0, "last").loss(work_of(learner), lambda: task_loss) is task_loss
    assert (
        ConsistencyLoss(PlainObjective(), 0.0, "last").loss(work_of(learner, knowledge), lambda: task_loss) is task_loss
    )


def test_the_loss_pulls_towards_the_sender() -> None:
    """Steps on the consistency loss bring our predictions on the centroids to those of the sender; α < 0 would not."""
    knowledge = ClusterPairs("all", 3, 1).share(work_of(classifier()), samples_of(*texts_of(12))).knowledge
    learner, objective = classifier(seed=1), ConsistencyLoss(PlainObjective(), 1.0, "all")
    work = work_of(learner, knowledge)
    losses = []
    for _ in range(30):
        learner.grad.zero_()
        loss = objective.consistency(work)
        torch.autograd.backward(loss)
        learner.flat.sub_(learner.grad, alpha=0.5)
        losses.append(float(loss.detach()))
    given = knowledge.tensors["predictions"]
    least = float(-(given * given.log()).sum(1).mean())  # the sender's own entropy: no prediction does better
    assert losses[-1] - least < 0.1 * (losses[0] - least)


# ── traffic ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layer", ["last", "all"])
def test_a_pair_has_as_many_numbers_as_the_paper_says(layer: Any) -> None:
    texts, labels = texts_of(20)
    texts[0] = [1] * 9
    knowledge = ClusterPairs(layer, 4, 1).share(work_of(classifier()), samples_of(texts, labels)).knowledge
    numbers = WIDTH + CLASSES if layer == "last" else 9 * WIDTH + CLASSES
    assert wire.payload(knowledge) == 4 * 4 * numbers


# ── flaws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def even(rows: Any = 2) -> Any:
    return torch.full((rows, CLASSES), 1 / CLASSES)


BAD: dict[str, tuple[Any, Knowledge]] = {
    "width must be 8": ("last", pairs(torch.zeros(2, WIDTH - 1), even())),
    "the shape [2, 8, 8]": ("last", pairs(torch.zeros(2, 8, 8), even())),
    "there are 3 classes": ("last", pairs(torch.zeros(2, WIDTH), torch.full((2, 2), 0.5))),
    "not distributions": ("last", pairs(torch.zeros(2, WIDTH), 2 * even())),
    "not distributions: ": ("last", pairs(torch.zeros(2, WIDTH), torch.tensor([[1.5, -0.5, 0.0]] * 2))),
    "positions": ("all", pairs(torch.zeros(2, 5, WIDTH), even(), (5, 6))),
    "positions ": ("all", pairs(torch.zeros(2, 5, WIDTH), even(), ())),
    "positions, ": ("all", pairs(torch.zeros(2, 13, WIDTH), even(), (13, 13))),
    "nothing instead of": ("last", Knowledge(pairs(torch.zeros(0, 0), even(0)).tensors.only(()), (1,))),
}


@pytest.mark.parametrize("reason", BAD)
def test_an_offer_that_makes_no_sense_is_refused_with_a_reason(reason: str) -> None:
    layer, knowledge = BAD[reason]
    assert reason.strip(": ,") in ClusterPairs(layer, 2, 1).check(knowledge, SIZES)


def test_a_good_offer_has_no_flaw() -> None:
    for layer in ("last", "all"):
        exchange = ClusterPairs(layer, 3, 1)
        assert exchange.check(exchange.share(work_of(classifier()), samples_of(*texts_of(9))).knowledge, SIZES) == ""


# ── composition ───────────────────────────────────────────────────────────────────────────────────────────────────


def method(**settings: Any) -> Any:
    return build_method(
        parse({"silos": {"a": "a", "b": "b"}, "task": "classify", "method": {"name": "fedkc"} | settings})
    )


def test_it_composes_with_any_local_objective_and_server() -> None:
    assert method(local={"name": "fedprox", "mu": 0.5}).objective.local == Proximal(0.5)
    assert method(local="moon").objective.local == ContrastiveLoss(1.0, 0.5)
    assert type(method(local="fedadam").server).__name__ == "Adaptive"
    assert method(kmeans=False).exchange == ClusterPairs("all", 1, 20)
    assert method(layer="last", q=5).exchange == ClusterPairs("last", 5, 2)


@pytest.mark.parametrize(
    ("local", "reason"),
    [
        ("fedmix", "an exchange of its own"),
        ("fedkc", "an exchange of its own"),
        ("fedbuff", "train at the same time"),
        ("chained", "train at the same time"),
        ("worldlm", "works on trees"),
        ("hierfavg", "works on trees"),
        ("alone", "shares no model"),
        ("nothing", "is not known"),
    ],
)
def test_what_cannot_be_composed_is_refused_with_a_reason(local: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        method(local=local)


def test_the_local_objective_still_has_its_say() -> None:
    learner, knowledge = classifier(), pairs(torch.zeros(1, WIDTH), even(1))
    work = work_of(learner, knowledge)
    learner.flat.add_(1.0)
    learner.grad.zero_()
    ConsistencyLoss(Proximal(0.5), 1.0, "last").gradient(work)
    torch.testing.assert_close(learner.grad, torch.full_like(learner.grad, 0.5), rtol=1e-4, atol=1e-4)
    assert isinstance(ConsistencyLoss(ContrastiveLoss(1.0, 0.5), 1.0, "last").finish(work), PreviousModel)


def test_dropping_the_mask_would_show() -> None:
    """The negative control of the mask: a padded centroid and its bare self must give the same loss."""
    learner, text = classifier(), [3, 9, 4]
    embedded, _, y = by_hand(learner, text)
    padded = torch.cat([embedded, torch.ones(4, WIDTH)])
    with torch.inference_mode():
        losses = [
            float(
                ConsistencyLoss(PlainObjective(), 1.0, "all").consistency(
                    work_of(learner, pairs(e[None], y[None], (n,)))
                )
            )
            for e, n in ((embedded, 3), (padded, 3), (padded, 7))
        ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[2], rel=1e-3)


def test_task_loss_is_not_changed_by_looking() -> None:
    learner, (texts, labels) = classifier(), texts_of(6)
    batch = batch_of(texts, labels)
    before = nn.functional.cross_entropy(learner.model(**batch.inputs).logits, batch.targets)
    ClusterPairs("all", 2, 1).share(work_of(learner), samples_of(texts, labels))
    after = nn.functional.cross_entropy(learner.model(**batch.inputs).logits, batch.targets)
    assert torch.equal(before, after), "no hook is left behind"


@pytest.mark.parametrize("layer", ["last", "all"])
def test_some_of_the_pairs_are_all_of_them_on_average(layer: Any) -> None:
    learner, (texts, labels) = classifier(), texts_of(24)
    knowledge = ClusterPairs(layer, 6, 1).share(work_of(learner), samples_of(texts, labels)).knowledge
    whole = float(ConsistencyLoss(PlainObjective(), 1.0, layer).consistency(work_of(learner, knowledge)).detach())
    assert (
        float(ConsistencyLoss(PlainObjective(), 1.0, layer, 6).consistency(work_of(learner, knowledge)).detach())
        == whole
    )
    some, work = ConsistencyLoss(PlainObjective(), 1.0, layer, 2), work_of(learner, knowledge)
    with torch_seeded(0, "pairs"):
        drawn = [float(some.consistency(work).detach()) for _ in range(300)]
    assert len(set(drawn)) > 5, "others at every step"
    assert sum(drawn) / 300 == pytest.approx(whole, abs=4 * stdev(drawn) / 300**0.5)
    with torch_seeded(0, "pairs"):
        assert [float(some.consistency(work).detach()) for _ in range(3)] == drawn[:3], "the same wherever it runs"
