"""Decide which sentences are kept, and write them: to draft files, which get their final names at the end."""

import gzip
import io
import json
from collections import Counter
from json.encoder import encode_basestring
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from hansa.core.errors import UserError
from hansa.data.importing.duplicates import Fingerprints, NearDuplicates
from hansa.data.importing.sentences import PreparedBatch
from hansa.data.importing.tally import PLACES, Settings, Tally

SPLITS = ("train", "valid", "test")
DRAFT = ".draft"
DUPLICATE = "duplicate of an earlier sentence"
SHARE_OF_SENTENCES = 0.75  # fraction of the memory for sentences; the rest is for documents


def refuse_nonempty(out: Path) -> None:
    """Raise `UserError` if the output folder contains files other than drafts."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: this is a file; name a new or empty folder to import into")
    if out.is_dir() and any(not path.name.endswith(DRAFT) for path in out.iterdir()):
        raise UserError(f"{out}: this folder is not empty; name a new or empty folder to import into")


class Drafts:
    """The three output files under draft names; they are removed if the import ends early."""

    def __init__(self, out: Path, settings: Settings) -> None:
        self._out = out
        self._made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        suffix = ".jsonl.gz" if settings.gzip else ".jsonl"
        self._paths = {split: out / f"{settings.language}.{split}{suffix}" for split in SPLITS}
        self._raw = {split: _draft(path).open("wb") for split, path in self._paths.items()}
        self._files = {split: _packed(raw) if settings.gzip else raw for split, raw in self._raw.items()}

    def __enter__(self) -> "Drafts":
        return self

    def write(self, split: str, lines: bytes) -> None:
        """Append lines to the draft of a split."""
        self._files[split].write(lines)

    def publish(self, report: dict[str, Any]) -> None:
        """Write report.json and give all drafts their final names."""
        self._close()
        draft = _draft(self._out / "report.json")
        draft.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        for path in (*self._paths.values(), self._out / "report.json"):
            _draft(path).replace(path)

    def _close(self) -> None:
        for file in (*self._files.values(), *self._raw.values()):
            file.close()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._close()
        if kind is not None:
            for path in self._out.glob(f"*{DRAFT}"):
                path.unlink()
            if self._made:
                self._out.rmdir()


def _draft(path: Path) -> Path:
    return path.with_name(path.name + DRAFT)


def _packed(raw: BinaryIO) -> BinaryIO:
    """A gzip stream without name and time in its header, so that the same text gives the same bytes."""
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
    return cast(BinaryIO, io.BufferedWriter(cast(io.RawIOBase, packed)))


class CorpusWriter:
    """Removes duplicates, assigns splits and writes, in the order of the input."""

    def __init__(self, settings: Settings, drafts: Drafts) -> None:
        self._settings = settings
        self._drafts = drafts
        share = SHARE_OF_SENTENCES if settings.near else 1.0
        self.prints = Fingerprints(settings.memory * share)
        self.near = NearDuplicates(settings.memory * (1 - share), settings.near) if settings.near else None
        self.tally = Tally()
        self.documents: Counter[str] = Counter()
        self.sentences: Counter[str] = Counter()
        self.bytes = 0
        self._key = 0  # of the current document
        self._counted = False  # whether the current document was counted as kept

    def add(self, ready: PreparedBatch) -> None:
        """Write the sentences of a batch that are kept, and count the others."""
        self.tally.merge(ready.tally)
        keys = self._document_keys(ready)
        splits = [split_of(key, self._settings) for key in keys]
        self.prints.reserve(len(ready.prints))
        accepted = [filled and self._wanted(ready, n, splits[n]) for n, filled in enumerate(ready.filled)]
        chosen = np.flatnonzero(np.array(accepted, bool)[ready.owner])
        self._count_left_out(ready, accepted, len(ready.prints) - len(chosen))
        fresh = self.prints.fresh(ready.prints[chosen])
        kept = chosen[fresh].tolist()
        self._count_duplicates(ready, chosen[~fresh].tolist())
        self._count_documents(ready, accepted, kept, splits)
        self._write(ready, kept, keys, splits)

    def _document_keys(self, ready: PreparedBatch) -> list[int]:
        """The key of each document; later parts of a long document have the key of the first."""
        found = []
        for key, first in zip(ready.keys, ready.first, strict=True):
            self._key = key if first else self._key
            found.append(self._key)
        return found

    def _wanted(self, ready: PreparedBatch, number: int, where: str) -> bool:
        """Whether a document is kept; the reason for dropping it is counted."""
        if self.prints.full and where != "train":
            reason = "assigned to valid or test after the table of sentences was full (raise --memory)"
        elif self._seen(ready, number):
            reason = "near-duplicate of an earlier document"
        else:
            return True
        self.tally.note("documents", reason, ready.places[number])
        return False

    def _seen(self, ready: PreparedBatch, number: int) -> bool:
        if self.near is None or not ready.signatures.comparable[number]:
            return False
        return self.near.seen(ready.signatures.marks[number], ready.signatures.bands[number].tolist())

    def _count_left_out(self, ready: PreparedBatch, accepted: list[bool], number: int) -> None:
        if number:
            place = next(ready.places[owner] for owner in ready.owner if not accepted[owner])
            self.tally.note("sentences", "in a dropped document", place, number)

    def _count_duplicates(self, ready: PreparedBatch, indices: list[int]) -> None:
        for index in indices[:PLACES]:
            self.tally.note("sentences", DUPLICATE, ready.places[ready.owner[index]], count=0)
        if indices:
            self.tally.reasons["sentences"][DUPLICATE] += len(indices)

    def _write(self, ready: PreparedBatch, indices: list[int], keys: list[int], splits: list[str]) -> None:
        tails = [f', "lang": "{self._settings.language}", "doc": "{key:016x}"}}\n' for key in keys]
        lines: dict[str, list[str]] = {name: [] for name in SPLITS}
        owner = ready.owner.tolist()
        for index in indices:
            document = owner[index]
            lines[splits[document]].append('{"text": ' + encode_basestring(ready.sentences[index]) + tails[document])
        for name, written in lines.items():
            data = "".join(written).encode()
            self._drafts.write(name, data)
            self.sentences[name] += len(written)
            self.bytes += len(data)

    def _count_documents(
        self, ready: PreparedBatch, accepted: list[bool], indices: list[int], splits: list[str]
    ) -> None:
        filled = set(ready.owner[indices].tolist())
        for number, first in enumerate(ready.first):
            self._counted = self._counted and not first
            if number in filled and not self._counted:
                self.documents[splits[number]] += 1
                self._counted = True
            elif accepted[number] and number not in filled:
                self.tally.note("documents", "no sentence left: all are unsuitable or duplicates", ready.places[number])


def split_of(key: int, settings: Settings) -> str:
    """The split of a document, by its key."""
    point = key / 2**64
    return "test" if point < settings.test else "valid" if point < settings.test + settings.valid else "train"
