"""Precision, gradient checkpointing and compilation: the same learning, computed otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hansa.client.modes import blocks, training_mode
from hansa.client.training import train
from hansa.config.checks import check_settings
from hansa.config.sections import Training
from hansa.core.errors import ConfigError
from hansa.core.learner import Learner, Work
from hansa.methods.fedavg import PlainObjective
from hansa.runs.run import run
from hansa.tasks.causal_lm import CausalLM
from tests.client.test_packing import batch_of, build
from tests.conftest import Build, same, weights
from tests.toys import Point

TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [20, 21, 22, 23]]


def trained(model: Any = None, steps: int = 3, **settings: Any) -> Learner:
    learner = Learner(model or build("llama"))
    work = Work(learner, learner.state.copy(), 1)
    batches = iter([[batch_of(TEXTS)]] * steps)
    train(work, CausalLM(), PlainObjective(), Training(lr=0.5, **settings), batches, 1.0)
    return learner


class Seen(nn.Module):
    """Notes the type of what a block computes, and how often."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.types: list[torch.dtype] = []
        block.mlp.gate_proj.register_forward_hook(lambda _m, _i, out: self.types.append(out.dtype))  # type: ignore[union-attr]


def test_bfloat16_computes_in_half_and_keeps_float32() -> None:
    model = build("llama")
    seen = Seen(model.model.layers[0])
    half, whole = trained(model, precision="bf16"), trained()
    assert {*seen.types} == {torch.bfloat16}
    assert half.flat.dtype == half.grad.dtype == torch.float32
    assert not torch.equal(half.flat, whole.flat), "it was rounded on the way"
    start = Learner(build("llama")).flat
    moved, exact = half.flat - start, whole.flat - start
    assert float((moved - exact).norm() / exact.norm()) < 0.02


def test_steps_below_the_precision_of_bfloat16_are_not_lost() -> None:
    start, after = Learner(build("llama")).flat, trained(precision="bf16", clip=1e-4).flat
    assert not torch.equal(after, start)
    assert float((after.bfloat16() == start.bfloat16()).float().mean()) > 0.9, "values in bfloat16 would stay"


def test_checkpointing_computes_activations_twice_and_learns_the_same() -> None:
    model, plain = build("llama"), build("llama")
    counts = Seen(model.model.layers[0]), Seen(plain.model.layers[0])
    one, other = trained(model, gradient_checkpointing=True), trained(plain)
    torch.testing.assert_close(one.flat, other.flat, rtol=1e-5, atol=1e-7)
    assert [len(seen.types) for seen in counts] == [6, 3]
    assert not any(getattr(m, "gradient_checkpointing", False) for m in model.modules()), "only while it is trained"


def test_a_model_without_checkpointing_is_one_sentence() -> None:
    with (
        pytest.raises(ConfigError, match=r"train.gradient_checkpointing: Point does not support it"),
        training_mode(Point([1.0]), Training(gradient_checkpointing=True)),
    ):
        raise AssertionError("not reached")


@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_compiled_blocks_learn_the_same_and_are_used_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, calls, real = list[Any](), list[Any](), torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        """Counts what the compiler hands over, and runs it as it is."""
        graphs.append(graph)

        def call(*arguments: Any) -> Any:
            calls.append(graph)
            return graph.forward(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", lambda call, **settings: real(call, backend=backend, **settings))
    model = build("llama")
    one = trained(model, compile=True)
    assert graphs
    count = len(calls)
    assert count >= 3 * len(blocks(model)), "every block in every step"
    torch.testing.assert_close(one.flat, trained().flat, rtol=1e-5, atol=1e-6)
    model.eval()
    model(input_ids=torch.tensor([[1, 2]]))
    assert len(calls) == count, "evaluation runs without it"


def test_a_file_asks_for_all_of_them(federation: Build, tmp_path: Path) -> None:
    settings = {"task": "causal-lm", "rounds": 1, "model": "mini"}
    steps = {"lr": 0.2, "batch": 16, "samples": {"floor": 16}}
    more = {"precision": "bf16", "gradient_checkpointing": True, "packing": True}
    run(federation(**settings, train=steps), tmp_path / "plain", workers=0)
    run(federation(**settings, train=steps | more), tmp_path / "all", workers=0)
    plain, every = (weights(tmp_path / name / "model") for name in ("plain", "all"))
    assert not same(plain, every)
    assert all(torch.allclose(plain[name], every[name], atol=0.01) for name in plain)


def test_steps_of_single_patients_refuse_them(federation: Build) -> None:
    asked = federation(train={"precision": "bf16"})
    private = {"unit": "patient", "field": "who", "sampling": 0.5, "steps": 2}
    name = next(iter(asked.silos))
    changed = asked.model_dump(mode="json")
    changed["silos"][name]["privacy"] = private
    with pytest.raises(ConfigError, match=r"without train\.precision"):
        check_settings(type(asked).model_validate(changed))
