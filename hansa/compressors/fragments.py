"""Streamed fragments: every round synchronises another part of the model.

Douillard et al. (2025), Streaming DiLoCo with Overlapping Communication, Section 2.2.

    round r:   silo i sends Δᵢ of the tensors of fragment p = (r − 1) mod P, since they were synchronised last;
               the server moves that fragment alone, and silos continue with it in round r + 1

P: ``count``, the number of fragments. All other tensors keep the silo's own values, and the server optimizer's state of
them stays as it is. So a round sends 1/P of the bytes, and each tensor is synchronised every P rounds. With ``both``,
the server also sends a silo only what it sent last.
Deviations: a fragment is a set of tensors, filled from the largest on so that all fragments have about the same bytes,
instead of a set of blocks. What arrives is taken whole (α = 0 in Equation 3); with `train.overlap` it is added to the
local steps (`hansa/client/overlap.py`).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar

from pydantic import Field

from hansa.core.compression import COMPRESSORS, Compressor, EncodedTensors, Kind, OutgoingUpdate
from hansa.core.settings import Section


@dataclass(frozen=True)
class Fragments:
    """Selects the tensors of one fragment, by the number of the round."""

    count: int
    both: bool = True
    kind: ClassVar[Kind] = "tensors"
    keeps_local: ClassVar[bool] = True

    @property
    def both_ways(self) -> bool:
        """True if the server also sends only the fragment that the silo sent last."""
        return self.both

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Select the tensors of fragment (round − 1) mod ``count``."""
        sizes = tuple((name, prod(part.shape)) for name, part in tensors.items())
        chosen = fragments(sizes, self.count)[(update.round - 1) % self.count]
        return {name: part for name, part in tensors.items() if name in chosen}


@lru_cache(maxsize=4)
def fragments(sizes: tuple[tuple[str, int], ...], count: int) -> tuple[frozenset[str], ...]:
    """The names of the tensors of each fragment: the largest tensor first, always into the smallest fragment."""
    found: list[list[str]] = [[] for _ in range(count)]
    filled = [0] * count
    for name, size in sorted(sizes, key=lambda one: -one[1]):
        smallest = filled.index(min(filled))
        found[smallest].append(name)
        filled[smallest] += size
    return tuple(map(frozenset, found))


@COMPRESSORS.register("fragments")
class FragmentsSettings(Section):
    """Sends another fragment of the model in every round (Douillard et al., 2025)."""

    count: int = Field(default=4, ge=2, description="Number of fragments P; each is sent every P rounds.")
    both: bool = Field(
        default=True,
        description="The server also sends a silo only the fragment that it sent last; false: the whole model, and "
        "updates can be quantised.",
    )

    def build(self) -> Compressor:
        """The compressor that sends one of ``count`` fragments in each round."""
        return Fragments(self.count, self.both)
