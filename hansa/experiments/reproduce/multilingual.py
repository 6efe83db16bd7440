"""Monolingual clients in several languages with one dominant language: the layouts of Wang et al. (2022), Section 5.1.

    ICD-10      20 clients, the chapter of a disease name; with label skew inside each language
    PI          22 clients, PAWS-X paraphrases (its development set, split in two), or pairs of the STS benchmark
    QA          20 clients, questions and sentences of XQuAD
    NC          70 clients, articles of MasakhaNEWS, by their headline and first words

Files are written for training, validation (to select settings) and testing; a text and its translations are always in
the same split. Every client is tested on its share of its language's test set.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hansa import templates
from hansa.core.seeds import derive, stream
from hansa.data.corpora import clinical_notes as generator
from hansa.data.corpora import icd10
from hansa.experiments.reproduce.corpora import Row, lines

PAWSX = {"en": 16, "de": 1, "es": 1, "fr": 1, "ja": 1, "ko": 1, "zh": 1}  # clients of about a hundred pairs
STSB = {"en": 15, "de": 1, "es": 1, "fr": 1, "it": 1, "nl": 1, "pl": 1, "pt": 1}  # Latin script alone
XQUAD = {"en": 16, "de": 2, "es": 2}
MASAKHANEWS = {"yor": 50, "ibo": 5, "sna": 5, "orm": 5, "run": 5}
ICD10 = {"en": 8, "de": 4, "fr": 3, "es": 3, "pt": 2}
SKEW = 0.3


@dataclass(frozen=True)
class Corpus:
    """A task with the data of its clients."""

    task: str | dict[str, Any]
    silos: Mapping[str, dict[str, Any]]  # language → its source, with 'clients' (and 'skew')
    active: int
    clusters: int
    length: int
    labels: tuple[str, ...]
    words: str = ""  # the folder of its tokenizer; empty: the silos build one

    @property
    def named_task(self) -> dict[str, Any]:
        """The task with its labels, so that silos need not report them."""
        task = {"name": self.task} if isinstance(self.task, str) else self.task
        return task | {"labels": list(self.labels)}

    @property
    def clients(self) -> int:
        """The number of clients over all languages."""
        return sum(source.get("clients", 1) for source in self.silos.values())

    @property
    def majority(self) -> float:
        """The accuracy of guessing the most frequent label of each language's test set, averaged over languages."""
        counts = (Counter(str(row["label"]) for row in _rows(source["test"])) for source in self.silos.values())
        return fmean(max(some.values()) / some.total() for some in counts)

    def sources(self, tuning: bool) -> dict[str, dict[str, Any]]:
        """Language → the settings of its source; for ``tuning``, the validation file is the test file."""
        kept = {name: {k: v for k, v in source.items() if k != "valid"} for name, source in self.silos.items()}
        return kept if not tuning else {n: s | {"test": self.silos[n]["valid"]} for n, s in kept.items()}


Splits = dict[str, list[Row]]


def _rows(file: str) -> list[Row]:
    return [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]


def _source(folder: Path, language: str, splits: Splits, clients: int, **fields: Any) -> dict[str, Any]:
    files = {}
    for split, rows in splits.items():
        file = folder / f"{language}.{split}.jsonl"
        icd10.write_rows(file, rows)
        files[split] = str(file.resolve())
    several = {"clients": clients} if clients > 1 else {}
    return files | {"language": language} | several | fields


def diseases(folder: Path, per_client: int, held_out: int) -> Corpus:
    """ICD-10 names; a code is in the same split in every language."""
    found, silos = icd10.diseases(), {}
    for language, clients in ICD10.items():
        order = stream(0, language, "layout").permutation(len(found[language]))
        splits: Splits = {"train": [], "valid": [], "test": []}
        room = {"train": clients * per_client, "valid": held_out // 2, "test": held_out}
        for i in order:
            row = found[language][i]
            side = derive(0, row["code"], "side") % 10
            split = "test" if side == 0 else "valid" if side == 1 else "train"
            if len(splits[split]) < room[split]:
                splits[split].append({"text": row["text"], "label": row["label"], "lang": language})
        silos[language] = _source(folder / "icd10", language, splits, clients, skew=SKEW)
    return Corpus("classify", silos, 4, 10, 24, _labels(found))


def paraphrases(data: Path, folder: Path, held_out: int) -> Corpus:
    """PAWS-X: rows of all languages have the same order; the last are the test set, with a gap before them."""
    by_language: dict[str, list[Row]] = {language: [] for language in PAWSX}
    for row in lines(data / "pawsx" / "dev.jsonl.gz"):
        by_language[row["lang"]].append(row)
    silos = {}
    for language, rows in by_language.items():
        test, valid = rows[-held_out:], rows[-2 * held_out : -held_out]
        train = rows[: min(100 * PAWSX[language], len(rows) - 2 * held_out - 100)]
        fields = {"text": "sentence1", "second": "sentence2"}
        splits = {"train": train, "valid": valid, "test": test}
        silos[language] = _source(folder / "pawsx", language, splits, PAWSX[language], **fields)
    return Corpus({"name": "pairs", "negative": "0"}, silos, 2, 10, 48, ("0", "1"))


def similar_sentences(data: Path, folder: Path, per_client: int, held_out: int) -> Corpus:
    """Pairs of the STS benchmark: a score of 4 or more is a paraphrase, one of 2 or less is not.

    Pairs have the same number in every language: those of the development set that validate in one language validate
    in all. Every client has other pairs.
    """
    splits: dict[str, Splits] = {language: {"train": [], "valid": [], "test": []} for language in STSB}
    for part in ("train", "dev"):
        for row in lines(data / "stsb_multi" / f"{part}.jsonl.gz"):
            if row["language"] not in STSB or 2 < row["score"] < 4:
                continue
            side = "train" if part == "train" else "valid" if derive(0, row["id"], "half") % 2 else "test"
            label = "1" if row["score"] >= 4 else "0"
            pair = {"text1": row["text1"], "text2": row["text2"], "label": label, "lang": row["language"]}
            splits[row["language"]][side].append(pair | {"id": row["id"]})
    silos = {}
    for language, clients in STSB.items():
        room = {"train": clients * per_client, "valid": held_out, "test": held_out}
        order = {
            side: sorted(rows, key=lambda row: derive(0, row["id"], "order")) for side, rows in splits[language].items()
        }
        kept: Splits = {side: rows[: room[side]] for side, rows in order.items()}
        silos[language] = _source(folder / "stsb", language, kept, clients, text="text1", second="text2")
    return Corpus({"name": "pairs", "negative": "0"}, silos, 2, 10, 64, ("0", "1"))


def questions(data: Path, folder: Path, held_out: int) -> Corpus:
    """XQuAD: whether a sentence answers a question."""
    silos = {}
    splits = {split: list(lines(data / "xquad_qam" / f"{split}.jsonl.gz")) for split in ("train", "dev")}
    for language, clients in XQUAD.items():
        train, dev = ([row for row in splits[split] if row["lang"] == language] for split in ("train", "dev"))
        parts: Splits = {"train": train[: 93 * clients], "valid": dev[:held_out], "test": dev[-held_out:]}
        fields = {"text": "sentence1", "second": "sentence2"}
        silos[language] = _source(folder / "xquad", language, parts, clients, **fields)
    return Corpus({"name": "pairs", "negative": "0"}, silos, 2, 10, 64, ("0", "1"))


def news(data: Path, folder: Path, held_out: int) -> Corpus:
    """MasakhaNEWS: the topic of an article."""
    silos = {}
    splits = {split: list(lines(data / "masakhanews" / f"{split}.jsonl.gz")) for split in ("train", "dev")}
    for language, clients in MASAKHANEWS.items():
        train, dev = ([_article(r) for r in splits[split] if r["lang"] == language] for split in ("train", "dev"))
        half = min(held_out, len(dev) // 2)
        parts: Splits = {"train": train[: 28 * clients], "valid": dev[:half], "test": dev[half : 2 * half]}
        silos[language] = _source(folder / "masakhanews", language, parts, clients)
    return Corpus("classify", silos, 7, 5, 64, _labels(splits))


def _article(row: Row) -> Row:
    return {"text": f"{row['headline']} {row['text']}", "label": row["label"], "lang": row["lang"]}


def _labels(rows: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    return tuple(sorted({str(row["label"]) for some in rows.values() for row in some}))


# ── generated ─────────────────────────────────────────────────────────────────────────────────────────────────────


def generate(folder: Path) -> dict[str, Corpus]:
    """The same layouts from a few generated sentences, for a test that takes seconds."""
    clients = {"en": 3, "de": 1, "fr": 1}
    sentences = {code: list(templates.assertions(code, 24 * n + 16, 0)) for code, n in clients.items()}
    classes = _labels(sentences)
    single = {code: _source(folder / "single", code, _split(sentences[code]), n) for code, n in clients.items()}
    skewed = {code: source | ({"skew": SKEW} if source.get("clients") else {}) for code, source in single.items()}
    fields = {"text": "sentence", "second": "finding"}  # a row belongs to a client by its text
    paired = {
        code: _source(folder / "pairs", code, _split(list(_matches(code, 24 * n + 16))), n, **fields)
        for code, n in clients.items()
    }
    pairs = Corpus({"name": "pairs", "negative": "no"}, paired, 2, 3, 24, ("no", "yes"))
    return {
        "ICD-10": Corpus("classify", skewed, 3, 3, 24, classes),
        "PI": pairs,
        "QA": pairs,
        "NC": Corpus("classify", single, 3, 3, 24, classes),
    }


def _split(rows: list[Row]) -> Splits:
    return {"test": rows[:8], "valid": rows[8:16], "train": rows[16:]}


def _matches(language: str, count: int) -> Iterator[Row]:
    for number in range(count):
        sentence = generator.note(language, number, 1, (1, 1))["text"]
        match = number % 2 == 0
        finding = sentence.split()[-1] if match else "–"
        yield {"finding": finding, "sentence": sentence, "label": "yes" if match else "no", "lang": language}
