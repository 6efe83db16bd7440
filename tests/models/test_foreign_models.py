"""Model folders from outside: their tokenizers, and sizes that do not fit together."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from hansa.core.errors import ConfigError, DataError, UserError
from hansa.models.tokenizer import byte_tokenizer
from hansa.runs.run import run
from tests.conftest import Build
from tests.tasks.test_tasks import DECODERS, TINY


def save(folder: Any, config: Any, auto: str = "AutoModelForMaskedLM", tokenizer: Any = None) -> Any:
    tokenizer = tokenizer or byte_tokenizer()
    getattr(transformers, auto).from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"path": str(folder)}


def test_a_model_folder_is_used_with_its_own_tokenizer(federation: Build, tmp_path: Path) -> None:
    config = transformers.RobertaConfig(vocab_size=264, max_position_embeddings=40, pad_token_id=0, **TINY)
    settings = federation(model=save(tmp_path / "m", config), rounds=1, tokenizer={})
    outcome = run(settings, tmp_path / "run", workers=0)
    assert transformers.AutoModelForMaskedLM.from_pretrained(outcome.folder / "model").config.model_type == "roberta"


def test_frozen_tensors_are_not_sent(tmp_path: Path) -> None:
    """The flat vector has trainable tensors only; a frozen table is neither sent nor changed."""
    from hansa.core.learner import Learner

    model = transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(vocab_size=264, **TINY))
    whole = Learner(model).layout
    model.get_input_embeddings().weight.requires_grad_(False)
    kept = Learner(model).layout
    assert set(whole.names) - set(kept.names) == {"bert.embeddings.word_embeddings.weight"}


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (
            {"tokenizer": {"kind": "federated", "size": 330, "min_count": 1}},
            ConfigError,
            "use the model's own tokenizer",
        ),
        ({"tokenizer": {"kind": "model"}, "data": {"max_length": 64}}, ConfigError, "has 32 positions"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(
    federation: Build, tmp_path: Path, change: Any, error: Any, reason: Any
) -> None:
    config = transformers.BertConfig(vocab_size=264, max_position_embeddings=32, **TINY)
    with pytest.raises(error, match=reason):
        run(federation(model=save(tmp_path / "m", config), **change), tmp_path / "run", workers=0)


def test_a_folder_without_a_model_is_named(federation: Build, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    settings = federation(model={"path": str(tmp_path / "empty")}, tokenizer={"kind": "bytes"})
    with pytest.raises(ConfigError, match="is not a Hugging Face model folder"):
        run(settings, tmp_path / "run", workers=0)


def test_masked_modelling_needs_a_mask_token(federation: Build, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.mask_token = None
    model = save(tmp_path / "m", DECODERS["llama"](264), "AutoModelForCausalLM", tokenizer)
    encoder = save(tmp_path / "e", transformers.BertConfig(vocab_size=264, **TINY), tokenizer=tokenizer)
    with pytest.raises(UserError, match="needs a tokenizer with a mask token"):
        run(federation(model=encoder, tokenizer={"kind": "model"}), tmp_path / "run", workers=0)
    outcome = run(
        federation(model=model, tokenizer={"kind": "model"}, task="causal-lm", rounds=1), tmp_path / "c", workers=0
    )
    assert outcome.metrics["north"]["perplexity"] > 1


def test_classification_needs_two_labels(federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify", sizes={"north": 30})
    file = tmp_path / "data" / "north.jsonl"
    file.write_text(file.read_text().replace('"high"', '"low"'))
    with pytest.raises(DataError, match="needs at least two labels"):
        run(settings, tmp_path / "run", workers=0)
