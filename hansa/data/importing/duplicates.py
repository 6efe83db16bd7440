"""Find duplicates in a fixed amount of memory: sentences by fingerprint, documents by MinHash.

Both tables are fully allocated at the start. A sentence is wrongly dropped if its 64-bit fingerprint equals that of one
of the ``n`` sentences before it, with probability n / 2^64: 2e-12 for 40 million sentences.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hansa.data.importing.markup import needed
from hansa.data.importing.tally import primary_language

LOAD = 0.8  # maximum load factor: above it, linear probing becomes slow
PERMUTATIONS, BANDS, ROWS = 64, 12, 5
SHINGLE, FEWEST = 3, 8  # words of a shingle; documents with fewer shingles are not compared
LETTERS_OF_SHINGLE = 8  # in languages written without spaces
UNSPACED = frozenset(("zh", "ja", "th", "lo", "km", "my"))
SEED = 20_03  # fixed, so that signatures are the same in every run
MIXERS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


class Fingerprints:
    """A hash set of 64-bit numbers (never 0) with linear probing, updated one batch at a time."""

    def __init__(self, megabytes: float) -> None:
        size = max(64, int(megabytes * 2**20) // 8)
        self._table = np.empty(size, np.uint64)
        self._table.fill(0)  # allocates the memory now
        self.capacity = int(size * LOAD)
        self.count = 0
        self.full = False

    def reserve(self, number: int) -> None:
        """Mark the table as full if ``number`` more entries may not fit."""
        self.full = self.full or self.count + number > self.capacity

    def fresh(self, prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which fingerprints are new, in this batch and all before it; adds them unless the table is full."""
        unique, first = np.unique(prints, return_index=True)
        self.reserve(len(unique))
        new = np.zeros(len(prints), bool)
        new[first[self._insert(unique)]] = True
        return new

    def _insert(self, unique: NDArray[np.uint64]) -> NDArray[np.bool_]:
        size = np.uint64(len(self._table))
        slot = ((unique >> np.uint64(32)) * size) >> np.uint64(32)
        new = np.zeros(len(unique), bool)
        pending = np.arange(len(unique))
        while len(pending):
            at, wanted = slot[pending], unique[pending]
            empty = self._table[at] == 0
            if self.full:
                done = empty | (self._table[at] == wanted)
                new[pending[empty]] = True
            else:
                self._table[at[empty]] = wanted[empty]  # if two want one slot, the last stays
                done = self._table[at] == wanted
                new[pending[empty & done]] = True
            pending = pending[~done]
            slot[pending] = (slot[pending] + np.uint64(1)) % size
        if not self.full:
            self.count += int(new.sum())
        return new


class Signatures(NamedTuple):
    """For each document: 64 bytes of MinHash, the keys of its bands, and whether it is long enough to compare."""

    marks: NDArray[np.uint8]
    bands: NDArray[np.uint64]
    comparable: list[bool]

    @classmethod
    def none(cls, documents: int) -> "Signatures":
        """Signatures of documents that are not to be compared."""
        return cls(np.zeros((0, PERMUTATIONS), np.uint8), np.zeros((0, BANDS), np.uint64), [False] * documents)


def signatures(documents: list[bytes], language: str) -> Signatures:
    """The MinHash signatures of documents, computed from their shingles."""
    found = [shingles(document, language) for document in documents]
    hashes = minhashes(found, PERMUTATIONS)
    return Signatures(hashes.astype(np.uint8), band_keys(hashes), [len(s) >= FEWEST for s in found])


def minhashes(sets: list[list[bytes]], permutations: int) -> NDArray[np.uint64]:
    """The MinHash values of sets of byte strings, one row each."""
    rows = needed("rensa").RMinHash.digest_matrix_from_token_byte_sets(sets, permutations, SEED).to_rows()
    return np.array(rows, np.uint64).reshape(len(sets), permutations)


def band_keys(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys of the bands of MinHash values: sets that share one are compared."""
    grouped = hashes[:, : BANDS * ROWS].reshape(-1, BANDS, ROWS)
    bands = (grouped * MIXERS).sum(-1, dtype=np.uint64) + np.arange(1, BANDS + 1, dtype=np.uint64) * MIXERS[0]
    bands = (bands ^ (bands >> np.uint64(29))) * MIXERS[1]
    keys: NDArray[np.uint64] = bands ^ (bands >> np.uint64(32))
    return keys


def shingles(document: bytes, language: str) -> list[bytes]:
    """The shingles of a document: three words in a row, or letters where words have no spaces between them."""
    if primary_language(language) in UNSPACED:
        text = document.decode()
        return [text[i : i + LETTERS_OF_SHINGLE].encode() for i in range(max(0, len(text) - LETTERS_OF_SHINGLE + 1))]
    words = document.split()
    return list(map(b" ".join, zip(words, words[1:], words[2:], strict=False)))


class NearDuplicates:
    """The documents seen so far. Documents that share a band are compared by their 64 MinHash values."""

    def __init__(self, megabytes: float, threshold: float) -> None:
        self.capacity = max(16, int(megabytes * 2**20 / (PERMUTATIONS + BANDS * 8 / LOAD)))
        self._marks = np.empty((self.capacity, PERMUTATIONS), np.uint8)
        self._marks.fill(0)
        table = np.empty(int(self.capacity * BANDS / LOAD), np.uint64)
        table.fill(0)
        # Access to single entries is several times as fast as through the array.
        self._table = memoryview(cast(Any, table))
        self._threshold = threshold
        self.count = 0
        self.full = False

    def seen(self, marks: NDArray[np.uint8], bands: list[int]) -> bool:
        """Whether a similar document was seen before; if not, it is added unless the table is full."""
        free, candidates = self._look_up(bands)
        for row in candidates:
            same = float(np.mean(self._marks[row] == marks))
            if same * 256 / 255 - 1 / 255 >= self._threshold:  # corrects for bytes that are equal by chance
                return True
        if self.count == self.capacity:
            self.full = True
            return False
        self._marks[self.count] = marks
        self.count += 1
        for slot, tag in free:
            self._put(slot, tag << 32 | self.count)
        return False

    def _look_up(self, bands: list[int]) -> tuple[list[tuple[int, int]], set[int]]:
        """Free slots with tags for the bands that are new, and the documents that share a band."""
        table, size = self._table, len(self._table)
        free: list[tuple[int, int]] = []
        candidates: set[int] = set()
        for band in bands:
            tag, slot = band & 0xFFFFFFFF, (band >> 32) * size >> 32
            while entry := table[slot]:
                if entry >> 32 == tag:
                    candidates.add((entry & 0xFFFFFFFF) - 1)
                    break
                slot = slot + 1 if slot + 1 < size else 0
            else:
                free.append((slot, tag))
        return free, candidates

    def _put(self, slot: int, entry: int) -> None:
        while self._table[slot]:  # occupied by another band of the same document
            slot = (slot + 1) % len(self._table)
        self._table[slot] = entry
