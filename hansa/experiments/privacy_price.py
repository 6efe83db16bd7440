"""The price of privacy, in one table: accuracy and ε of each protection, on clinical text with documents.

The task is clinical entities (E3C, named-entity recognition), from a public pre-trained encoder; the silos are four
languages. Every row of the table is one federation file: the same data, start and number of rounds, another protection.
The noise of a row follows from its ε and its δ, by the accountant. Only the head is trained: noise grows with the
number of trained values, and some 100 documents bear no more.

The entities of E3C come without the names of their documents; the events of the same sentences (`e3c_assertion`) have
them, and sentences without an event are left out. Documents are held out by a hash of their name, so that no document
is in the training and in the test rows. Finished rows are kept in `cells.json` of the output folder and not repeated; a
row whose settings this version does not know is left out, with the reason.

Explored before, on fixed features of the same encoder: assertion and temporal relation instead of entities do not rise
above the most frequent label with a trained head, with or without noise.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hansa.config.file import dump, parse
from hansa.core.errors import ConfigError, UserError
from hansa.core.seeds import derive
from hansa.experiments.reproduce.encoder import folder_of
from hansa.privacy.dp.accounting import epsilon
from hansa.privacy.dp.prices import update_prices
from hansa.runs.run import run
from hansa.runs.summary import average

LANGUAGES = ("en", "es", "fr", "it")
ENTITY = "CLINENTITY"
HELD_OUT = 0.25  # of the documents
EPSILON, DELTA = 8.0, 1e-3  # δ lies well below one over the about 100 documents
CLIP = 0.5  # of an update, or of the gradient of one document
LR, BATCH = 1.0, 16
GROUPS = 8  # clients of one language, where many clients take part
MARKS = "<!-- the price of privacy: hansa audit price-table -->", "<!-- end of the price of privacy -->"
COLUMNS = ("protection", "protected unit", "ε", "F1 of overlapping entities", "strict F1")


@dataclass(frozen=True)
class Scale:
    """How much is computed: training rows of a silo, rounds, tokens of a sample, processes."""

    limit: int | None = None
    rounds: int = 30
    length: int = 64
    workers: int | None = None


@dataclass(frozen=True)
class Cell:
    """One row of the table: a protection, and what its federation file says differently."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    silo: dict[str, Any] = field(default_factory=dict)  # of every silo
    many: bool = False  # the silos are groups of documents


def multiplier(rounds: int, sampling: float = 1.0, target: float = EPSILON, delta: float = DELTA) -> float:
    """The noise multiplier with which so many releases cost the target ε, by bisection, rounded up to 1%."""
    low, high = 0.05, 200.0
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon(middle, rounds, delta, sampling) > target else (low, middle)
    return round(high, 4)


def cells(scale: Scale) -> Iterator[Cell]:
    """The rows of the table."""
    once = multiplier(scale.rounds)
    noise = {"multiplier": once, "clip": CLIP, "delta": DELTA, "seeded": True}
    yield Cell("none")
    yield Cell("noise at every silo", silo={"privacy": {"noise_multiplier": once, "clip": CLIP, "delta": DELTA}})
    per_document = {
        "unit": "document",
        "field": "doc",
        "sampling": 1.0,
        "steps": 1,
        "noise_multiplier": once,
        "clip": CLIP,
        "delta": DELTA,
        "seeded": True,
    }
    yield Cell("noise per document", silo={"privacy": per_document})
    together = {"secure_aggregation": {"noise": noise}, "aggregate": {"weights": "uniform"}}
    yield Cell("noise in shares under secure aggregation, 4 silos", together)
    yield Cell(f"noise in shares under secure aggregation, {4 * GROUPS} clients", together, many=True)


def price_table(
    data: Path,
    encoder: str,
    out: Path,
    scale: Scale,
    watch: Callable[[str], Iterable[object]],
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run every row that is not there yet; return the findings as plain values.

    ``data``: the folder with the corpus `e3c_assertion`; ``encoder``: see `hansa reproduce`; ``out``: the folder of
    the runs, in which finished rows are kept. Raises `UserError` if the corpus is not there.
    """
    model = str(folder_of(encoder))
    silos, clients = corpus(data, out)
    store = out / "cells.json"
    done: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.is_file() else {}
    rows, skipped = [], []
    for cell in cells(scale):
        raw = federation_of(cell, scale, model, clients if cell.many else silos)
        try:
            federation = parse(raw)
        except ConfigError as error:
            skipped.append(f"{cell.name}: left out, since this version does not know its settings ({_first(error)})")
            say(skipped[-1])
            continue
        key = f"{cell.name} {derive(0, dump(federation))}"
        if key not in done:
            say(f"{cell.name}: running")
            folder = out / f"{len(done)}-{cell.name.replace(' ', '-').replace(',', '')}"
            outcome = run(federation, folder, (folder / "federation.yaml").is_file(), scale.workers, watch(cell.name))
            costs = update_prices(federation, federation.rounds)
            worst = max(costs.values(), key=lambda cost: cost.epsilon, default=None)
            done[key] = {
                "protection": cell.name,
                "unit": worst.unit if worst else "none",
                "epsilon": worst.epsilon if worst else None,
                "delta": worst.delta if worst else None,
                "score": average(outcome.metrics, "type_f1"),
                "strict": average(outcome.metrics, "strict_f1"),
            }
            store.write_text(json.dumps(done, indent=1, ensure_ascii=False), encoding="utf-8")
        rows.append(done[key])
    found = {"kind": "price-table", "rows": rows, "skipped": skipped, "scale": vars(scale)}
    return found | {"reading": reading(found)}


def federation_of(cell: Cell, scale: Scale, model: str, silos: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The federation file of a row."""
    limit = {"limit": scale.limit} if scale.limit is not None else {}
    if limit and cell.many:
        limit = {"limit": max(1, (scale.limit or 0) // GROUPS)}
    return {
        "name": "price",
        "task": {"name": "ner", "labels": [ENTITY]},
        "model": {"path": model, "adapt": "frozen"},
        "data": {"max_length": scale.length, "valid": 0.0, "test": 0.01},
        "silos": {name: one | limit | cell.silo for name, one in silos.items()},
        "rounds": scale.rounds,
        "train": {"optimizer": "sgd", "lr": LR, "batch": BATCH, "samples": {"epochs": 1}},
        "server": {"optimizer": "momentum", "lr": 1.0, "momentum": 0.9},
        "evaluate": {"every": scale.rounds, "share": 0.2},
        "checkpoint": {"every": scale.rounds},
        **cell.settings,
    }


def corpus(data: Path, out: Path) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Write the rows of each language, and of each group of documents; return the sources of silos and of clients."""
    out.mkdir(parents=True, exist_ok=True)
    documents = {(row["lang"], _key(row["text"])): row["doc"] for row in _read(data / "e3c_assertion")}
    rows = [
        row | {"doc": documents[place]}
        for row in _read(data / "e3c_ner")
        if (place := (row["lang"], _key("".join(row["tokens"])))) in documents
    ]
    silos, clients = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    for language in LANGUAGES:
        own = [row for row in rows if row["lang"] == language]
        train = [row for row in own if _point(row["doc"]) >= HELD_OUT]
        test = _write(out / f"{language}.test.jsonl", [row for row in own if _point(row["doc"]) < HELD_OUT])
        silos[language] = {"train": _write(out / f"{language}.jsonl", train), "test": test, "language": language}
        order = {doc: number % GROUPS for number, doc in enumerate(sorted({row["doc"] for row in train}))}
        for group in range(GROUPS):
            some = _write(out / f"{language}-{group}.jsonl", [row for row in train if order[row["doc"]] == group])
            beside = {"test": test} if group == 0 else {}
            clients[f"{language}-{group + 1}"] = {"train": some, "language": language} | beside
    return silos, clients


def _read(folder: Path) -> list[dict[str, Any]]:
    file = folder / "train.jsonl.gz"
    if not file.is_file():
        raise UserError(f"--data: {file} does not exist; give the folder that holds e3c_ner and e3c_assertion")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _key(text: str) -> str:
    """The letters and digits of a sentence: the two corpora separate words differently."""
    return re.sub(r"\W", "", text)


def _point(document: str) -> float:
    return int.from_bytes(blake2b(document.encode(), digest_size=8).digest(), "big") / 2**64


def _write(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(file.resolve())


def _first(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table_rows(found: dict[str, Any]) -> list[list[str]]:
    """The rows of the table as text."""
    return [
        [
            row["protection"],
            row["unit"],
            "–" if row["epsilon"] is None else f"{row['epsilon']:.3g} (δ = {row['delta']:g})",
            f"{row['score']:.4f}",
            f"{row['strict']:.4f}",
        ]
        for row in found["rows"]
    ]


def into_page(text: str, found: dict[str, Any]) -> str:
    """The page with the table between its marks; raises `UserError` if the page has none."""
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise UserError(f"--write: the page has no place for the table; add the lines '{MARKS[0]}' and '{MARKS[1]}'")
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|"]
    lines += [f"| {' | '.join(row)} |" for row in table_rows(found)]
    lines += ["", *(f"- {line}" for line in found["reading"])]
    return before + mark + "\n" + "\n".join(lines) + "\n" + end + after


def reading(found: dict[str, Any]) -> list[str]:
    """What the findings mean, in sentences."""
    scale, rows = found["scale"], found["rows"]
    rows_of = "all sentences" if scale["limit"] is None else f"the first {scale['limit']} sentences of each language"
    lines = [
        f"E3C entities in {', '.join(LANGUAGES)}; {rows_of}, {scale['rounds']} rounds, the encoder frozen and the head "
        "trained; documents are held out; means over languages. A model that finds nothing has an F1 of 0."
    ]
    bare = next((row for row in rows if row["epsilon"] is None), None)
    private = [row for row in rows if row["epsilon"] is not None and row["epsilon"] < 10]
    if bare is not None and private:
        best = max(private, key=lambda row: row["score"])
        lines.append(
            f"Best with a single-digit ε: {best['protection']} (F1 {best['score']:.4f}, "
            f"{best['score'] / max(bare['score'], 1e-9):.0%} of that without protection)."
        )
    return [*lines, *found["skipped"]]
