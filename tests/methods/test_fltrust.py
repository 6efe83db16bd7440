"""Trust: honest children pass untouched, liars are left out with a reason, and a node needs something to go by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.link import Answer
from hansa.core.messages import Failure, Update
from hansa.core.tensors import Tensors
from hansa.methods.fltrust import TrustFilter
from hansa.runs.run import run
from tests.conftest import Build
from tests.core.trees import select, tree  # noqa: F401
from tests.methods.toy_tree import LAYOUT

COMMON = np.random.default_rng(0).normal(size=19)


def move(times: float = 1.0, seed: int = 1) -> Tensors:
    """A step in the common direction, more or less."""
    rng = np.random.default_rng(seed)
    return Tensors(LAYOUT, torch.tensor(times * (COMMON + 0.7 * rng.normal(size=19)), dtype=torch.float32))


def answers(**moves: Tensors) -> list[Answer]:
    return [Answer(name, Update(gradient, 1, 1, 1, 0.0, 0.0)) for name, gradient in moves.items()]


def sift(given: Any, own: Any = None, counts: Any = False, keys: Any = (), **settings: Any) -> dict[str, str]:
    """Who is left out, and why."""
    probe = answers(here=own) if own is not None else []
    sifted = list(TrustFilter(**settings).sift(iter([*probe, *given]), "here", counts, keys))
    assert [a.node for a in sifted] == [a.node for a in given], "in the order in which they came, the probe apart"
    return {a.node: a.reply.reason for a in sifted if isinstance(a.reply, Failure)}


def test_by_keys_only_the_lengths_of_key_layers_are_looked_at() -> None:
    name = LAYOUT.names[-1]
    long, others, turned = move(seed=2), move(100.0, seed=2), move(-1.0, seed=2)
    long[name].mul_(100.0)
    others[name].div_(100.0)
    assert list(sift(answers(a=move(seed=1), b=long), move(seed=3), keys=[name], by="keys")) == ["b"]
    assert not sift(answers(a=move(seed=1), b=others), move(seed=3), keys=[name], by="keys")
    assert list(sift(answers(a=move(seed=1), b=others), move(seed=3), keys=[name])) == ["b"]
    assert not sift(answers(a=move(seed=1), b=turned), move(seed=3), keys=[name], by="keys"), "it may be its own past"
    assert list(sift(answers(a=move(seed=1), b=turned), move(seed=3), keys=[name])) == ["b"]


def test_honest_children_pass_untouched() -> None:
    given = answers(a=move(seed=1), b=move(seed=2))
    sifted = list(TrustFilter().sift(iter([*given, *answers(here=move(seed=3))]), "here", False))
    for x, y in zip(sifted, given, strict=True):
        assert isinstance(x.reply, Update)
        assert isinstance(y.reply, Update)
        assert x.reply.gradient.same_bits(y.reply.gradient)


@pytest.mark.parametrize(("times", "reason"), [(-1.0, "points away"), (100.0, "times as long"), (-100.0, "as long")])
def test_of_two_children_the_liar_is_known_by_the_nodes_own_steps(times: Any, reason: str) -> None:
    found = sift(answers(a=move(seed=1), b=move(times, seed=2)), move(seed=3))
    assert list(found) == ["b"]
    assert reason in found["b"]
    assert not sift(answers(a=move(seed=1), b=move(times, seed=2)), move(seed=3), cosine=-1.1, bound=1e6)


@given(st.integers(0, 10_000), st.floats(-8.0, 8.0))
def test_the_rule_is_its_formula(seed: int, times: Any) -> None:
    own, child = move(seed=seed), move(times, seed=seed + 1)
    a, b = own.flat.double().numpy(), child.flat.double().numpy()
    longer, cosine = np.linalg.norm(b) / np.linalg.norm(a), a @ b / max(1e-8, np.linalg.norm(a) * np.linalg.norm(b))
    if abs(longer - 4.0) > 1e-3 and abs(cosine) > 1e-4:
        assert bool(sift(answers(c=child), own)) == bool(longer > 4.0 or cosine < 0.0)


def test_without_data_of_its_own_a_node_goes_by_the_others() -> None:
    three = answers(a=move(seed=1), b=move(-1.0, seed=2), c=move(seed=3))
    assert list(sift(three)) == ["b"]
    assert not sift(answers(a=move(seed=1), b=move(-1.0, seed=2))), "of two, nobody knows who lies"
    assert list(sift(answers(a=move(seed=1), b=move(100.0, seed=2), c=move(seed=3)))) == ["b"]


def test_beside_its_children_the_node_itself_is_trusted() -> None:
    both = answers(here=move(-1.0, seed=1), a=move(seed=2), b=move(-1.0, seed=3))
    assert list(sift(both, counts=True)) == ["a"]


def test_on_a_tree_the_liar_is_left_out_and_named(tree: Build, tmp_path: Path) -> None:  # noqa: F811
    lie = {"poison": {"south": {"kind": "scale", "factor": 100}}}
    method = {"name": "worldlm", "filter": {}}
    for name, settings in {"filtered": {"method": method}, "open": {}}.items():
        run(tree(simulate=lie, rounds=1, **settings), tmp_path / name, workers=0)
    lost = select(tmp_path / "filtered", "select node, text from events where kind='lost'")
    assert [node for node, _ in lost] == ["south"]
    assert "times as long as usual here" in lost[0][1]
    assert not select(tmp_path / "open", "select 1 from events where kind='lost'")
