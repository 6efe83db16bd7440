"""The victim model: computes what would be released of given tokens, so that an attacker can compare it.

A task with two texts (`pairs`) also gives the model token types: which of the two texts a token belongs to. The model
adds a vector for the type to the token's embedding. A token then has one embedding for each type, and an attacker has
to try all of them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hansa.client.runtime import Runtime
from hansa.core import representations
from hansa.data.examples import Examples

TYPE_EMBEDDINGS = "token_type_embeddings"


def embedding_table(model: Any, vocabulary: int, types: int) -> Tensor:
    """The embeddings of all tokens before positions are added: all tokens of the first type, then of the next."""
    table: Tensor = model.get_input_embeddings().weight.detach()[:vocabulary]
    added = next((m.weight.detach() for name, m in model.named_modules() if name.endswith(TYPE_EMBEDDINGS)), None)
    if added is None or types < 2:
        return table.clone()
    return torch.cat([table + added[one] - added[0] for one in range(types)])


def token_types(runtime: Runtime) -> int:
    """How many token types the task's samples have."""
    return runtime.vocabulary.types if getattr(runtime.task, "takes", 1) > 1 else 1


def table_rows(held: Examples, index: int, vocabulary: int, types: int) -> NDArray[np.int64]:
    """A sample's tokens as row numbers of `embedding_table`."""
    ids = held[index].astype(np.int64)
    if types < 2:
        return ids
    return ids + vocabulary * held.tags[held.offsets[index] : held.offsets[index + 1]].astype(np.int64)


class VictimModel:
    """The layers between tokens and the released vector: the whole model, or its embedding layer.

    ``placed``: the release has one vector per position (all layers); otherwise one for the whole text (last layer).
    """

    def __init__(self, model: Any, vocabulary: int, placed: bool, types: int = 1) -> None:
        self.model, self.placed = model.eval(), placed
        self.table = embedding_table(model, vocabulary, types)

    def encode(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """What would be released of texts given as token embeddings (texts × positions × width)."""
        inputs = {"inputs_embeds": embeddings, "attention_mask": mask}
        if self.placed:
            return representations.embed(self.model, inputs) * mask.unsqueeze(-1)
        return representations.represent(self.model, inputs)[0]

    def release(self, text: NDArray[np.int64]) -> Tensor:
        """What would be released of one text alone, given as rows of the table."""
        with torch.no_grad():
            return self.encode(self.table[text].unsqueeze(0), torch.ones(1, len(text), dtype=torch.long))[0]
