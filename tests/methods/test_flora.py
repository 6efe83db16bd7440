"""FLoRA: products of adapters of different ranks, stacked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from hansa.core.errors import ConfigError
from hansa.methods.fedex_lora import ExactFactors
from hansa.methods.flora import StackedFactors
from hansa.runs.inference import load
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build
from tests.methods.factor_silos import dense, effective, one_round, silos, start
from tests.models.test_base import TRAIN, adapted, decoder, logits


@settings(max_examples=60)
@given(silos())
def test_the_stack_is_the_dense_average_of_the_products(case: Any) -> None:
    a, b, given_silos = case
    state = one_round(start(a, torch.zeros_like(b), 64), given_silos, StackedFactors())
    torch.testing.assert_close(effective(state), dense(given_silos), rtol=1e-4, atol=1e-4)
    assert not state.model["B"].any(), "the next round begins at zero"
    exact = one_round(start(a, torch.zeros_like(b), 64), given_silos, ExactFactors())
    torch.testing.assert_close(effective(state), effective(exact), rtol=1e-4, atol=1e-4)  # the limit: one round


@settings(max_examples=30)
@given(silos())
def test_silos_of_a_smaller_rank_send_less_and_the_stack_is_exact(case: Any) -> None:
    a, b, given_silos = case
    small = [(samples, x[:1], y[:, :1]) if i % 2 else (samples, x, y) for i, (samples, x, y) in enumerate(given_silos)]
    state = one_round(start(a, torch.zeros_like(b), 64), small, StackedFactors())
    torch.testing.assert_close(effective(state), dense(small), rtol=1e-4, atol=1e-4)


def test_dropping_the_stack_loses_what_was_learned() -> None:
    """The negative control: without a residual, a restart would forget the round."""
    one = torch.ones(1, 1)
    state = one_round(start(one, 0 * one, 1), [(1, one, one)], StackedFactors())
    state.model["RB"].zero_()
    assert float(effective(state)) == 0.0 != float(dense([(1, one, one)]))


def test_a_run_with_silos_of_different_rank(federation: Build, tmp_path: Path) -> None:
    base = decoder(tmp_path / "base")
    settings = federation(task="causal-lm", rounds=2, model=adapted(base, aggregate="stack"), tokenizer={}, train=TRAIN)
    small = settings.silos["south"].model_copy(update={"rank": 1})
    settings = settings.model_copy(update={"silos": settings.silos | {"south": small}})
    folder = run(settings, tmp_path / "run", workers=0).folder
    ledger = Ledger(folder)
    try:
        sent = dict(ledger.select("select node, max(received) from traffic group by node"))
    finally:
        ledger.close()
    one_rank = 4 * 2 * (4 * (32 + 32) + 3 * (32 + 48))  # bytes, in all layers
    assert abs(sent["north"] - sent["south"] - one_rank) < 64, "figures in the header have more or fewer digits"
    (_, ours), (_, checkpoint) = load(folder), load(folder, checkpoint=2)
    torch.testing.assert_close(logits(ours), logits(checkpoint), rtol=1e-4, atol=1e-5)
    assert not any(p.any() for n, p in checkpoint.named_parameters() if "lora_B.default" in n)
    assert any(p.any() for n, p in checkpoint.named_parameters() if "lora_B.residual" in n)
    pooled = run(settings, tmp_path / "pooled", workers=2).folder
    name = "model/adapter_model.safetensors"
    assert (folder / name).read_bytes() == (pooled / name).read_bytes()


@pytest.mark.parametrize(
    ("lora", "rank", "reason"),
    [
        ({"aggregate": "average"}, 4, "need model.adapt 'lora' with model.lora.aggregate 'stack'"),
        ({"aggregate": "exact"}, 4, "need model.adapt 'lora' with model.lora.aggregate 'stack'"),
        ({"aggregate": "stack"}, 9, "the largest of all, is 8"),
    ],
)
def test_ranks_that_do_not_fit(federation: Build, lora: Any, rank: int, reason: str) -> None:
    from hansa.config.checks import check

    settings = federation(model={"preset": "tiny", "adapt": "lora", "lora": lora})
    silos = {name: node.model_copy(update={"rank": rank}) for name, node in settings.silos.items()}
    with pytest.raises(ConfigError, match=reason):
        check(settings.model_copy(update={"silos": silos}))
