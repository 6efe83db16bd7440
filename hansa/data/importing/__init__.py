"""Import raw documents: clean sentences of one language, split by document, duplicates removed, in bounded memory.

Reading and all that remembers (duplicates, splits, writing) happen in this process and in the order of the input;
cleaning and splitting happen in worker processes when asked for. The result is the same for any number of them.

Splits: a document goes to train, valid or test by a hash of its content. A sentence is kept where it first comes up
and nowhere else, so none stands on two sides. Once the table of fingerprints is full, only training text is taken,
and of it only what is not in the table, so this still holds. A document too long to hold comes in parts: all go to the
side of the first, and each is judged (language, near-duplicates) and counted among what was left out by itself.
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

BATCH = 1 << 18  # characters that go to a worker at once
Progress = Callable[[int, int], None]  # bytes done, bytes in all


def import_text(
    paths: list[Path], out: Path, settings: Settings, progress: Progress = lambda done, total: None
) -> dict[str, Any]:
    """Write LANG.train/valid/test.jsonl and report.json into ``out``; all of them or, when interrupted, none."""
    _check(settings)
    _check_places(paths, out)
    began = perf_counter()
    total = sum(map(size_of, walk(paths)))
    meter, read = Meter(), Tally()
    pieces = chain.from_iterable(documents(path, settings, meter, read) for path in walk(paths))
    with Drafts(out, settings) as drafts:
        keeper = CorpusWriter(settings, drafts)
        for ready in _prepared(_batches(pieces), settings):
            keeper.take(ready)
            progress(meter.done, total)
        read.merge(keeper.tally)
        report = _report(settings, read, keeper, meter.done, perf_counter() - began)
        drafts.publish(report)
    return report


def read_key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the key cannot be read ({error}); name a text file that holds a secret") from None
    if not key:
        raise UserError(f"{path}: the key is empty; name a text file that holds a secret")
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
        raise UserError(f"--language '{settings.language}' is not a language code; give one such as it, fr or pt-BR")
    if settings.valid + settings.test >= 1:
        raise UserError(
            f"--valid {settings.valid:g} and --test {settings.test:g} leave nothing to train on; "
            "choose shares with a sum below 1"
        )
    if settings.deidentify and not settings.key:
        raise UserError("--deidentify needs a secret for its surrogates; name a file that holds one with --key-file")
    if settings.deidentify:  # a wrong name is said before anything is read
        from hansa.data.deidentification.deidentify import load

        load(settings.deidentify)


def _check_places(paths: list[Path], out: Path) -> None:
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder; name the files or folders to import")
        if out.resolve().is_relative_to(path.resolve()) and path.is_dir():
            raise UserError(f"{out}: this lies inside {path}, which is to be imported; name a folder outside")
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
            if len(waiting) > 2 * settings.workers:  # so many batches are in memory, and no more
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _report(settings: Settings, tally: Tally, keeper: CorpusWriter, size: int, seconds: float) -> dict[str, Any]:
    counts = tally.counts
    return {
        "language": settings.language,
        "files": {"read": counts["files read"]},
        "documents": {"read": counts["documents read"], "kept": sum(keeper.documents.values())},
        "sentences": {"read": counts["sentences read"], "kept": sum(keeper.sentences.values())},
        "splits": {
            side: {"documents": keeper.documents[side], "sentences": keeper.sentences[side]}
            for side in ("train", "valid", "test")
        },
        "dropped": tally.dropped(),
        "personal_details_replaced": counts["personal details replaced"],
        "notes": _notes(settings, keeper),
        "bytes_in": size,
        "bytes_out": keeper.bytes,
        "seconds": round(seconds, 3),
        "megabytes_per_second": round(size / 1e6 / seconds, 2),
    }


def _notes(settings: Settings, keeper: CorpusWriter) -> list[str]:
    """What a reader of the result must know about it."""
    notes = []
    if primary_language(settings.language) not in RULES:
        notes.append(f"the sentence splitter has no rules of its own for '{settings.language}': it used general ones")
    if not settings.keep_other_languages and not can_detect(settings.language):
        notes.append(f"the language detector does not know '{settings.language}': no document was checked")
    empty = [name for name in ("valid", "test") if getattr(settings, name) and not keeper.documents[name]]
    if empty:
        notes.append(
            f"no document fell to {' or '.join(empty)}: there are few; text with many documents in one file needs "
            "--documents blocks or lines"
        )
    if keeper.prints.full:
        notes.append(
            f"the table of sentences was full after {keeper.prints.count:,}: later documents due for valid and test "
            "were dropped, and duplicates among later training sentences were not all found; raise --memory"
        )
    if keeper.near is not None and keeper.near.full:
        notes.append(
            f"the table of documents was full after {keeper.near.count:,}: later documents were compared for "
            "near-duplicates with these only; raise --memory"
        )
    return notes
