"""FedPer on a tree: key layers move by their node's own steps alone, and never leave it."""

from pathlib import Path
from typing import Any

import numpy as np

from hansa.core.messages import Train, Update
from hansa.methods.fedper import FedPer
from hansa.methods.hierfavg import HierFAVG
from tests.methods.toy_tree import BACKBONE, START, TREE, ToyTree, pushed

KEYS = slice(7, 19)
NAMED = ("block.1", "block.2")


class Paper:
    def __init__(self) -> None:
        self.own = {n: START.copy() for n in ("root", "west", "east", "a", "b", "c", "d")}

    def fit(self, q: Any, backbone: Any, round: int) -> Any:
        model = np.concatenate([backbone, self.own[q][KEYS]])
        model = pushed(q, model, round)
        if q in TREE:
            model[BACKBONE] = np.mean([self.fit(c, model[BACKBONE], round) for c in TREE[q]], axis=0)
        self.own[q] = model
        return model[BACKBONE]


def test_every_model_is_the_second_writings(tmp_path: Path) -> None:
    paper, real = Paper(), ToyTree(tmp_path, FedPer(key_layers=NAMED).build())
    for number in (1, 2, 3):
        paper.fit("root", paper.own["root"][BACKBONE], number)
        assert not real.round().failed
        for name, expected in paper.own.items():
            np.testing.assert_allclose(real.model(name).numpy(), expected, atol=2e-5, err_msg=f"{name}, {number}")


class Recorded(ToyTree):
    """Notes which tensors go to the leaves and come back."""

    def leaf(self, name: str, request: Any) -> Any:
        reply = super().leaf(name, request)
        if isinstance(request, Train) and request.subtree is not None:
            assert isinstance(reply, Update)
            self.seen = [*getattr(self, "seen", []), request.model.layout.names, reply.gradient.layout.names]
        return reply


def test_key_layers_never_leave_their_node(tmp_path: Path) -> None:
    real = Recorded(tmp_path, FedPer(key_layers=NAMED).build())
    real.round()
    assert len(real.seen) == 8
    assert set(real.seen) == {("emb", "h0")}


def test_without_key_layers_it_is_hierfavg(tmp_path: Path) -> None:
    per, hier = (
        ToyTree(tmp_path / "per", FedPer(key_layers=0.0).build()),
        ToyTree(tmp_path / "hier", HierFAVG().build()),
    )
    other = ToyTree(tmp_path / "other", FedPer(key_layers=NAMED).build())
    for real in (per, hier, other):
        real.round()
    assert np.array_equal(per.model("root").numpy(), hier.model("root").numpy())
    assert not np.allclose(other.model("root").numpy(), hier.model("root").numpy())
