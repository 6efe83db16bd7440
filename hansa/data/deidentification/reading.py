"""De-identification while a silo reads its data (`data.deidentify`): nothing after it ever sees a personal detail.

The surrogates' key is made once and stays in this machine's cache folder, readable by its owner only.
"""

from collections.abc import Iterator

from hansa.core.errors import DataError
from hansa.data.deidentification.deidentify import load, rewrite
from hansa.data.deidentification.files import secret
from hansa.data.examples import cache_folder
from hansa.data.readers import Problems, Row
from hansa.data.source import Source


def without_personal_details(rows: Iterator[Row], source: Source, spec: str, problems: Problems) -> Iterator[Row]:
    finder, key = load(spec), secret(None, cache_folder())
    for row in rows:
        language = str(row.get("lang") or source.language or "")
        if not language:
            problems.note(row.place, "its language is not known: say 'language:' at the silo, or 'lang' in the row")
            continue
        if "tokens" in row:
            problems.note(row.place, "its text is cut into tokens: de-identify it before it is cut")
            continue
        try:
            replaced, _ = rewrite(row, source.text, language, finder, key, "surrogates")
        except DataError as error:
            problems.note(row.place, str(error))
            continue
        kept = Row(replaced)
        kept.place = row.place
        yield kept
