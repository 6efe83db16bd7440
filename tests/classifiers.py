"""A very small text classifier, and synthetic samples for it."""

from collections.abc import Iterator

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from hansa.core.batch import Batch
from hansa.core.knowledge import Indices, Samples
from hansa.core.learner import Learner, Work
from hansa.core.messages import Knowledge
from hansa.core.seeds import stream, torch_seeded
from hansa.core.tensors import Tensors

WIDTH, CLASSES, WORDS = 8, 3, 30


def classifier(seed: int = 0) -> Learner:
    """A classifier with two layers of width 8."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    with torch_seeded(seed, "classifier"):
        return Learner(BertForSequenceClassification(config).eval())


def batch_of(texts: list[list[int]], labels: list[int]) -> Batch:
    """Texts, given as token ids, as one padded batch."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    return Batch({"input_ids": ids, "attention_mask": mask}, None, torch.tensor(labels))


def texts_of(count: int, seed: int = 0) -> tuple[list[list[int]], list[int]]:
    """Random texts, as token ids, and their labels."""
    rng = stream(seed, "texts")
    texts = [rng.integers(1, WORDS, int(rng.integers(2, 9))).tolist() for _ in range(count)]
    return texts, rng.integers(0, CLASSES, count).tolist()


def samples_of(texts: list[list[int]], labels: list[int], batch: int = 4, seed: int = 0) -> Samples:
    """Texts as the samples of a silo."""

    def batches() -> Iterator[tuple[Indices, Batch]]:
        for start in range(0, len(texts), batch):
            here = slice(start, start + batch)
            yield np.arange(len(texts))[here], batch_of(texts[here], labels[here])

    return Samples(len(texts), batches, stream(seed, "samples"))


def work_of(learner: Learner, *knowledge: Knowledge) -> Work:
    """Local work in round 1 with the knowledge of other silos."""
    return Work(learner, learner.state.copy(), 1, knowledge=knowledge)


def pairs(centroids: torch.Tensor, predictions: torch.Tensor, lengths: tuple[int, ...] = ()) -> Knowledge:
    """Knowledge of clusters, each with five members."""
    shared = Tensors.of({"centroids": centroids, "predictions": predictions})
    return Knowledge(shared, (5,) * len(centroids), lengths)
