"""Li et al. (2021): closer to the global model's representation than to the silo's last one."""

import math
from typing import Any

import pytest
import torch

from hansa.core import representations as inside
from hansa.methods.moon import ContrastiveLoss, PreviousModel, contrast
from tests.classifiers import batch_of, classifier, texts_of, work_of


def cosine(a: Any, b: Any) -> Any:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def reference(z: Any, z_glob: Any, z_prev: Any, tau: Any) -> Any:
    """Equation 3, one text after the other, in plain Python."""
    total = 0.0
    for a, g, p in zip(z.tolist(), z_glob.tolist(), z_prev.tolist(), strict=True):
        near, far = math.exp(cosine(a, g) / tau), math.exp(cosine(a, p) / tau)
        total -= math.log(near / (near + far))
    return total / len(z)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_the_term_is_equation_3(tau: Any) -> None:
    z, g, p = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
    assert float(contrast(z, g, p, tau)) == pytest.approx(reference(z, g, p, tau), rel=1e-5)


def task_loss_of(work: Any, extra: Any = 0.0) -> Any:
    """The model runs once, as in training: its representations come from that."""
    return lambda: 0.0 * work.learner.model(**work.batch.inputs).logits.sum() + extra


def prepared(state: Any = True) -> Any:
    learner, other, previous = classifier(), classifier(seed=1), classifier(seed=2)
    work = work_of(learner)
    work.received, work.batch = other.state.copy(), batch_of(*texts_of(5))
    if state:
        work.state = PreviousModel(previous.state.copy())
    return work, other, previous


def test_the_three_representations_are_those_of_the_three_models() -> None:
    work, other, previous = prepared()
    learners = (work.learner, other, previous)
    seen = [inside.represent(learner.model, work.batch.inputs)[0].detach() for learner in learners]
    z, z_glob, z_prev = seen
    loss = ContrastiveLoss(3.0, 0.5).loss(work, task_loss_of(work, 0.5)).detach()
    assert float(loss) == pytest.approx(0.5 + 3.0 * reference(z, z_glob, z_prev, 0.5), rel=1e-4)


def test_the_references_are_computed_without_dropout() -> None:
    work, other, _ = prepared()
    model = work.learner.model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    seen = [inside.represent_with(model, other.state.named(), work.batch.inputs)[0] for _ in range(2)]
    assert torch.equal(*seen)
    assert model.training, "the model goes on training as before"
    assert all(module.training for module in model.modules())
    control = [inside.watched(model, work.batch.inputs, task_loss_of(work))[0] for _ in range(2)]
    assert not torch.equal(*control), "negative control: the model in training has dropout"


def test_gradients_reach_the_model_in_training_alone() -> None:
    work, other, _ = prepared()
    work.learner.grad.zero_()
    before = work.received.flat.clone()
    torch.autograd.backward(ContrastiveLoss(1.0, 0.5).loss(work, task_loss_of(work)))
    assert work.learner.grad.abs().sum() > 0
    assert torch.equal(work.received.flat, before)
    assert not other.grad.any()


def test_in_the_first_round_there_is_no_term() -> None:
    work, *_ = prepared(state=False)
    task_loss = torch.tensor(0.5)
    assert ContrastiveLoss(1.0, 0.5).loss(work, lambda: task_loss) is task_loss


def test_without_weight_it_is_the_task_loss() -> None:
    work, *_ = prepared()
    assert float(ContrastiveLoss(0.0, 0.5).loss(work, task_loss_of(work, 0.5)).detach()) == 0.5


def test_a_step_moves_towards_the_global_and_away_from_the_previous() -> None:
    """The negative control: with the two exchanged the step goes the other way."""
    work, *_ = prepared()

    def pull(model: Any) -> Any:
        z, _ = inside.represent(model, work.batch.inputs)
        with torch.no_grad():
            g = inside.represent_with(model, work.received.named(), work.batch.inputs)
        return float(torch.nn.functional.cosine_similarity(z, g).mean().detach())

    before = pull(work.learner.model)
    work.learner.grad.zero_()
    torch.autograd.backward(ContrastiveLoss(1.0, 0.5).loss(work, task_loss_of(work)))
    work.learner.flat.sub_(work.learner.grad, alpha=0.05)
    assert pull(work.learner.model) > before


def test_the_model_is_kept_for_the_next_round() -> None:
    work, *_ = prepared()
    kept = ContrastiveLoss(1.0, 0.5).finish(work).model.flat
    work.learner.flat.zero_()
    assert kept.any(), "a copy"
