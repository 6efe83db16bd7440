"""What was seen before, in a fixed amount of memory: sentences by fingerprint, documents by MinHash.

Both tables are allocated whole at the start. A sentence is dropped wrongly when its 64-bit fingerprint equals that of
another among the ``n`` seen: n / 2^64, or 2e-12 for 40 million sentences.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hansa.data.importing.markup import needed
from hansa.data.importing.tally import primary_language

LOAD = 0.8  # beyond this share of filled places, a search in an open table becomes long
PERMUTATIONS, BANDS, ROWS = 64, 12, 5
SHINGLE, FEWEST = 3, 8  # words of a shingle; documents of fewer shingles are too short to compare
LETTERS_OF_SHINGLE = 8  # where words are not written apart
UNSPACED = frozenset(("zh", "ja", "th", "lo", "km", "my"))
SEED = 20_03  # fixed, so that a signature means the same in every run
MIXERS = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)


class Fingerprints:
    """A set of 64-bit numbers (never 0) in one array, with linear probing; whole batches at a time."""

    def __init__(self, megabytes: float) -> None:
        size = max(64, int(megabytes * 2**20) // 8)
        self._table = np.empty(size, np.uint64)
        self._table.fill(0)  # touched now, so that memory does not grow later
        self.capacity = int(size * LOAD)
        self.count = 0
        self.full = False

    def reserve(self, number: int) -> None:
        """Whether so many more would still go in is settled here, before it is decided what to do with them."""
        self.full = self.full or self.count + number > self.capacity

    def fresh(self, prints: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these were not seen before, here or earlier in the batch; they are now, unless the table is full."""
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
                self._table[at[empty]] = wanted[empty]  # where two want one place the last stays, the other probes on
                done = self._table[at] == wanted
                new[pending[empty & done]] = True
            pending = pending[~done]
            slot[pending] = (slot[pending] + np.uint64(1)) % size
        if not self.full:
            self.count += int(new.sum())
        return new


class Signatures(NamedTuple):
    """Per document: 64 bytes of MinHash, the keys of its bands, and whether it is long enough to compare."""

    marks: NDArray[np.uint8]
    bands: NDArray[np.uint64]
    comparable: list[bool]

    @classmethod
    def none(cls, documents: int) -> "Signatures":
        return cls(np.zeros((0, PERMUTATIONS), np.uint8), np.zeros((0, BANDS), np.uint64), [False] * documents)


def signatures(documents: list[bytes], language: str) -> Signatures:
    shingles = [_shingles(document, language) for document in documents]
    rows = needed("rensa").RMinHash.digest_matrix_from_token_byte_sets(shingles, PERMUTATIONS, SEED).to_rows()
    hashes = np.array(rows, np.uint64).reshape(len(documents), PERMUTATIONS)
    grouped = hashes[:, : BANDS * ROWS].reshape(-1, BANDS, ROWS)
    bands = (grouped * MIXERS).sum(-1, dtype=np.uint64) + np.arange(1, BANDS + 1, dtype=np.uint64) * MIXERS[0]
    bands = (bands ^ (bands >> np.uint64(29))) * MIXERS[1]
    return Signatures(hashes.astype(np.uint8), bands ^ (bands >> np.uint64(32)), [len(s) >= FEWEST for s in shingles])


def _shingles(document: bytes, language: str) -> list[bytes]:
    if primary_language(language) in UNSPACED:
        text = document.decode()
        return [text[i : i + LETTERS_OF_SHINGLE].encode() for i in range(max(0, len(text) - LETTERS_OF_SHINGLE + 1))]
    words = document.split()
    return list(map(b" ".join, zip(words, words[1:], words[2:], strict=False)))


class NearDuplicates:
    """Documents seen so far. Those that share a band with an earlier one are compared with it by their 64 marks."""

    def __init__(self, megabytes: float, threshold: float) -> None:
        self.capacity = max(16, int(megabytes * 2**20 / (PERMUTATIONS + BANDS * 8 / LOAD)))
        self._marks = np.empty((self.capacity, PERMUTATIONS), np.uint8)
        self._marks.fill(0)
        table = np.empty(int(self.capacity * BANDS / LOAD), np.uint64)
        table.fill(0)
        self._table = memoryview(
            cast(Any, table)
        )  # single places are reached several times faster than through the array
        self._threshold = threshold
        self.count = 0
        self.full = False

    def seen(self, marks: NDArray[np.uint8], bands: list[int]) -> bool:
        """Whether a document like this one came before; if not it is remembered, unless there is no more room."""
        free, candidates = self._look_up(bands)
        for row in candidates:
            same = float(np.mean(self._marks[row] == marks))
            if same * 256 / 255 - 1 / 255 >= self._threshold:  # of 256 values, one in 256 is equal by chance
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
        """Free places with their tags for the bands not seen, and the documents that share one."""
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
        while self._table[slot]:  # taken by another band of the same document
            slot = (slot + 1) % len(self._table)
        self._table[slot] = entry
