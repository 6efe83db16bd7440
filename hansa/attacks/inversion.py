"""Reconstruct tokens from a centroid: embedding inversion, and the nearest token.

Song & Raghunathan (2020), "Information Leakage in Embedding Models", as used by Wang et al. (2022), Section 5.6:

    min over Z of ‖f(Vᵀ·softmax(Z)) − x̄‖²

    x̄        the released centroid           V   the table of token embeddings, of every token type (victim.py)
    Z        a soft choice of a token for every position, found by gradient descent
    f        the layers between the tokens and what was released: all of them (last layer), or the embedding layer
             alone (all layers)

The candidates of a position are the tokens with the largest Z. `nearest` (ours) needs no descent: it puts every token
of the vocabulary through f and takes the tokens whose output is nearest to the centroid, position by position where the
centroid has positions.

Deviations: Adam instead of projected descent; a whole batch of centroids at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hansa.attacks.hits import MAX_GUESSES
from hansa.core.seeds import derive

Encode = Callable[[Tensor, Tensor], Tensor]
"""(token embeddings: texts × positions × width, mask: texts × positions) → what would be released of each text:
texts × width (last layer), or texts × positions × width, zero where the mask is (all layers)."""

STEPS = 300
RATE = 0.3
CHUNK = 256


def invert(
    encode: Encode, table: Tensor, targets: Tensor, mask: Tensor, banned: Tensor, seed: int, steps: int = STEPS
) -> Tensor:
    """Return candidates (texts × positions × N, best first) for the tokens behind ``targets``, by gradient descent.

    ``banned``: tokens that are never candidates.
    """
    texts, positions = mask.shape
    generator = torch.Generator().manual_seed(derive(seed, "inversion"))
    choice = (0.01 * torch.randn(texts, positions, len(table), generator=generator)).requires_grad_()
    descent = torch.optim.Adam([choice], lr=RATE)
    for _ in range(steps):
        descent.zero_grad()
        found = encode(choice.softmax(dim=-1) @ table, mask)
        (found - targets).square().sum().backward()  # type: ignore[no-untyped-call]
        descent.step()
    return _best(choice.detach(), banned)


def nearest(encode: Encode, table: Tensor, targets: Tensor, mask: Tensor, banned: Tensor) -> Tensor:
    """Return candidates as `invert` does, by distance.

    A centroid without positions is compared with texts of one token, and all positions get the same candidates.
    """
    length = mask.shape[1] if targets.ndim == 3 else 1
    distances = []
    with torch.no_grad():
        for start in range(0, len(table), CHUNK):
            tokens = table[start : start + CHUNK]
            alone = tokens.unsqueeze(1).expand(-1, length, -1)
            outcomes = encode(alone, torch.ones(len(tokens), length, dtype=mask.dtype))
            if targets.ndim == 2:
                distances.append(torch.cdist(targets, outcomes).unsqueeze(1))
            else:
                distances.append(torch.cdist(targets.transpose(0, 1), outcomes.transpose(0, 1)).transpose(0, 1))
    candidates = _best(-torch.cat(distances, dim=-1), banned)
    return candidates.expand(-1, mask.shape[1], -1)


def _best(scores: Tensor, banned: Tensor) -> Tensor:
    """The tokens with the best scores; a token with several embeddings (victim.py) has the best score of them."""
    allowed = scores.reshape(*scores.shape[:-1], -1, len(banned)).amax(dim=-2).masked_fill(banned, -torch.inf)
    return allowed.topk(min(MAX_GUESSES, int((~banned).sum())), dim=-1).indices


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Within the context, gradients flow through the model but are not computed for its parameters."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
