"""De-identify files, and score a finder of personal details on annotated files."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hansa.core.errors import DataError, UserError
from hansa.data.deidentification.deidentify import Deidentifier, failure, rewrite_together
from hansa.data.deidentification.kinds import kind_of
from hansa.data.deidentification.measuring import measure
from hansa.data.formats.annotated import BadRow, bio_spans, entities, words_and_tags
from hansa.data.readers import data_files, read_rows
from hansa.data.rows import Problems, Row
from hansa.data.source import Source

PATIENT = "patient"  # field that says which rows are about one patient
LARGEST_GROUP = 200_000  # characters that are searched together
CONTEXT = 40  # characters before and after a detail in a preview
LANGUAGE = ("lang", "language")  # fields that may hold a row's language
Progress = Callable[[str], None]


def deidentify_files(
    paths: list[Path],
    out: Path,
    field: str,
    language: str,
    finder: Deidentifier,
    key: str,
    style: str,
    report: Progress,
    patient: str = PATIENT,
) -> dict[str, Any]:
    """Write every file as JSON Lines with the text in ``field`` replaced; unusable rows are left out and counted.

    The lines of a text file, and consecutive rows with the same value in the field ``patient``, are searched together.
    Returns counts: texts written, details replaced by type, unusable rows, fields that were copied unchanged, and the
    files that were skipped.
    """
    problems = Problems()
    counts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    written: dict[str, int] = {}
    for source, target in _targets(paths, out):
        unfinished = target.with_name(target.name + ".part")
        try:
            with unfinished.open("w", encoding="utf-8") as stream:
                for rows in grouped(_rows(source, field, problems), field, patient, source.name.endswith(".txt")):
                    for row, new in _rewritten(rows, field, language, finder, key, style, counts, problems):
                        stream.write(json.dumps(new, ensure_ascii=False) + "\n")
                        others.update(_copied(row, field))
                        written[str(target)] = written.get(str(target), 0) + 1
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
        report(f"{source}: {written.get(str(target), 0):,} texts")
    if not written:
        problems.check(0.0, ", ".join(map(str, paths)))
    return {
        "folder": str(out),
        "files": written,
        "texts": sum(written.values()),
        "replaced": dict(counts.most_common()),
        "copied_fields": dict(others.most_common()),
        "bad_rows": problems.bad,
        "first_problems": problems.first,
        "skipped": skipped(paths),
    }


def grouped(rows: Iterable[Row], field: str, patient: str, whole: bool) -> Iterator[list[Row]]:
    """Consecutive rows that belong together: all (``whole``), or those with the same value in the field ``patient``.

    A group has at most `LARGEST_GROUP` characters, so that memory is bounded.
    """
    group: list[Row] = []
    size = 0
    for row in rows:
        same = whole or (bool(row.get(patient)) and bool(group) and group[-1].get(patient) == row[patient])
        length = len(row[field])
        if group and ("tokens" in row or not same or size + length > LARGEST_GROUP):
            yield group
            group, size = [], 0
        group.append(row)
        size += length
    if group:
        yield group


def skipped(paths: list[Path]) -> list[str]:
    """The files below the given folders that are not read, because no reader knows their format."""
    found: list[str] = []
    for path in paths:
        if path.is_dir():
            read = set(data_files(path))
            beside = {file.with_suffix(".ann") for file in read if file.suffix == ".txt"}
            found += sorted(str(p) for p in path.rglob("*") if p.is_file() and p not in read and p not in beside)
    return found


def preview_files(
    paths: list[Path], field: str, language: str, finder: Deidentifier, count: int
) -> Iterator[dict[str, str]]:
    """The first ``count`` details that would be replaced, each with its place, type and context, for a person to check.

    What this yields quotes the text: show it to people who may read the text, and do not store it.
    """
    shown = 0
    for path in paths:
        for row in _rows(path, field, Problems()):
            text = row[field]
            for f in finder.find(text, _language(row, language)):
                if shown == count:
                    return
                shown += 1
                before, after = text[max(0, f.start - CONTEXT) : f.start], text[f.end : f.end + CONTEXT]
                yield {
                    "place": row.place,
                    "type": f.type,
                    "before": before,
                    "found": text[f.start : f.end],
                    "after": after,
                }


def _rewritten(
    rows: list[Row],
    field: str,
    language: str,
    finder: Deidentifier,
    key: str,
    style: str,
    counts: Counter[str],
    problems: Problems,
) -> list[tuple[Row, Row]]:
    """The rows of a group with their replacements; if the group fails as a whole, row by row."""
    try:
        if "tokens" in rows[0]:
            raise BadRow("its text is split into tokens; de-identify it before tokenisation")
        made = rewrite_together(rows, field, _language(rows[0], language), finder, key, style)
    except UserError as error:
        if not isinstance(error, DataError):  # about the language or the finder, not about this row
            raise
        reason = str(error)
    except BadRow as error:
        reason = str(error)
    except Exception as error:
        reason = failure(error)
    else:
        counts.update(f.type for _, found in made for f in found)
        return [(row, Row(new)) for row, (new, _) in zip(rows, made, strict=True)]
    if len(rows) > 1:
        one_by_one = (_rewritten([row], field, language, finder, key, style, counts, problems) for row in rows)
        return [pair for pairs in one_by_one for pair in pairs]
    problems.note(rows[0].place, reason)
    return []


def _targets(paths: list[Path], out: Path) -> list[tuple[Path, Path]]:
    """(input, output) of every file; raises `UserError` if an output would overwrite an input or another output."""
    pairs = []
    for path in paths:
        for file in data_files(path):
            name = file.relative_to(path) if path.is_dir() else Path(file.name)
            plain = name.with_name(name.name.removesuffix(".gz"))
            pairs.append((file, out / plain.with_suffix(".jsonl")))
    for place, (source, target) in enumerate(pairs):
        if target.resolve() == source.resolve():
            raise UserError(f"{source}: the output would overwrite it; choose another folder with --out")
        if target in [t for _, t in pairs[:place]]:
            raise UserError(f"{source}: another file would also be written to {target}; de-identify them one by one")
        target.parent.mkdir(parents=True, exist_ok=True)
    return pairs


def _rows(path: Path, field: str, problems: Problems) -> Iterator[Row]:
    return read_rows(Source(train=str(path), text=field), "train", problems)


def _copied(row: Row, field: str) -> list[str]:
    """Fields with text that is copied without being searched for personal details."""
    return [n for n, value in row.items() if isinstance(value, str) and value.strip() and n not in (field, *LANGUAGE)]


def _language(row: Row, default: str) -> str:
    language = next((str(row[name]) for name in LANGUAGE if row.get(name)), default)
    if not language:
        raise UserError(f"{row.place}: the row has no 'lang'; name its language with --language")
    return language


def score_files(
    paths: list[Path], field: str, language: str, finder: Deidentifier, types: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Leak rate, precision and recall of a finder by language, on rows with annotated personal details.

    ``types`` maps types of the annotation to ours, beside those that are known.

    Raises `DataError` if no row has such annotation.
    """
    problems = Problems()
    by_language: dict[str, list[dict[str, Any]]] = {}
    for code, gold in gold_rows(paths, field, language, problems):
        by_language.setdefault(code, []).append(gold)
    if not any(by_language.values()):
        first = f", first {problems.first[0]}" if problems.first else ""
        raise DataError(
            f"{', '.join(map(str, paths))}: no row can be scored{first}; give rows with 'personal' spans or BIO tags"
        )
    return {
        "languages": {
            code: measure(gold, finder, code, types=types) for code, gold in sorted(by_language.items()) if gold
        },
        "texts": {code: len(gold) for code, gold in sorted(by_language.items())},
        "bad_rows": problems.bad,
        "first_problems": problems.first,
    }


def gold_rows(
    paths: list[Path], field: str, language: str, problems: Problems | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The language of each annotated row, and the row as {"text", "personal"}; ``problems`` counts unusable rows.

    Raises `UserError` if a row says no language and ``language`` is empty.
    """
    noted = Problems() if problems is None else problems
    for path in paths:
        for row in _rows(path, field, noted):
            try:
                gold = _gold(row, field)
            except BadRow as error:
                noted.note(row.place, str(error))
            else:
                yield _language(row, language), gold


def annotated_rows(paths: list[Path], field: str, language: str) -> Iterator[dict[str, Any]]:
    """Rows with annotated personal details: {"text", "lang", "personal"}, types as ours and overlaps removed.

    Rows without annotation are skipped.
    """
    for code, gold in gold_rows(paths, field, language):
        yield {"text": gold["text"], "lang": code, "personal": _outer(gold["personal"])}


def _outer(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spans that lie in no other one, with our types."""
    kept: list[dict[str, Any]] = []
    for one in sorted(spans, key=lambda s: (s["span"][0], -s["span"][1])):
        if not kept or one["span"][0] >= kept[-1]["span"][1]:
            kept.append({"span": one["span"], "type": kind_of(one["type"])})
    return kept


def _gold(row: Row, field: str) -> dict[str, Any]:
    """A row as its text and personal spans; tokens are joined by single spaces."""
    text = row[field]
    if "tokens" in row:
        words, tags = words_and_tags(row)
        text, ends = " ".join(words), _ends(words)
        spans = [(ends[first] - len(words[first]), ends[past - 1], kind) for first, past, kind in bio_spans(tags)]
    elif isinstance(given := row.get("personal", row.get("entities")), list):
        spans = [(e.start, e.end, e.type) for e in entities({"text": text, "entities": given})]
    else:
        raise BadRow("it has neither 'personal' spans nor 'tokens' and 'tags'")
    return {"text": text, "personal": [{"span": [start, end], "type": kind} for start, end, kind in spans]}


def _ends(words: list[str]) -> list[int]:
    """Where each word ends in the text of all words joined by spaces."""
    ends: list[int] = []
    for word in words:
        ends.append((ends[-1] + 1 if ends else 0) + len(word))
    return ends
