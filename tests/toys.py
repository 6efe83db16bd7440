"""A model small enough to check by hand: a vector θ pulled towards each batch's targets."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hansa.client.training import MicroBatches, Trained, train
from hansa.config.sections import Training
from hansa.core.batch import Batch
from hansa.core.learner import Learner, Work
from hansa.core.messages import Update
from hansa.core.method import Objective
from hansa.core.tensors import Layout, Tensors


class Point(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(values))


class Pull:
    """F(θ) = ½·‖θ − target‖², so ∇F = θ − target."""

    def loss(self, model: Point, batch: Batch) -> Tensor:
        return 0.5 * (model.theta - batch.targets).square().sum()


def batches(targets: list[list[float]]) -> Iterator[MicroBatches]:
    for target in targets:
        yield [Batch({"x": torch.zeros(1)}, None, torch.tensor(target))]


def local_training(
    start: list[float], targets: list[list[float]], objective: Objective, **settings: object
) -> tuple[Learner, Trained]:
    learner = Learner(Point(start))
    work = Work(learner, learner.state.copy(), 1)
    done = train(work, Pull(), objective, Training(**settings), batches(targets), 1.0)  # type: ignore[arg-type]
    return learner, done


def update(values: list[float], samples: int = 1, loss: float = 0.0, name: str = "w") -> Update:
    gradient = Tensors(Layout((name,), ((len(values),),)), torch.tensor(values))
    return Update(gradient, samples, samples, 1, loss, 0.0)
