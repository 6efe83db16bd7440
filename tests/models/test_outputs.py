"""Outputs of a frozen base that are kept in memory: the same as without, computed once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import BertConfig, BertForSequenceClassification

from hansa.models.outputs import Kept, keep_outputs
from hansa.models.settings import Model

IDS = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=20, **size)).save_pretrained(tmp_path)
    return tmp_path


def model(folder: Path) -> Any:
    found = BertForSequenceClassification.from_pretrained(folder)
    for parameter in found.base_model.parameters():
        parameter.requires_grad_(False)
    return found.train()


def counted(one: Any) -> list[int]:
    """The number of texts in every forward pass of the base."""
    calls: list[int] = []
    one.base_model.encoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    return calls


def test_each_text_passes_through_the_base_once_and_gives_what_it_gave_before(folder: Path) -> None:
    settings, kept = Model(path=str(folder), adapt="frozen", keep_outputs=True), Kept()
    plain, one = model(folder).eval(), model(folder)
    keep_outputs(one, settings, kept)
    calls = counted(one)
    one.dropout.p = 0.0
    with torch.inference_mode():
        expected = plain(input_ids=IDS, attention_mask=MASK)
        first = one(input_ids=IDS, attention_mask=MASK)
    assert torch.allclose(first.logits, expected.logits, atol=1e-6), "dropout inside the base is off"
    again = one(input_ids=IDS.flip(0), attention_mask=MASK.flip(0))
    assert calls == [1, 1]
    assert torch.equal(again.logits.flip(0), first.logits), "bit for bit, in any batch"
    again.logits.sum().backward()
    assert one.classifier.weight.grad is not None, "the head learns from outputs that an evaluation kept"
    assert one.base_model.training, "the mode of the base is as it was"


def test_other_models_and_other_arguments_do_not_share_outputs(folder: Path, tmp_path: Path) -> None:
    kept = Kept()
    one, other = model(folder), model(folder)
    keep_outputs(one, Model(path=str(folder), adapt="frozen", keep_outputs=True), kept)
    one(input_ids=IDS, attention_mask=MASK)
    calls = counted(one)
    one(input_ids=IDS, attention_mask=MASK, token_type_ids=torch.zeros_like(IDS))
    assert calls == [2], "a call with other arguments is left as it is"
    with torch.no_grad():
        other.base_model.pooler.dense.weight.add_(1.0)
    other.save_pretrained(tmp_path / "other")
    keep_outputs(other, Model(path=str(tmp_path / "other"), adapt="frozen", keep_outputs=True), kept)
    calls = counted(other)
    other(input_ids=IDS, attention_mask=MASK)
    assert calls == [1, 1], "another base has another digest"


def test_the_oldest_outputs_are_dropped_beyond_the_limit() -> None:
    kept = Kept(limit=100)
    for number in range(4):
        kept.add(("base", bytes([number])), {"x": torch.zeros(10)})
    assert kept.size == 80
    assert kept.get(("base", b"\x00")) is None
    assert kept.get(("base", b"\x03")) is not None


@pytest.mark.parametrize("wrong", [{"adapt": "full"}, {"adapt": "lora"}, {"adapt": "frozen", "fresh": True}])
def test_only_a_frozen_base_has_outputs_that_stay(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="keep_outputs is for a base whose outputs stay the same"):
        Model(path="somewhere", keep_outputs=True, **wrong)
