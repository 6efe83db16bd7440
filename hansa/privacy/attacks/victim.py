"""The model that an attacker looks through: from tokens to what is released of them.

Of two texts (task `pairs`) a model is also told which one a token belongs to, and adds a vector for it to the token's.
So a token can be embedded in as many ways as there are such *kinds*: an attacker has to try all of them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.client.runtime import Runtime
from hansa.core import representations as inside
from hansa.data.examples import Examples

KINDS = "token_type_embeddings"


def embedding_table(model: Any, vocabulary: int, kinds: int) -> Tensor:
    """What a token can be embedded as, before its position counts: all tokens of the first kind, then of the next."""
    table: Tensor = model.get_input_embeddings().weight.detach()[:vocabulary]
    told = next((m.weight.detach() for name, m in model.named_modules() if name.endswith(KINDS)), None)
    if told is None or kinds < 2:
        return table.clone()
    return torch.cat([table + told[kind] - told[0] for kind in range(kinds)])


def token_types(runtime: Runtime) -> int:
    """How many kinds of token the task's samples have."""
    return runtime.vocabulary.types if getattr(runtime.task, "takes", 1) > 1 else 1


def table_rows(held: Examples, index: int, vocabulary: int, kinds: int) -> NDArray[np.int64]:
    """A sample's tokens as rows of `embedding_table`."""
    ids = held[index].astype(np.int64)
    if kinds < 2:
        return ids
    return ids + vocabulary * held.tags[held.offsets[index] : held.offsets[index + 1]].astype(np.int64)


class VictimModel:
    """The model between tokens and what is released of them: whole, or its embedding layer (``placed``: the release has
    positions)."""

    def __init__(self, model: Any, vocabulary: int, placed: bool, kinds: int = 1) -> None:
        self.model, self.placed = model.eval(), placed
        self.table = embedding_table(model, vocabulary, kinds)

    def encode(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        inputs = {"inputs_embeds": embeddings, "attention_mask": mask}
        if self.placed:
            return inside.embed(self.model, inputs) * mask.unsqueeze(-1)
        return inside.represent(self.model, inputs)[0]

    def release(self, text: NDArray[np.int64]) -> Tensor:
        """What would be released of one text alone, given as rows of the table."""
        with torch.no_grad():
            return self.encode(self.table[text].unsqueeze(0), torch.ones(1, len(text), dtype=torch.long))[0]
