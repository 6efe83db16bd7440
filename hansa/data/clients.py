"""Split a silo's rows between several clients: `clients: 8`, and `skew: 0.3` for different label distributions.

The hash of its text assigns a row to a client. Equal texts therefore belong to the same client, and every process
computes the same assignment without reading the file first. With ``skew`` a, the training rows of each label are
divided by proportions drawn from Dirichlet(a, …, a) (Hsu et al., 2019): the smaller a, the fewer clients hold most of a
label. Validation and test rows are always divided evenly; together, the clients' test sets are the silo's test set.
"""

from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hansa.core.seeds import stream
from hansa.data.source import Part


def belongs_to_client(part: Part, text: str, label: str, split: str) -> bool:
    """Whether a row belongs to the client ``part``."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8, salt=b"client").digest()
    point = int.from_bytes(digest, "big") / 2**64
    if part.skew is None or split != "train":
        return int(point * part.of) == part.number
    return int(np.searchsorted(_edges(part.name, part.of, part.skew, part.seed, label), point)) == part.number


@lru_cache(maxsize=10_000)
def _edges(name: str, of: int, skew: float, seed: int, label: str) -> NDArray[np.float64]:
    """The end of each client's share of a label, on [0, 1]."""
    shares = stream(seed, name, "skew", label).dirichlet([skew] * of)
    return np.cumsum(shares)[:-1]
