"""Tokens are read back from what an embedding layer makes of them; from something else they are not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hansa.attacks.inversion import frozen, invert, nearest

WORDS, WIDTH, LENGTH = 60, 24, 5


class Layer(nn.Module):
    """An embedding layer like BERT's: token and position vectors, then a norm."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(WORDS, WIDTH, generator=generator)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH, generator=generator))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        placed = embeddings + self.places[: embeddings.shape[1]]
        found: Tensor = self.norm(placed) * mask.unsqueeze(-1)
        return found


@pytest.fixture
def layer() -> Layer:
    return Layer().eval()


BANNED = torch.zeros(WORDS, dtype=torch.bool).index_fill(0, torch.tensor([0, 1]), True)
TEXTS = torch.tensor([[0, 5, 9, 1, 1], [0, 7, 7, 30, 59]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def read(layer: Layer, attack: str, targets: Tensor, mask: Tensor) -> Tensor:
    if attack == "nearest":
        return nearest(layer, layer.table, targets, mask, BANNED)
    with frozen(layer):
        return invert(layer, layer.table, targets, mask, BANNED, seed=0, steps=100)


@pytest.mark.parametrize("attack", ["nearest", "invert"])
def test_single_texts_are_read_word_for_word(layer: Any, attack: Any) -> None:
    with torch.no_grad():
        targets = layer(layer.table[TEXTS], MASK)
    found = read(layer, attack, targets, MASK)
    for text, mask, candidates in zip(TEXTS, MASK, found, strict=True):
        released = mask.bool() & ~BANNED[text]
        assert candidates[released, 0].tolist() == text[released].tolist()
    assert not BANNED[found].any()


def test_single_texts_are_read_from_one_pooled_vector_that_holds_them() -> None:
    """So where a real classifier's pooled vectors are not read, it is not for want of an attack on pooled vectors."""
    generator = torch.Generator().manual_seed(0)
    table, mixes = torch.randn(WORDS, 64, generator=generator), torch.randn(LENGTH, 64, 64, generator=generator) / 8

    def pooled(embeddings: Tensor, mask: Tensor) -> Tensor:
        return torch.einsum("ntw,twu->nu", embeddings * mask.unsqueeze(-1), mixes).mul(0.3).tanh()

    texts = torch.randint(2, WORDS, (4, LENGTH), generator=generator)
    mask = torch.ones(4, LENGTH, dtype=torch.long)
    found = invert(pooled, table, pooled(table[texts], mask), mask, BANNED, seed=0)
    assert (found[..., 0] == texts).float().mean() > 0.9


@pytest.mark.parametrize("attack", ["nearest", "invert"])
def test_negative_control_of_vectors_that_no_word_gives(layer: Any, attack: Any) -> None:
    targets = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)) * MASK.unsqueeze(-1)
    found = read(layer, attack, targets, MASK)
    assert (found[..., 0] == TEXTS)[MASK.bool()].float().mean() < 0.3


def test_inversion_finds_all_words_of_a_mean_where_the_nearest_token_finds_some(layer: Any) -> None:
    words = torch.arange(2, 8)
    with torch.no_grad():
        each = layer(layer.table[words].unsqueeze(1), torch.ones(6, 1, dtype=torch.long))
    mask = torch.ones(1, 1, dtype=torch.long)
    by_descent = read(layer, "invert", each.mean(dim=0, keepdim=True), mask)[0, 0, :6]
    by_distance = read(layer, "nearest", each.mean(dim=0, keepdim=True), mask)[0, 0, :6]
    assert set(by_descent.tolist()) == set(words.tolist())
    assert len(set(by_distance.tolist()) & set(words.tolist())) < 6


def test_a_release_without_positions_is_compared_with_texts_of_one_token(layer: Any) -> None:
    def pooled(embeddings: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = layer(embeddings, mask).mean(dim=1)
        return found

    target = pooled(layer.table[torch.tensor([[33]])], torch.ones(1, 1)).detach()
    found = nearest(pooled, layer.table, target, torch.ones(1, 3, dtype=torch.long), BANNED)
    assert found.shape[1] == 3
    assert found[0, :, 0].tolist() == [33, 33, 33]


def test_the_model_is_left_as_it_was(layer: Any) -> None:
    with frozen(layer):
        assert not layer.places.requires_grad
    assert layer.places.requires_grad
