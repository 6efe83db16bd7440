"""Keyed MinHash sketches: two holders of sketches find similar texts; without the key no text can be tested.

Before hashing, every shingle of a text (and every word of a vocabulary) is replaced by its BLAKE2b digest under the key
of the survey. A coordinator that has the sketches but not the key cannot compute the sketch of a text that it knows. It
can compare sketches with one another, which is what they are for. The key is drawn anew for every survey, so that
sketches of two surveys cannot be compared.

MinHash itself is rensa's, with the bands of `hansa.data.importing.duplicates`.
"""

from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hansa.data.importing.duplicates import BANDS, FEWEST, PERMUTATIONS, band_keys, minhashes, shingles

KEY_BYTES = 32
TOKEN_BYTES = 12
WORD_PERMUTATIONS = 512  # of the sketch of a vocabulary: a standard error of at most 2.2 percentage points
DOCUMENT = np.dtype([("marks", np.uint8, PERMUTATIONS), ("bands", np.uint64, BANDS)])

Documents = NDArray[Any]  # of dtype `DOCUMENT`


class DocumentSketches:
    """Collects the sketches of a silo's documents under a key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._first: list[NDArray[np.uint64]] = []
        self._made: list[Documents] = []
        self._waiting: list[list[bytes]] = []

    def add(self, text: str, language: str) -> None:
        """Sketch a document; one with too few shingles is left out, because chance would make it similar to others."""
        found = set(shingles(" ".join(text.casefold().split()).encode(), language))
        if len(found) < FEWEST:
            return
        self._waiting.append([token(self._key, b"document", shingle) for shingle in found])
        if len(self._waiting) >= 500:
            self._hash()

    def _hash(self) -> None:
        if not self._waiting:
            return
        hashes = minhashes(self._waiting, PERMUTATIONS)
        made = np.zeros(len(hashes), DOCUMENT)
        made["marks"], made["bands"] = hashes.astype(np.uint8), band_keys(hashes)
        self._made.append(made)
        self._first.append(hashes[:, 0])
        self._waiting = []

    def sketches(self, most: int) -> tuple[Documents, int]:
        """At most ``most`` sketches, in an order that says nothing about the rows, and how many documents there are.

        All silos keep the documents with the smallest first hash value, which similar documents mostly share: what is
        left out of one silo is left out of the others.
        """
        self._hash()
        if not self._made:
            return np.zeros(0, DOCUMENT), 0
        every, first = np.concatenate(self._made), np.concatenate(self._first)
        return every[np.lexsort((every["bands"][:, 0], first))[:most]], len(every)


def token(key: bytes, purpose: bytes, content: bytes) -> bytes:
    """The digest of a shingle or word under the key."""
    return blake2b(content, digest_size=TOKEN_BYTES, key=key, person=purpose).digest()


def vocabulary_sketch(key: bytes, words: list[str]) -> NDArray[np.uint64]:
    """The MinHash values of a set of words; empty for no words."""
    if not words:
        return np.zeros(0, np.uint64)
    made: NDArray[np.uint64] = minhashes([[token(key, b"word", w.encode()) for w in words]], WORD_PERMUTATIONS)[0]
    return made


def jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float | None:
    """The estimated Jaccard similarity of two vocabularies; None if one is empty."""
    return float(np.mean(one == other)) if len(one) and len(other) else None


def near_duplicates(mine: Documents, others: Documents, similarity: float, same: bool = False) -> int:
    """How many documents of ``mine`` have a near-duplicate among ``others``.

    ``same``: both are the documents of one silo; then a document counts if one before it is similar.
    """
    found = np.zeros(len(mine), bool)
    for band in range(BANDS if len(mine) and len(others) else 0):
        values = others["bands"][:, band]
        order = np.argsort(values, kind="stable")
        place = np.searchsorted(values[order], mine["bands"][:, band])
        candidate = order[np.minimum(place, len(order) - 1)]  # the first one with this band, if there is one
        equal = values[candidate] == mine["bands"][:, band]
        if same:
            equal &= candidate < np.arange(len(mine))
        rows = np.flatnonzero(equal & ~found)
        alike = (mine["marks"][rows] == others["marks"][candidate[rows]]).mean(axis=1)
        found[rows] = alike * 256 / 255 - 1 / 255 >= similarity  # corrects for bytes that are equal by chance
    return int(found.sum())


def packed(values: NDArray[Any]) -> str:
    """An array as text."""
    return b64encode(values.tobytes()).decode()


def unpacked(text: str, kind: Any) -> NDArray[Any]:
    """The array in a text; raises ValueError if it is none."""
    try:
        return np.frombuffer(b64decode(text, validate=True), kind)
    except BadBase64:
        raise ValueError("a sketch is not base64") from None
