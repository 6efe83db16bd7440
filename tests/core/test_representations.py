"""Looking into classifiers of any make: what is seen on the way leads to the model's own answer."""

from typing import Any

import pytest
import torch
import transformers

from hansa.core import representations as inside
from hansa.core.errors import ConfigError
from hansa.core.seeds import torch_seeded

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
COMMON = {"vocab_size": 40, "num_labels": 3, "pad_token_id": 0}
MODELS = {
    "bert": lambda: transformers.BertConfig(**SIZE, **COMMON),
    "roberta": lambda: transformers.RobertaConfig(**SIZE, **COMMON, max_position_embeddings=40),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SIZE, **COMMON, max_position_embeddings=40),
    "distilbert": lambda: transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **COMMON),
    "electra": lambda: transformers.ElectraConfig(embedding_size=8, **SIZE, **COMMON),
    "albert": lambda: transformers.AlbertConfig(embedding_size=8, **SIZE, **COMMON),
    "deberta": lambda: transformers.DebertaV2Config(**SIZE, **COMMON),
    "llama": lambda: transformers.LlamaConfig(**SIZE, **COMMON, num_key_value_heads=2),
    "gpt2": lambda: transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, **COMMON),
}
IDS = torch.tensor([[2, 9, 4, 7, 3], [2, 5, 3, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}


def model_of(name: str) -> Any:
    with torch_seeded(0, name):
        model = transformers.AutoModelForSequenceClassification.from_config(MODELS[name]()).eval()
    for parameter in model.parameters():  # fresh weights are so small that all texts look the same
        if parameter.ndim > 1:
            parameter.data.mul_(10)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_from_the_middle_on_it_is_the_models_own_answer(name: str) -> None:
    model = model_of(name)
    with torch.inference_mode():
        logits = model(**INPUTS).logits
        seen = inside.look(model, INPUTS)
        torch.testing.assert_close(seen.logits, logits)
        torch.testing.assert_close(inside.from_pooled(model, seen.pooled), logits)
        torch.testing.assert_close(inside.embed(model, INPUTS), seen.embedded)
        ours = inside.from_embedded(model, seen.embedded, INPUTS["attention_mask"])
        torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(**INPUTS).logits, logits, msg="no hook is left behind")


@pytest.mark.parametrize("name", MODELS)
def test_another_text_in_the_middle_gives_another_answer(name: str) -> None:
    """The negative control: what is put in is really used, not the tokens that stand for it."""
    model = model_of(name)
    with torch.inference_mode():
        seen = inside.look(model, INPUTS)
        turned = inside.from_embedded(model, seen.embedded.flip(0), INPUTS["attention_mask"])
    assert not torch.allclose(turned, seen.logits, atol=1e-4)


def test_widths_and_gradients_twice() -> None:
    model = model_of("bert")
    assert inside.widths(model) == (16, 16)
    x, logits = inside.scaled(model, INPUTS, 0.5)
    [slope] = torch.autograd.grad(logits.sum(), x, create_graph=True)
    torch.autograd.backward(slope.square().sum())
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_a_model_without_classes_is_refused() -> None:
    model = transformers.AutoModelForMaskedLM.from_config(MODELS["bert"]())
    with pytest.raises(ConfigError, match="no final linear layer that gives the logits"):
        inside.last_linear(model)
