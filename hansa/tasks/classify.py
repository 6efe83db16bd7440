"""Text classification: one label per text. Labels come from the federation file or, if it names none, from the silos'
own lists of label names (a release, stated in the report)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hansa.config import Section, Source
from hansa.data.examples import Encoded, Examples
from hansa.data.readers import Row
from hansa.errors import DataError
from hansa.tasks import TASKS
from hansa.tasks.base import Batch, Task, Vocabulary, as_tensors, pad


@dataclass(frozen=True)
class Classify:
    labels: tuple[str, ...] = ()
    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    headline: ClassVar[str] = "accuracy"
    lower_is_better: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = True

    def encode(self, rows: list[Row], source: Source, vocabulary: Vocabulary) -> Iterator[Encoded]:
        known = {label: i for i, label in enumerate(vocabulary.labels)}
        texts = vocabulary.tokenizer(
            [row[source.text] for row in rows],
            truncation=True,
            max_length=vocabulary.max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        for ids, row in zip(texts, rows, strict=True):
            label = str(row.get(source.label))
            if label not in known:
                raise DataError(
                    f"{source.train}: label {label!r} in field '{source.label}' is not one of "
                    f"{', '.join(vocabulary.labels)}; name all labels in task.labels, or mend the file"
                )
            yield ids, known[label]

    def batch(
        self, examples: Examples, indices: NDArray[np.int64], rng: np.random.Generator, vocabulary: Vocabulary
    ) -> Batch:
        ids, mask = pad(examples, indices, vocabulary.pad)
        targets = examples.labels[indices].astype(np.int64)
        return Batch(as_tensors(input_ids=ids, attention_mask=mask), None, torch.from_numpy(targets))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(**batch.inputs).logits, batch.targets)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        logits, targets = model(**batch.inputs).logits, batch.targets
        guesses = logits.argmax(dim=-1)
        sums = {
            "nll": float(nn.functional.cross_entropy(logits, targets, reduction="sum")),
            "samples": float(len(targets)),
            "correct": float((guesses == targets).sum()),
        }
        for label in set(guesses.tolist() + targets.tolist()):
            guessed, true = guesses == label, targets == label
            sums[f"hit:{label}"] = float((guessed & true).sum())
            sums[f"guessed:{label}"] = float(guessed.sum())
            sums[f"true:{label}"] = float(true.sum())
        return sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        samples = sums.get("samples", 0.0)
        if not samples:
            return {}
        labels = [key.removeprefix("true:") for key, n in sums.items() if key.startswith("true:") and n > 0]
        f1 = [
            2 * sums.get(f"hit:{i}", 0.0) / max(1.0, sums.get(f"guessed:{i}", 0.0) + sums[f"true:{i}"]) for i in labels
        ]
        return {"accuracy": sums["correct"] / samples, "macro_f1": float(np.mean(f1)), "loss": sums["nll"] / samples}

    def predict(self, model: Any, vocabulary: Vocabulary, text: str) -> list[dict[str, Any]]:
        inputs = vocabulary.tokenizer(text, return_tensors="pt", truncation=True, max_length=vocabulary.max_length)
        accepted = {k: inputs[k] for k in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            chances = model(**accepted).logits.softmax(dim=-1)[0]
        ranked = sorted(zip(vocabulary.labels, chances.tolist(), strict=True), key=lambda pair: -pair[1])
        return [{"label": label, "probability": round(p, 4)} for label, p in ranked]


@TASKS.register("classify")
class Settings(Section):
    labels: tuple[str, ...] = ()

    def build(self) -> Task:
        return Classify(self.labels)
