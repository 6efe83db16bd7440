"""FedEx-LoRA: the average of the products, as the averages of A and B and a residual."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from hansa.core.errors import ConfigError
from hansa.methods.fedex_lora import ExactFactors
from hansa.models.peft_folder import is_adapter
from hansa.preview.preview import preview
from hansa.runs.inference import load, write_model
from hansa.runs.run import run
from tests.conftest import Build
from tests.methods.factor_silos import dense, effective, one_round, silos, start
from tests.models.test_base import TRAIN, adapted, decoder, logits


@settings(max_examples=60)
@given(silos())
def test_the_factors_give_the_dense_average_of_the_products(case: Any) -> None:
    a, b, given_silos = case
    state = one_round(start(a, b, 64), given_silos, ExactFactors())
    torch.testing.assert_close(effective(state), dense(given_silos), rtol=1e-4, atol=1e-4)
    total = sum(samples for samples, _, _ in given_silos)
    mean = sum((samples / total * one for samples, one, _ in given_silos), torch.zeros(()))
    torch.testing.assert_close(state.model["A"], mean, rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(silos(), silos())
def test_residuals_of_several_rounds_add_up(first: Any, second: Any) -> None:
    a, b, given_silos = first
    state = one_round(start(a, b, 64), given_silos, ExactFactors())
    held = state.model["RB"].double() @ state.model["RA"].double()
    again = [(samples, other_a + 1, other_b * 2) for samples, other_a, other_b in given_silos]
    one_round(state, again, ExactFactors())
    torch.testing.assert_close(effective(state), held + dense(again), rtol=1e-3, atol=1e-3)


@settings(max_examples=30)
@given(silos())
def test_with_equal_a_plain_averaging_is_exact_and_the_residual_is_zero(case: Any) -> None:
    """The limit, which is what FFA-LoRA makes of it by not training A."""
    a, b, given_silos = case
    same = [(samples, a, other) for samples, _, other in given_silos]
    exact, plain = one_round(start(a, b, 8), same, ExactFactors()), one_round(start(a, b, 0), same, None)
    for state in (exact, plain):
        torch.testing.assert_close(effective(state), dense(same), rtol=1e-4, atol=1e-4)
    residual = exact.model["RB"].double() @ exact.model["RA"].double()
    assert float(residual.abs().max()) < 1e-5


def test_plain_averaging_is_not_the_average_of_the_products() -> None:
    """The negative control: two silos whose averages of A and of B are zero."""
    one, given_silos = (
        torch.ones(1, 1),
        [(1, torch.ones(1, 1), torch.ones(1, 1)), (1, -torch.ones(1, 1), -torch.ones(1, 1))],
    )
    plain = one_round(start(one, one, 0), given_silos, None)
    exact = one_round(start(one, one, 1), given_silos, ExactFactors())
    assert float(effective(plain)) == 0.0
    assert float(effective(exact)) == pytest.approx(1.0) == float(dense(given_silos))


def test_a_small_residual_is_the_best_approximation() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 6, generator=generator), torch.randn(5, 2, generator=generator)
    some = [(1, torch.randn(2, 6, generator=generator), torch.randn(5, 2, generator=generator)) for _ in range(4)]
    state = one_round(start(a, b, 2), some, ExactFactors())
    product = state.model["B"].double() @ state.model["A"].double()
    values = torch.linalg.svdvals(dense(some) - product)
    error = torch.linalg.matrix_norm(effective(state) - dense(some))
    torch.testing.assert_close(error, values[2:].norm(), rtol=1e-4, atol=1e-5)
    assert float(error) > 0.1, "the control: it is not exact any more"


def test_a_run_exports_one_adapter_and_check_names_the_downlink(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base")
    given_settings: dict[str, Any] = {"task": "causal-lm", "rounds": 2, "tokenizer": {}, "train": TRAIN}
    settings = federation(model=adapted(base, aggregate="exact"), **given_settings)
    assert settings.model.lora.residual_rank == (3 - 1) * 2 * 2
    outcome = run(settings, tmp_path / "run", workers=0)
    folder = outcome.folder
    assert is_adapter(folder / "model")
    (_, ours), (_, checkpoint) = load(folder), load(folder, checkpoint=2)
    torch.testing.assert_close(logits(ours), logits(checkpoint), rtol=1e-4, atol=1e-5)
    residuals = {n: p for n, p in checkpoint.named_parameters() if "lora_A.residual" in n}
    assert residuals
    assert any(float(p.detach().abs().max()) > 0 for p in residuals.values())
    assert not any(p.requires_grad for p in residuals.values())
    write_model(folder, None, tmp_path / "merged", merged=True)
    traffic, plain = (preview(one).traffic for one in (settings, federation(model=adapted(base), **given_settings)))
    assert traffic is not None
    assert plain is not None
    assert traffic.updates == plain.updates, "what goes up is the adapter alone"
    assert traffic.model == 5 * plain.model, "rank 2, and a residual of rank 8"
    assert "5.0 times the adapters" in traffic.line


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"secure_aggregation": True}, r"use aggregate 'average', or 'freeze-a' \(FFA-LoRA\)"),
        ({"server": {"optimizer": "adam", "lr": 0.01}}, "leave 'server' out"),
        ({"aggregate": "median"}, "combines updates in another way"),
        ({"personal": {"rounds": 1}}, "leave 'personal' out"),
    ],
)
@pytest.mark.parametrize("rule", ["exact", "stack"])
def test_what_products_do_not_go_with(federation: Build, change: Any, reason: str, rule: str) -> None:
    from hansa.config.checks import check

    model = {"preset": "tiny", "adapt": "lora", "lora": {"aggregate": rule}}
    with pytest.raises(ConfigError, match=reason):
        check(federation(model=model, **change))
    check(federation(model=model | {"lora": {"aggregate": "freeze-a"}}, **change))
