"""McMahan et al. (2017): θ ← Σ (Nᵢ/N)·θᵢ."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.tensors import Tensors
from hansa.methods.fedavg import BySamples, Mean, ServerSgd, fedavg
from tests.toys import update

LAYOUT = update([0.0, 0.0, 0.0]).gradient.layout


def step(updates: Any, weighting: Any = None) -> Any:
    weighting = weighting or BySamples()
    model = Tensors(LAYOUT, torch.tensor([1.0, -2.0, 3.0]))
    gradient = Mean().combine(LAYOUT, ((u, weighting.weight(u)) for u in updates))
    ServerSgd().step(model, gradient, None, 1, 1.0)
    return model.flat.numpy()


def test_one_silo_alone_gets_its_own_model() -> None:
    np.testing.assert_array_equal(step([update([0.5, 0.25, -1.0], 7)]), [0.5, -2.25, 4.0])


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3), st.integers(1, 10_000)),
        min_size=1,
        max_size=8,
    )
)
def test_it_is_the_weighted_mean_of_the_silos_models(silos: Any) -> None:
    theta = np.array([1.0, -2.0, 3.0])
    models = [theta - np.array(g) for g, _ in silos]
    expected = np.average(models, axis=0, weights=[n for _, n in silos])
    np.testing.assert_allclose(step([update(g, n) for g, n in silos]), expected, rtol=1e-4, atol=1e-4)


def test_uniform_weights_are_another_result() -> None:
    silos = [update([1.0, 0, 0], 90), update([-1.0, 0, 0], 10)]
    assert step(silos)[0] == pytest.approx(1.0 - 0.8)
    assert step(silos, BySamples(0.0))[0] == pytest.approx(1.0)


def test_temperature_lies_between_size_and_equality() -> None:
    small, large = update([0.0, 0, 0], 1), update([0.0, 0, 0], 100)
    ratio = BySamples(0.5).weight(large) / BySamples(0.5).weight(small)
    assert ratio == pytest.approx(10.0)


def test_tensors_are_averaged_over_those_that_sent_them() -> None:
    from hansa.core.tensors import Layout

    both = Layout(("a", "b"), ((2,), (1,)))
    all_of_it = Tensors(both, torch.tensor([2.0, 2.0, 6.0]))
    only_a = Tensors(both.only(["a"]), torch.tensor([4.0, 0.0]))
    from hansa.core.messages import Update

    updates = [Update(t, 1, 1, 1, 0.0, 0.0) for t in (all_of_it, only_a)]
    mean = Mean().combine(both, ((u, 1.0) for u in updates))
    np.testing.assert_array_equal(mean.flat.numpy(), [3.0, 1.0, 6.0])


def test_the_method_names_itself() -> None:
    assert fedavg().name == "fedavg"
    assert fedavg().aggregator.linear
