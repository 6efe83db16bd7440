"""De-identify whole files, and measure a de-identifier on files with annotated personal details."""

import json
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hansa.core.errors import DataError, UserError
from hansa.data.deidentification.deidentify import Deidentifier, measure, rewrite
from hansa.data.formats.annotated import BadRow, entities, spans_of, words_and_tags
from hansa.data.readers import Problems, Row, files, rows
from hansa.data.settings import Data
from hansa.data.source import Source

WHOLE = Data(valid=0.0, test=0.0)
KEY_NAME = ".hansa-key"
LANGUAGE = ("lang", "language")  # the fields that may name a row's language
Progress = Callable[[str], None]


def secret(key_file: Path | None, out: Path) -> str:
    """The key of the surrogates: from the file given, else made once and kept beside the output for its owner only."""
    if key_file is not None:
        if not key_file.is_file():
            raise UserError(
                f"{key_file}: there is no such key file; make one, or leave --key-file out to have one made"
            )
        key = key_file.read_text(encoding="utf-8").strip()
        if not key:
            raise UserError(f"{key_file}: the key file is empty; write a long random line into it")
        return key
    own = out / KEY_NAME
    if own.exists():
        return secret(own, out)
    out.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=out)  # readable by its owner only
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(secrets.token_hex(32) + "\n")
    with suppress(FileExistsError):  # another worker was faster: its key counts
        os.link(draft, own)
    os.unlink(draft)
    return secret(own, out)


def write(
    paths: list[Path], out: Path, field: str, language: str, finder: Deidentifier, key: str, style: str, tell: Progress
) -> dict[str, Any]:
    """Every file again as JSON Lines with its text replaced; rows that cannot be used are left out and reported."""
    problems = Problems()
    counts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    written: dict[str, int] = {}
    for source, target in _targets(paths, out):
        unfinished = target.with_name(target.name + ".part")
        try:
            with unfinished.open("w", encoding="utf-8") as stream:
                for row in _rows(source, field, problems):
                    line = _rewritten(row, field, language, finder, key, style, counts, problems)
                    stream.write(line)
                    others.update(_unread(row, field) if line else ())
                    written[str(target)] = written.get(str(target), 0) + bool(line)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
        tell(f"{source}: {written.get(str(target), 0):,} texts")
    if not written:
        problems.check(0.0, ", ".join(map(str, paths)))
    return {
        "folder": str(out),
        "files": written,
        "texts": sum(written.values()),
        "replaced": dict(counts.most_common()),
        "copied_fields": dict(others.most_common()),
        "broken_lines": problems.broken,
        "first_problems": problems.first,
    }


def _rewritten(
    row: Row,
    field: str,
    language: str,
    finder: Deidentifier,
    key: str,
    style: str,
    counts: Counter[str],
    problems: Problems,
) -> str:
    try:
        if "tokens" in row:
            raise BadRow("it is cut into tokens; de-identify the text before it is annotated")
        new, found = rewrite(row, field, _language(row, language), finder, key, style)
    except (BadRow, DataError) as error:
        problems.note(row.place, str(error))
        return ""
    counts.update(f.type for f in found)
    return json.dumps(new, ensure_ascii=False) + "\n"


def _targets(paths: list[Path], out: Path) -> list[tuple[Path, Path]]:
    """One output for each file found, under its own name; never the input itself, never one for two."""
    pairs = []
    for path in paths:
        for file in files(path):
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
    return rows(Source(train=str(path), text=field), "train", WHOLE, problems)


def _unread(row: Row, field: str) -> list[str]:
    """Fields with text of their own, which nobody looks into."""
    return [n for n, value in row.items() if isinstance(value, str) and value.strip() and n not in (field, *LANGUAGE)]


def _language(row: Row, default: str) -> str:
    language = next((str(row[name]) for name in LANGUAGE if row.get(name)), default)
    if not language:
        raise UserError(f"{row.place}: the row has no 'lang'; say the language with --language")
    return language


def measured(paths: list[Path], field: str, language: str, finder: Deidentifier) -> dict[str, Any]:
    """Scores by language, and what could not be used."""
    problems = Problems()
    by_language: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for row in _rows(path, field, problems):
            try:
                by_language.setdefault(_language(row, language), []).append(_gold(row, field))
            except BadRow as error:
                problems.note(row.place, str(error))
    if not any(by_language.values()):
        first = f", first {problems.first[0]}" if problems.first else ""
        raise DataError(
            f"{', '.join(map(str, paths))}: no row can be measured{first}; give rows with 'personal' spans or BIO tags"
        )
    return {
        "languages": {code: measure(gold, finder, code) for code, gold in sorted(by_language.items()) if gold},
        "texts": {code: len(gold) for code, gold in sorted(by_language.items())},
        "broken_lines": problems.broken,
        "first_problems": problems.first,
    }


def _gold(row: Row, field: str) -> dict[str, Any]:
    """A row as text with personal spans, from spans or from tokens and tags (joined by single spaces)."""
    text = row[field]
    if "tokens" in row:
        words, tags = words_and_tags(row)
        text, ends = " ".join(words), _ends(words)
        spans = [(ends[first] - len(words[first]), ends[past - 1], kind) for first, past, kind in spans_of(tags)]
    elif isinstance(row.get("personal"), list):
        spans = [(e.start, e.end, e.type) for e in entities({"text": text, "entities": row["personal"]})]
    else:
        raise BadRow("it has neither 'personal' spans nor 'tokens' and 'tags'")
    return {"text": text, "personal": [{"span": [start, end], "type": kind} for start, end, kind in spans]}


def _ends(words: list[str]) -> list[int]:
    ends: list[int] = []
    for word in words:
        ends.append((ends[-1] + 1 if ends else 0) + len(word))
    return ends
