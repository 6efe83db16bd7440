"""Decide what is kept, and write it: drafts while the import runs, the real names when it is complete."""

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

SIDES = ("train", "valid", "test")
DRAFT = ".draft"
DUPLICATE = "duplicate of an earlier sentence"
SHARE_OF_SENTENCES = 0.75  # of the memory; the rest is for comparing documents


def refuse_nonempty(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: this is a file; name a new or empty folder to import into")
    if out.is_dir() and any(not path.name.endswith(DRAFT) for path in out.iterdir()):
        raise UserError(f"{out}: this folder is not empty; name a new or empty folder to import into")


class Drafts:
    """The three output files under draft names; whatever ends the import early removes them."""

    def __init__(self, out: Path, settings: Settings) -> None:
        self._out = out
        self._made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        suffix = ".jsonl.gz" if settings.gzip else ".jsonl"
        self._paths = {side: out / f"{settings.language}.{side}{suffix}" for side in SIDES}
        self._raw = {side: _draft(path).open("wb") for side, path in self._paths.items()}
        self._files = {side: _packed(raw) if settings.gzip else raw for side, raw in self._raw.items()}

    def __enter__(self) -> "Drafts":
        return self

    def write(self, side: str, lines: bytes) -> None:
        self._files[side].write(lines)

    def publish(self, report: dict[str, Any]) -> None:
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
    """Without name and time inside, so that the same text gives the same bytes."""
    packed = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0)
    return cast(BinaryIO, io.BufferedWriter(cast(io.RawIOBase, packed)))


class CorpusWriter:
    """All that needs a memory of earlier documents, in the order of the input."""

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
        self._key = 0  # of the document that is open
        self._counted = False  # whether it is among the documents kept

    def take(self, ready: PreparedBatch) -> None:
        self.tally.merge(ready.tally)
        keys = self._document_keys(ready)
        sides = [side(key, self._settings) for key in keys]
        self.prints.reserve(len(ready.prints))
        looked_at = [filled and self._wanted(ready, n, sides[n]) for n, filled in enumerate(ready.filled)]
        chosen = np.flatnonzero(np.array(looked_at, bool)[ready.owner])
        self._count_left_out(ready, looked_at, len(ready.prints) - len(chosen))
        fresh = self.prints.fresh(ready.prints[chosen])
        kept = chosen[fresh].tolist()
        self._count_duplicates(ready, chosen[~fresh].tolist())
        self._count_documents(ready, looked_at, kept, sides)
        self._write(ready, kept, keys, sides)

    def _document_keys(self, ready: PreparedBatch) -> list[int]:
        """A further part of a long document belongs with its first."""
        found = []
        for key, first in zip(ready.keys, ready.first, strict=True):
            self._key = key if first else self._key
            found.append(self._key)
        return found

    def _wanted(self, ready: PreparedBatch, number: int, where: str) -> bool:
        """Whether a document's sentences are looked at, unless they are known already."""
        if self.prints.full and where != "train":
            reason = "due for valid or test after the table of sentences was full (raise --memory)"
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

    def _count_left_out(self, ready: PreparedBatch, looked_at: list[bool], number: int) -> None:
        if number:
            place = next(ready.places[owner] for owner in ready.owner if not looked_at[owner])
            self.tally.note("sentences", "in a document left out", place, number)

    def _count_duplicates(self, ready: PreparedBatch, indices: list[int]) -> None:
        for index in indices[:PLACES]:
            self.tally.note("sentences", DUPLICATE, ready.places[ready.owner[index]], count=0)
        if indices:
            self.tally.reasons["sentences"][DUPLICATE] += len(indices)

    def _write(self, ready: PreparedBatch, indices: list[int], keys: list[int], sides: list[str]) -> None:
        tails = [f', "lang": "{self._settings.language}", "doc": "{key:016x}"}}\n' for key in keys]
        lines: dict[str, list[str]] = {name: [] for name in SIDES}
        owner = ready.owner.tolist()
        for index in indices:
            document = owner[index]
            lines[sides[document]].append('{"text": ' + encode_basestring(ready.sentences[index]) + tails[document])
        for name, written in lines.items():
            data = "".join(written).encode()
            self._drafts.write(name, data)
            self.sentences[name] += len(written)
            self.bytes += len(data)

    def _count_documents(
        self, ready: PreparedBatch, looked_at: list[bool], indices: list[int], sides: list[str]
    ) -> None:
        filled = set(ready.owner[indices].tolist())
        for number, first in enumerate(ready.first):
            self._counted = self._counted and not first
            if number in filled and not self._counted:
                self.documents[sides[number]] += 1
                self._counted = True
            elif looked_at[number] and number not in filled:
                self.tally.note("documents", "nothing left: its sentences are unfit or known", ready.places[number])


def side(key: int, settings: Settings) -> str:
    point = key / 2**64
    return "test" if point < settings.test else "valid" if point < settings.test + settings.valid else "train"
