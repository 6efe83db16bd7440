"""De-identification while a silo reads its data (`data.deidentify`): later steps see only the replaced text.

The key of the surrogates is created once and stays in the cache folder of this machine, readable by its owner only.
"""

from collections.abc import Iterator
from typing import Any

from hansa.data.cache import cache_folder
from hansa.data.deidentification.deidentify import Deidentifier, failure, load, rewrite
from hansa.data.deidentification.keys import surrogate_key
from hansa.data.readers import MESSAGES
from hansa.data.rows import NOT_DEIDENTIFIED, Problems, Row
from hansa.data.source import Source


def deidentified(rows: Iterator[Row], source: Source, spec: str, problems: Problems) -> Iterator[Row]:
    """The rows with personal details replaced by surrogates; ``problems`` counts rows that cannot be de-identified.

    ``spec`` names the finder of personal details, as in `hansa.data.deidentification.deidentify.load`.
    """
    finder, key = load(spec), surrogate_key(None, cache_folder())
    for row in rows:
        language = str(row.get("lang") or source.language or "")
        if not language:
            problems.note(
                row.place,
                "its language is not known: set 'language:' of the silo, or 'lang' in the row",
                NOT_DEIDENTIFIED,
            )
            continue
        if "tokens" in row:
            problems.note(
                row.place, "its text is split into tokens: de-identify it before tokenisation", NOT_DEIDENTIFIED
            )
            continue
        try:
            replaced, _ = rewrite(row, source.text, language, finder, key, "surrogates")
            for name in (source.second, source.target):
                other = source.target_language if name == source.target else ""
                if isinstance(replaced.get(name), str):
                    replaced[name] = _text(replaced[name], other or language, finder, key)
            if isinstance(replaced.get(MESSAGES), list):
                replaced[MESSAGES] = [_message(one, language, finder, key) for one in replaced[MESSAGES]]
        except Exception as error:  # whatever a row's text does to the finder must not end the federation
            problems.note(row.place, failure(error), NOT_DEIDENTIFIED)
            continue
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
