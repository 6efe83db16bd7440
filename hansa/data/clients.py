"""One language's rows dealt out to several monolingual clients: `clients: 8`, and `skew: 0.3` for unlike labels.

A row belongs to a client by a hash of its text, so equal texts stay together, the deal needs no second look at the file
and every part of a run sees the same one. With ``skew`` a, the training rows of each label are spread by proportions of
their own, drawn from Dirichlet(a, …, a) (Hsu et al., 2019): the smaller a, the fewer clients hold most of a label.
Validation and test rows are always dealt evenly: what the clients score together is the language's whole test set.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hansa.core.seeds import stream
from hansa.data.source import Part


def mine(part: Part, text: str, label: str, split: str) -> bool:
    """Whether a row belongs to this client."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8, salt=b"client").digest()
    point = int.from_bytes(digest, "big") / 2**64
    if part.skew is None or split != "train":
        return int(point * part.of) == part.number
    return int(np.searchsorted(_edges(part.name, part.of, part.skew, part.seed, label), point)) == part.number


@lru_cache(maxsize=10_000)
def _edges(name: str, of: int, skew: float, seed: int, label: str) -> NDArray[np.float64]:
    """Where each client's share of a label ends, on [0, 1]."""
    shares = stream(seed, name, "skew", label).dirichlet([skew] * of)
    return np.cumsum(shares)[:-1]
