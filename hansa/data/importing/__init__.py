"""Import raw documents: clean sentences of one language, split by document, without duplicates, in bounded memory.

This process reads the input, removes duplicates, assigns splits and writes, in the order of the input. Cleaning and
sentence splitting run in worker processes if ``workers`` is above 1. The result does not depend on their number.

Splits: a hash of its content assigns a document to train, valid or test. Only the first occurrence of a sentence is
kept, so no sentence is in two splits. Once the table of fingerprints is full, only training documents are accepted, and
of these only sentences that are not in the table, so this still holds. A document that is too long for memory is
processed in parts: all belong to the split of the first part; language and near-duplicates are checked for each part.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from hansa.core.errors import DataError, UserError, did_you_mean
from hansa.data.importing.documents import documents
from hansa.data.importing.files import KINDS, Meter, size_of, walk
from hansa.data.importing.sentences import RULES, PreparedBatch, can_detect, prepare
from hansa.data.importing.tally import Piece, Settings, Tally, primary_language
from hansa.data.importing.writing import CorpusWriter, Drafts, refuse_nonempty

__all__ = ["Settings", "import_text", "read_key"]

BATCH = 1 << 18  # characters sent to a worker at once
Progress = Callable[[int, int], None]  # bytes done, bytes in total


def import_text(
    paths: list[Path], out: Path, settings: Settings, progress: Progress = lambda done, total: None
) -> dict[str, Any]:
    """Write LANG.train/valid/test.jsonl and report.json into ``out``; if interrupted, write none of them.

    Returns the content of report.json. Raises `UserError` if a setting or folder cannot be used.
    """
    _check(settings)
    _check_places(paths, out)
    began = perf_counter()
    total = sum(map(size_of, walk(paths)))
    meter, read = Meter(), Tally()
    pieces = chain.from_iterable(documents(path, settings, meter, read) for path in walk(paths))
    with Drafts(out, settings) as drafts:
        writer = CorpusWriter(settings, drafts)
        for ready in _prepared(_batches(pieces), settings):
            writer.add(ready)
            progress(meter.done, total)
        read.merge(writer.tally)
        report = _report(settings, read, writer, meter.done, perf_counter() - began)
        drafts.publish(report)
    return report


def read_key(path: Path) -> str:
    """The secret in a text file; raises `UserError` if it is unreadable or empty."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the key cannot be read ({error}); name a text file that contains a secret") from None
    if not key:
        raise UserError(f"{path}: the key is empty; name a text file that contains a secret")
    return key


CHOICES = {
    "kind": ("auto", *KINDS),
    "documents": ("files", "blocks", "lines"),
    "style": ("surrogates", "tags"),
}


def _check(settings: Settings) -> None:
    for name, known in CHOICES.items():
        seen = getattr(settings, name)
        if seen not in known:
            raise UserError(f"--{name} '{seen}' is not known; {did_you_mean(seen, known)}")
    if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", settings.language):
        raise UserError(f"--language '{settings.language}' is not a language code; use a code such as it, fr or pt-BR")
    if settings.valid + settings.test >= 1:
        raise UserError(
            f"--valid {settings.valid:g} and --test {settings.test:g} leave no training data; "
            "choose fractions with a sum below 1"
        )
    if settings.deidentify and not settings.key:
        raise UserError("--deidentify needs a secret for its surrogates; name a file that contains one with --key-file")
    if settings.deidentify:  # report a wrong name before reading the input
        from hansa.data.deidentification.finders import load

        load(settings.deidentify, settings.keep_details)


def _check_places(paths: list[Path], out: Path) -> None:
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder; name the files or folders to import")
        if out.resolve().is_relative_to(path.resolve()) and path.is_dir():
            raise UserError(f"{out}: this folder is inside {path}, which is to be imported; name another folder")
    refuse_nonempty(out)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _prepared(batches: Iterator[list[Piece]], settings: Settings) -> Iterator[PreparedBatch]:
    work = partial(prepare, settings=settings)
    if settings.workers <= 1:
        yield from map(work, batches)
        return
    with ProcessPoolExecutor(settings.workers, mp_context=get_context("spawn")) as pool:
        waiting: deque[Future[PreparedBatch]] = deque()
        for batch in batches:
            waiting.append(pool.submit(work, batch))
            if len(waiting) > 2 * settings.workers:  # bounds the batches in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _report(settings: Settings, tally: Tally, writer: CorpusWriter, size: int, seconds: float) -> dict[str, Any]:
    counts = tally.counts
    return {
        "language": settings.language,
        "files": {"read": counts["files read"]},
        "documents": {"read": counts["documents read"], "kept": sum(writer.documents.values())},
        "sentences": {"read": counts["sentences read"], "kept": sum(writer.sentences.values())},
        "splits": {
            split: {"documents": writer.documents[split], "sentences": writer.sentences[split]}
            for split in ("train", "valid", "test")
        },
        "dropped": tally.dropped(),
        "personal_details_replaced": counts["personal details replaced"],
        "notes": _notes(settings, writer),
        "bytes_in": size,
        "bytes_out": writer.bytes,
        "seconds": round(seconds, 3),
        "megabytes_per_second": round(size / 1e6 / seconds, 2),
    }


def _notes(settings: Settings, writer: CorpusWriter) -> list[str]:
    """Limitations of this import that the user must know."""
    notes = []
    if primary_language(settings.language) not in RULES:
        notes.append(f"the sentence splitter has no rules for '{settings.language}': it used general rules")
    if not settings.keep_other_languages and not can_detect(settings.language):
        notes.append(f"the language detector does not support '{settings.language}': no document was checked")
    empty = [name for name in ("valid", "test") if getattr(settings, name) and not writer.documents[name]]
    if empty:
        notes.append(
            f"no document was assigned to {' or '.join(empty)}, because there are few; if a file contains many "
            "documents, use --documents blocks or lines"
        )
    if writer.prints.full:
        notes.append(
            f"the table of sentences was full after {writer.prints.count:,}: later documents assigned to valid and "
            "test were dropped, and not all duplicates among later training sentences were found; raise --memory"
        )
    if writer.near is not None and writer.near.full:
        notes.append(
            f"the table of documents was full after {writer.near.count:,}: later documents were compared with these "
            "only; raise --memory"
        )
    return notes
