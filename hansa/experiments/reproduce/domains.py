"""The five domains of the Translation paper, written from real sentence pairs, or from a few generated ones.

News (the generic domain), subtitles, talks, a manual and menus, in the proportions of Table 1 of the paper.
"""

from collections.abc import Iterator
from pathlib import Path

from hansa.core.errors import DataError
from hansa.core.seeds import stream
from hansa.data.corpora import icd10, phrases
from hansa.experiments.reproduce.corpora import Row, lines

# The paper's domains, the names of our corpora, and the training pairs of a silo at small scale. (The paper: 4.47M,
# 4.5M, 144k, 40k, 13k.)
DOMAINS = {
    "WMT": ("news", 7_000),
    "OS": ("opensubtitles", 3_000),
    "TED": ("ted", 2_000),
    "PHP": ("php", 800),
    "UB": ("ubuntu", 300),
}
GENERATED = dict(zip(DOMAINS, phrases.DOMAINS, strict=True))
FIELDS = {"text": "src", "target": "tgt", "language": "de", "target_language": "en"}
LONGEST = 80  # characters of a side at small scale: takes half of the time of 120, with better translations
HELD_OUT = 200  # at most so many test pairs, and a fifth as many validation pairs

Sources = dict[str, dict[str, str]]


def lay_out(data: Path, folder: Path, everything: bool) -> Sources:
    """Write train, valid and test files of every silo; return the silos' sources.

    The dev split of a corpus is the test set (its test split is reserved); validation pairs are taken from
    train. ``everything``: use all pairs, in the proportions of the corpora.
    """
    for name, (corpus, size) in DOMAINS.items():
        train = list(_pairs(data / "deen_parallel" / f"{corpus}.train.jsonl.gz", everything))
        test = list(_pairs(data / "deen_parallel" / f"{corpus}.dev.jsonl.gz", everything))
        held = len(test) if everything else HELD_OUT
        order = stream(0, corpus, "layout").permutation(len(train))
        valid, kept = order[: held // 5], order[held // 5 :][: None if everything else size]
        write(folder, name, [train[i] for i in kept], [train[i] for i in valid], _some(test, held, corpus))
    return sources(folder)


def generate(folder: Path) -> Sources:
    """The same layout from a few generated pairs, for a test that takes seconds."""
    for name, domain in GENERATED.items():
        rows = [dict(pair) for pair in phrases.pairs(domain, 60 if name == "WMT" else 32, seed=1)]
        write(folder, name, rows[4:], rows[2:4], rows[:2])
    return sources(folder)


def write(folder: Path, name: str, train: list[Row], valid: list[Row], test: list[Row]) -> None:
    """Write the files of one silo."""
    for split, rows in {"train": train, "valid": valid, "test": test}.items():
        icd10.write_rows(folder / f"{name}.{split}.jsonl", rows)


def sources(folder: Path) -> Sources:
    """Domain → the settings of its silo's source."""

    def file(name: str, split: str) -> str:
        """The absolute path of one domain's split."""
        return str((folder / f"{name}.{split}.jsonl").resolve())

    return {name: {s: file(name, s) for s in ("train", "valid", "test")} | FIELDS for name in DOMAINS}


def _pairs(file: Path, everything: bool) -> Iterator[Row]:
    if not file.is_file():
        raise DataError(f"{file} does not exist; --data needs a folder with deen_parallel")
    for row in lines(file):
        if everything or max(len(row["src"]), len(row["tgt"])) <= LONGEST:
            yield {"src": row["src"], "tgt": row["tgt"], "src_lang": row["src_lang"], "tgt_lang": row["tgt_lang"]}


def _some(rows: list[Row], count: int, corpus: str) -> list[Row]:
    order = stream(0, corpus, "test").permutation(len(rows))[:count]
    return [rows[i] for i in sorted(order)]
