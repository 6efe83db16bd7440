"""Yoon et al. (2021): mixup with others' means, expanded to first order in its input."""

from typing import Any

import pytest
import torch
from torch import nn

from hansa.core import representations as inside
from hansa.core.knowledge import Sizes
from hansa.methods.fedmix import Means, MixupLoss, mixed_loss, naive_loss
from tests.classifiers import CLASSES, WIDTH, batch_of, classifier, samples_of, texts_of, work_of

SIZES = Sizes(WIDTH, WIDTH, CLASSES, 12)


def setting() -> Any:
    """A batch, a mean of others' texts, and the functions around them in double precision."""
    learner = classifier()
    learner.model.double()
    batch = batch_of([[3, 4, 5], [6, 7, 8]], [0, 2])
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    label = torch.randn(CLASSES, generator=generator, dtype=torch.float64).softmax(-1)
    return learner.model, batch, others, label


def loss_at(model: Any, batch: Any, shift: Any, mix: Any) -> Any:
    """(1 − λ)·L(f((1 − λ)·x + shift), y)."""
    embedded = inside.embed(model, batch.inputs) * (1 - mix) + shift
    logits = inside.from_embedded(model, embedded, batch.inputs["attention_mask"])
    return (1 - mix) * nn.functional.cross_entropy(logits, batch.targets)


@pytest.mark.parametrize("mix", [0.05, 0.3])
def test_the_loss_is_the_sum_of_its_three_parts(mix: Any) -> None:
    """The third by finite differences, without any automatic derivative."""
    model, batch, others, label = setting()
    x, logits = inside.scaled(model, batch.inputs, 1 - mix)
    found = float(mixed_loss(x, logits, batch.targets, others, label, mix).detach())
    with torch.no_grad():
        step = 1e-5
        slope = (loss_at(model, batch, step * others, mix) - loss_at(model, batch, -step * others, mix)) / (2 * step)
        second = mix * float(-(label * logits.log_softmax(-1)).sum(-1).mean())
        expected = float(loss_at(model, batch, 0.0, mix)) + second + mix * float(slope)
    assert found == pytest.approx(expected, rel=1e-6)


def test_its_gradient_needs_the_second_derivative() -> None:
    """The gradient of the whole, by finite differences in one weight; without double backward L₃ would be missing."""
    model, batch, others, label = setting()
    weight, mix = model.bert.encoder.layer[1].output.dense.weight, 0.4

    def whole() -> Any:
        x, logits = inside.scaled(model, batch.inputs, 1 - mix)
        return mixed_loss(x, logits, batch.targets, others, label, mix)

    [gradient] = torch.autograd.grad(whole(), weight)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight[0, 0] += step
        values.append(float(whole().detach()))
        with torch.no_grad():
            weight[0, 0] -= step
    assert float(gradient[0, 0]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)
    _, logits = inside.scaled(model, batch.inputs, 1 - mix)
    first = (1 - mix) * nn.functional.cross_entropy(logits, batch.targets)
    second = mix * nn.functional.cross_entropy(logits, label.expand_as(logits))
    [without] = torch.autograd.grad(first + second, weight)
    assert float(without[0, 0]) != pytest.approx(float(gradient[0, 0]), rel=1e-2)


def test_without_mixing_it_is_the_task_loss() -> None:
    model, batch, others, label = setting()
    x, logits = inside.scaled(model, batch.inputs, 1.0)
    plain = nn.functional.cross_entropy(model(**batch.inputs).logits, batch.targets)
    found = mixed_loss(x, logits, batch.targets, others, label, 0.0)
    assert float(found.detach()) == pytest.approx(float(plain.detach()), rel=1e-9)


def losses(mix: Any) -> Any:
    """FedMix's loss, NaiveMix's, and FedMix's without its third part."""
    model, batch, others, label = setting()
    x, logits = inside.scaled(model, batch.inputs, 1 - mix)
    _, mixed = inside.scaled(model, batch.inputs, 1 - mix, mix * others)
    whole = mixed_loss(x, logits, batch.targets, others, label, mix)
    flat = mixed_loss(x, logits, batch.targets, torch.zeros_like(others), label, mix)
    return tuple(float(one.detach()) for one in (whole, naive_loss(mixed, batch.targets, label, mix), flat))


def test_naive_mixing_goes_through_the_model_with_the_mixed_input() -> None:
    model, batch, others, label = setting()
    mix = 0.3
    with torch.no_grad():
        embedded = inside.embed(model, batch.inputs) * (1 - mix) + mix * others
        logits = inside.from_embedded(model, embedded, batch.inputs["attention_mask"])
        chances = logits.log_softmax(-1)
        own = -chances[torch.arange(len(batch.targets)), batch.targets].mean()
        expected = (1 - mix) * own - mix * (label * chances).sum(-1).mean()
    assert losses(mix)[1] == pytest.approx(float(expected), rel=1e-9)


def test_it_is_naive_mixing_to_first_order() -> None:
    """A tenth of λ leaves a hundredth of the difference; without the third part a tenth is left."""
    (a, naive, flat), (b, later, lower) = losses(1e-2), losses(1e-3)
    assert abs(b - later) < abs(a - naive) / 50
    assert abs(lower - later) > abs(flat - naive) / 20


def test_means_are_of_so_many_samples_and_of_their_labels() -> None:
    learner, (texts, labels) = classifier(), texts_of(17)
    shared = Means(5, 20).share(work_of(learner), samples_of(texts, labels))
    assert shared.knowledge.members == (5, 5, 5)
    assert len({int(i) for members in shared.samples for i in members}) == 15, "nobody twice"
    for row, members in enumerate(shared.samples):
        counts = torch.bincount(torch.tensor([labels[i] for i in members]), minlength=CLASSES) / 5
        torch.testing.assert_close(shared.knowledge.tensors["labels"][row], counts)
    assert Means(5, 20).check(shared.knowledge, SIZES) == ""
    assert Means(5, 2).share(work_of(learner), samples_of(texts, labels)).knowledge.members == (5, 5)
    assert Means(18, 2).share(work_of(learner), samples_of(texts, labels)).knowledge.members == ()


def test_a_step_uses_what_the_others_shared() -> None:
    learner, (texts, labels) = classifier(), texts_of(10)
    knowledge = Means(5, 20).share(work_of(learner), samples_of(texts, labels)).knowledge
    work, alone = work_of(learner, knowledge), work_of(learner)
    work.batch = alone.batch = batch_of(texts[:4], labels[:4])
    task_loss = nn.functional.cross_entropy(learner.model(**work.batch.inputs).logits, work.batch.targets)
    assert MixupLoss(0.2).loss(alone, lambda: task_loss) is task_loss
    assert float(MixupLoss(0.2).loss(work, pytest.fail).detach()) != pytest.approx(float(task_loss.detach()))
    assert float(MixupLoss(0.2, True).loss(work, pytest.fail).detach()) != pytest.approx(float(task_loss.detach()))
