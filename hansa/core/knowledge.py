"""What an exchange of knowledge works with.

A silo's samples, what it shares of them, and the sizes it is checked by.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hansa.core.batch import Batch
from hansa.core.messages import Knowledge, NodeId

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """A silo's training samples as an exchange sees them."""

    size: int
    batches: Callable[[], Iterator[tuple[Indices, Batch]]]  # all of them, always in the same order
    rng: np.random.Generator


@dataclass(frozen=True)
class SharedKnowledge:
    """What a silo shares, and the samples behind each row of it; those stay in the silo."""

    knowledge: Knowledge
    samples: tuple[Indices, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What shared knowledge is checked by: the model's widths and classes, the longest sample."""

    embedding: int  # the width of a token where the first block gets it
    pooled: int  # the width of a text where the last linear layer gets it
    labels: int
    length: int


@dataclass
class ExchangeOutcome:
    """What an exchange came to, silo by silo."""

    received: dict[NodeId, tuple[Knowledge, ...]] = field(default_factory=dict)  # by those that hold the model
    rejected: dict[NodeId, str] = field(default_factory=dict)  # whose knowledge was not passed on, and why
    up: dict[NodeId, int] = field(default_factory=dict)  # bytes of the tensors shared, without headers
    down: dict[NodeId, int] = field(default_factory=dict)
