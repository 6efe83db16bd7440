"""De-identification while a silo reads its data (`data.deidentify`): later steps see only the replaced text.

The key of the surrogates is created once and stays in the cache folder of this machine, readable by its owner only.
"""

from collections.abc import Iterator
from typing import Any

from hansa.data.cache import cache_folder
from hansa.data.deidentification.deidentify import Deidentifier, failure, load, rewrite, rewrite_together
from hansa.data.deidentification.files import PATIENT, grouped
from hansa.data.deidentification.keys import surrogate_key
from hansa.data.readers import MESSAGES
from hansa.data.rows import NOT_DEIDENTIFIED, Problems, Row
from hansa.data.source import Source


def deidentified(
    rows: Iterator[Row], source: Source, spec: str, problems: Problems, keep: tuple[str, ...] = ()
) -> Iterator[Row]:
    """The rows with personal details replaced by surrogates; ``problems`` counts rows that cannot be de-identified.

    ``spec`` names the finder of personal details, as in `hansa.data.deidentification.finders.load`; ``keep``: types
    that are left alone. Consecutive rows with the same ``patient`` are searched together.
    """
    finder, key = load(spec, keep), surrogate_key(None, cache_folder())
    for group in grouped(_usable(rows, source, problems), source.text, PATIENT, whole=False):
        yield from _replaced(group, source, finder, key, problems)


def _usable(rows: Iterator[Row], source: Source, problems: Problems) -> Iterator[Row]:
    for row in rows:
        if not (row.get("lang") or source.language):
            reason = "its language is not known: set 'language:' of the silo, or 'lang' in the row"
            problems.note(row.place, reason, NOT_DEIDENTIFIED)
        elif "tokens" in row:
            reason = "its text is split into tokens: de-identify it before tokenisation"
            problems.note(row.place, reason, NOT_DEIDENTIFIED)
        else:
            yield row


def _other_texts(row: dict[str, Any], source: Source, language: str, finder: Deidentifier, key: str) -> None:
    """Replace personal details in the second text, the translation and the messages of a row."""
    for name in (source.second, source.target):
        other = source.target_language if name == source.target else ""
        if isinstance(row.get(name), str):
            row[name] = _text(row[name], other or language, finder, key)
    if isinstance(row.get(MESSAGES), list):
        row[MESSAGES] = [_message(one, language, finder, key) for one in row[MESSAGES]]


def _replaced(group: list[Row], source: Source, finder: Deidentifier, key: str, problems: Problems) -> Iterator[Row]:
    language = str(group[0].get("lang") or source.language)
    try:
        made = rewrite_together(group, source.text, language, finder, key, "surrogates")
        for replaced, _ in made:
            _other_texts(replaced, source, language, finder, key)
    except Exception as error:  # whatever a row's text does to the finder must not end the federation
        if len(group) > 1:
            for row in group:
                yield from _replaced([row], source, finder, key, problems)
        else:
            problems.note(group[0].place, failure(error), NOT_DEIDENTIFIED)
        return
    for row, (replaced, _) in zip(group, made, strict=True):
        kept = Row(replaced)
        kept.place = row.place
        yield kept


def _text(text: str, language: str, finder: Deidentifier, key: str) -> str:
    """A text without offsets that refer to it, replaced: a second text, an answer, a translation."""
    replaced, _ = rewrite({"text": text}, "text", language, finder, key, "surrogates")
    return str(replaced["text"])


def _message(message: Any, language: str, finder: Deidentifier, key: str) -> Any:
    """A message of a conversation, replaced; what is no message is for the task to refuse."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return message
    return message | {"content": _text(message["content"], language, finder, key)}
