"""The rows of one split of a silo: read, de-identified if asked for, cut into train, valid and test, limited.

A split without a file of its own is cut from the training file by a hash of the text. The cut is therefore the same in
every process, and equal texts are always in the same split.
"""

from collections.abc import Iterator
from hashlib import blake2b

from hansa.data.clients import belongs_to_client
from hansa.data.readers import read_rows
from hansa.data.rows import Problems, Row
from hansa.data.settings import Data
from hansa.data.source import Source


def rows(source: Source, split: str, data: Data, problems: Problems) -> Iterator[Row]:
    """The usable rows of a split; ``problems`` counts the others."""
    cut_from_train = split not in source.files()
    taken, most = 0, source.limit if split == "train" else source.held_out_limit
    if split == "train" and source.limit == 0:
        return
    readable = read_rows(source, split, problems)
    if data.deidentify is not None:
        from hansa.data.deidentification.reading import deidentified  # its language files take time to load

        readable = deidentified(readable, source, data.deidentify, problems, data.keep_details)
    for row in readable:
        text = row[source.text]
        if (split == "train" or cut_from_train) and _split_of(text, source, data) != split:
            continue
        if source.part is not None and not belongs_to_client(source.part, text, str(row.get(source.label)), split):
            continue
        taken += 1
        yield row
        if most is not None and taken >= most:
            return


def _split_of(text: str, source: Source, data: Data) -> str:
    """The split of a text of the training file, by its hash."""
    point = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") / 2**64
    test = data.test if source.test is None else 0.0
    valid = data.valid if source.valid is None else 0.0
    return "test" if point < test else "valid" if point < test + valid else "train"
