"""Federations made up for measuring: silos of random words, any vocabulary, any model."""

import json
from pathlib import Path
from typing import Any

import transformers

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.seeds import stream
from hansa.models.tokenizer import byte_tokenizer, train_vocabulary


def words(count: int) -> list[str]:
    rng = stream(0, "words", count)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return sorted({"".join(letters[i] for i in rng.integers(0, 26, int(rng.integers(4, 9)))) for _ in range(2 * count)})


def silos(folder: Path, count: int, rows: int, length: int, vocabulary: list[str]) -> dict[str, str]:
    """``count`` files of ``rows`` texts with ``length`` words each."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for number in range(count):
        rng = stream(1, number)
        file = folder / f"s{number}.jsonl"
        texts = (" ".join(vocabulary[i] for i in rng.integers(0, len(vocabulary), length)) for _ in range(rows))
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        files[f"s{number}"] = str(file)
    return files


def model_folder(folder: Path, tokenizer: Any, layers: int, width: int, heads: int, positions: int) -> Path:
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_of(vocabulary: list[str], size: int) -> Any:
    return train_vocabulary({"▁" + word: 5 for word in vocabulary}, size) if size else byte_tokenizer()


def federation(files: dict[str, str], model: Path, length: int, **settings: Any) -> Federation:
    raw = {
        "name": "bench",
        "model": {"path": str(model)},
        "data": {"max_length": length, "valid": 0.0, "test": 0.0},
        "silos": files,
    }
    return parse(raw | settings)
