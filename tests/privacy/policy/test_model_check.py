"""Which models a silo accepts: one per round, with the start's tensors, close to the last one and to the start."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.core.messages import AdvertiseKeys, Evaluate, Personalise, Train
from hansa.core.tensors import Layout, Tensors
from hansa.privacy.policy.limits import Limits
from hansa.privacy.policy.model_check import ModelHistory, ModelJudgement, largest_distance, received_models
from hansa.privacy.secure_aggregation.announcement import model_digest

LAYOUT = Layout(("embeddings.w", "block.w", "head.w"), ((40,), (30, 2), (4,)))
LIMITS = Limits(max_model_step=0.5, max_model_drift=1.0)


def part_of(name: str) -> str:
    return name.split(".")[0]


def model(seed: int = 0, scale: float = 1.0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return Tensors(LAYOUT, scale * torch.randn(LAYOUT.size, generator=generator))


START = model()


def moved(base: Tensors, step: float, part: str = "block") -> Tensors:
    """A model whose one part lies ``step`` times its norm away."""
    found = base.copy()
    for name, values in found.named().items():
        if part_of(name) == part:
            direction = torch.ones_like(values)
            values.add_(direction * (step * values.norm() / direction.norm()))
    return found


def history(folder: Path, one_model: bool = True) -> ModelHistory:
    return ModelHistory(folder, lambda: START, part_of, one_model)


def judged(held: ModelHistory, request: Train | Evaluate | Personalise | AdvertiseKeys) -> ModelJudgement:
    return held.judge(request, received_models(request), LIMITS)


def test_the_first_round_starts_from_the_approved_start(tmp_path: Path) -> None:
    assert not judged(history(tmp_path), Train(1, START)).refusal
    assert (
        "approved start" in judged(history(tmp_path / "b"), Train(1, moved(START, 0.01))).refusal
        or judged(history(tmp_path / "c"), Train(1, moved(START, 0.01))).refusal
    )


@given(step=st.floats(0.01, 3.0), part=st.sampled_from(["embeddings", "block", "head"]))
def test_distances_are_measured_per_part(step: float, part: str) -> None:
    found, distance = largest_distance(moved(START, step, part), START, part_of)
    assert found == part
    assert distance == pytest.approx(step, rel=1e-3)


def test_a_model_beyond_the_step_or_the_drift_is_refused(tmp_path: Path) -> None:
    held = history(tmp_path)
    assert not judged(held, Train(1, START)).refusal
    assert "max_model_step" in judged(held, Train(2, moved(START, 0.6))).refusal
    near = moved(START, 0.4)
    accepted = judged(held, Train(2, near))
    assert not accepted.refusal
    assert accepted.figures["step"] == pytest.approx(0.4, abs=1e-3)
    assert accepted.figures["drift_part"] == "block"
    further = moved(near, 0.4)
    assert not judged(held, Train(3, further)).refusal
    assert "max_model_drift" in judged(held, Train(4, moved(further, 0.3))).refusal, "small steps do not lead away"


def test_there_is_one_model_for_each_round_also_after_a_restart(tmp_path: Path) -> None:
    held = history(tmp_path)
    after = moved(START, 0.1)
    assert not judged(held, Train(1, START)).refusal
    assert not judged(held, Evaluate(1, after)).refusal
    assert not judged(held, Train(2, after)).refusal, "the model that was scored is the one that is trained"
    for again in (held, history(tmp_path)):
        assert "another model for round 1" in judged(again, Train(2, moved(START, 0.11))).refusal
        assert "another model for round 1" in judged(again, Evaluate(1, moved(START, 0.11))).refusal
        assert not judged(again, Evaluate(1, after)).refusal
    assert "announces another model" in judged(held, AdvertiseKeys(2, "0" * 64)).refusal
    assert not judged(held, AdvertiseKeys(2, model_digest(after))).refusal


def test_the_last_model_survives_a_restart(tmp_path: Path) -> None:
    held = history(tmp_path)
    judged(held, Train(1, START))
    judged(held, Train(2, moved(START, 0.4)))
    again = history(tmp_path)
    assert "max_model_step" in judged(again, Train(3, moved(START, -0.3))).refusal, "0.7 from the last model"


def test_where_scores_are_of_other_models_each_purpose_has_one_per_round(tmp_path: Path) -> None:
    held = history(tmp_path, one_model=False)
    assert not judged(held, Train(2, moved(START, 0.1))).refusal
    assert not judged(held, Evaluate(1, moved(START, 0.12))).refusal, "on a tree, the root's model"
    assert judged(held, Evaluate(1, moved(START, 0.13))).refusal


def test_foreign_tensors_and_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    held = history(tmp_path)
    judged(held, Train(1, START))
    other = Tensors(Layout(("trap.w",), ((4,),)), torch.zeros(4))
    assert "which the approved start lacks" in judged(held, Train(2, other)).refusal
    shaped = Tensors(Layout(("head.w",), ((5,),)), torch.zeros(5))
    assert "which the approved start lacks" in judged(held, Train(2, shaped)).refusal
    broken = START.copy()
    broken.flat[0] = float("nan")
    assert "not finite" in judged(held, Train(2, broken)).refusal


def test_a_new_head_of_zeros_may_be_trained(tmp_path: Path) -> None:
    """Relative to a norm of zero every step would be infinite."""
    zero = START.copy()
    zero["head.w"].zero_()
    held = ModelHistory(tmp_path, lambda: zero, part_of)
    after = zero.copy()
    after["head.w"].fill_(0.009)
    assert not judged(held, Train(2, after)).refusal


def test_a_personal_model_starts_from_a_model_that_a_round_announced(tmp_path: Path) -> None:
    held = history(tmp_path)
    after = moved(START, 0.1)
    judged(held, Train(1, START))
    judged(held, Evaluate(1, after))
    assert not judged(held, Personalise(1, after, START, "personal")).refusal
    assert not judged(held, Personalise(1, after, moved(after, 0.1), "nearby")).refusal, "a mixture with neighbours"
    assert judged(held, Personalise(1, after, moved(START, 5.0), "personal")).refusal
