"""HierFAVG: the mean of means, whatever the tree; flat, it is FedAvg to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hansa.methods.fedopt import Momentum
from hansa.methods.hierfavg import HierFAVG
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.methods.toy_tree import START, TREE, ToyTree, pushed


class Paper:
    """A second writing: every node's own model, with a server rate and momentum at every level."""

    def __init__(self, lr: Any = 1.0, mu: Any = 0.0) -> None:
        self.lr, self.mu = lr, mu
        self.own: dict[str, Any] = {}
        self.momentum = {name: np.zeros(19) for name in TREE}

    def fit(self, q: Any, model: Any, round: int) -> Any:
        model = pushed(q, model, round)
        if q in TREE:
            gradient = np.mean([model - self.fit(c, model, round) for c in TREE[q]], axis=0)
            self.momentum[q] = self.mu * self.momentum[q] + gradient
            model = model - self.lr * self.momentum[q]
        self.own[q] = model
        return model


@pytest.mark.parametrize(("lr", "mu"), [(1.0, 0.0), (0.2, 0.9)])
def test_every_model_is_the_second_writings(tmp_path: Path, lr: Any, mu: Any) -> None:
    paper, global_model = Paper(lr, mu), START
    real = ToyTree(tmp_path, replace(HierFAVG().build(), server=Momentum(lr, mu)))
    for number in (1, 2, 3):
        global_model = paper.fit("root", global_model, number)
        assert not real.round().failed
        for name, expected in paper.own.items():
            np.testing.assert_allclose(real.model(name).numpy(), expected, atol=2e-5, err_msg=f"{name}, {number}")


def test_flat_it_is_fedavg_to_the_bit(federation: Build, tmp_path: Path) -> None:
    one, other, control = (
        run(federation(method=method, rounds=2), tmp_path / name, workers=0)
        for name, method in (("hier", "hierfavg"), ("flat", "fedavg"), ("worldlm", "worldlm"))
    )
    assert same(weights(one.folder / "model"), weights(other.folder / "model"))
    assert not same(weights(one.folder / "model"), weights(control.folder / "model"))
