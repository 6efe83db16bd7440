"""Packed samples: the loss and the gradient of every text are those of the text by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from hansa.client.packing import check_packing, pack, rows_for
from hansa.config.checks import check_settings
from hansa.core.batch import Batch
from hansa.core.errors import ConfigError
from hansa.runs.run import run
from hansa.tasks.causal_lm import CausalLM
from hansa.tasks.target_rows import logits_at
from tests.conftest import Build, same, weights

SMALL = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SHORT = {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, max_position_embeddings=64, pad_token_id=0),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, **SHORT),
    "gemma3, sliding window": lambda: transformers.Gemma3TextConfig(
        **SMALL, **SHORT, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    ),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(MODELS[name]()).eval()


def batch_of(texts: list[list[int]]) -> Batch:
    """The texts padded, with every next token as a target."""
    width = max(map(len, texts))
    ids, mask = (torch.zeros(len(texts), width, dtype=torch.long) for _ in range(2))
    for i, text in enumerate(texts):
        ids[i, : len(text)], mask[i, : len(text)] = torch.tensor(text), 1
    rows = torch.tensor([i * width + c for i, text in enumerate(texts) for c in range(len(text) - 1)])
    return Batch({"input_ids": ids, "attention_mask": mask}, rows, ids.reshape(-1)[rows + 1])


def by_text(model: Any, batch: Batch, texts: list[list[int]]) -> list[float]:
    losses = torch.nn.functional.cross_entropy(logits_at(model, batch), batch.targets, reduction="none").detach()
    parts = torch.split(losses, [len(text) - 1 for text in texts])
    return [float(part.mean()) for part in parts]


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_each_text_is_that_of_the_text_alone(name: str) -> None:
    model, rng = build(name), np.random.default_rng(0)
    texts = [rng.integers(1, 60, length).tolist() for length in (9, 3, 14, 6, 2)]
    whole = batch_of(texts)
    packed = pack(whole, 16)
    alone = [by_text(model, batch_of([text]), [text])[0] for text in texts]
    assert by_text(model, packed, texts) == pytest.approx(alone, rel=1e-4)
    assert packed.inputs["input_ids"].shape == (3, 16), "fewer tokens than 5 × 14"
    assert packed.samples == whole.samples == 5
    joined = Batch(packed.inputs | {"position_ids": torch.arange(16).expand(3, -1)}, packed.rows, packed.targets, 0, 5)
    assert by_text(model, joined, texts) != pytest.approx(alone, rel=1e-4), "without the boundaries it is another"
    gradients = []
    for one in (whole, packed):
        model.zero_grad()
        torch.autograd.backward(CausalLM().loss(model, one))
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-6)
    check_packing(model)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(20, 50))
def test_rows_hold_every_text_once_and_not_more_than_fits(lengths: list[int], capacity: int) -> None:
    row, start = rows_for(np.asarray(lengths), capacity)
    used = {(int(r), int(s) + i) for r, s, n in zip(row, start, lengths, strict=True) for i in range(n)}
    assert len(used) == sum(lengths), "no two texts overlap"
    assert max(column for _, column in used) < capacity
    assert len({*row.tolist()}) <= 2 * sum(lengths) / capacity + 1, "first fit wastes less than half"


class Leaky(torch.nn.Module):
    """A model that adds up all tokens before, of whichever text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(40, 40)
        self.config = transformers.PretrainedConfig(vocab_size=40)

    def forward(self, input_ids: Any, position_ids: Any = None, use_cache: bool = False) -> Any:
        logits = self.table(input_ids).cumsum(dim=1)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def test_a_model_that_mixes_packed_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="Leaky lets texts in one row see one another"):
        check_packing(Leaky())
    with pytest.raises(ConfigError, match="BloomForCausalLM lets texts in one row see one another"):
        check_packing(
            transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2))
        )


def test_a_run_takes_the_same_steps(federation: Build, tmp_path: Path) -> None:
    settings = {"task": "causal-lm", "rounds": 1, "model": "mini", "data": {"max_length": 48}}
    train: dict[str, Any] = {"lr": 0.2, "batch": 16, "samples": {"floor": 32}}
    ways: dict[str, Any] = {"padded": {}, "packed": {"packing": True}, "parts": {"packing": True, "micro_batch": 5}}
    for name, more in ways.items():
        run(federation(**settings, train=train | more), tmp_path / name, workers=0)
    padded, packed, parts = (weights(tmp_path / name / "model") for name in ("padded", "packed", "parts"))
    assert not same(packed, padded), "it went another way"
    for other in (packed, parts):
        assert all(torch.allclose(other[name], padded[name], rtol=1e-4, atol=1e-5) for name in padded)


def test_tasks_that_read_both_ways_are_refused(federation: Build) -> None:
    with pytest.raises(ConfigError, match=r"train\.packing puts several texts into one row, which task 'mlm'"):
        check_settings(federation(task="mlm", train={"packing": True}))
