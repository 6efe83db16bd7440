"""The price table: every row is a federation file, finished rows are not repeated, and the page keeps its text."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hansa.config.file import parse
from hansa.core.errors import UserError
from hansa.core.seeds import stream
from hansa.experiments import privacy_price
from hansa.experiments.privacy_price import MARKS, Scale, cells, corpus, into_page, multiplier, price_table
from hansa.privacy.dp.accounting import epsilon
from hansa.runs.run import run


def corpora(folder: Path) -> Path:
    """Both corpora in small: sentences of four languages, with their documents in one of them only."""
    rng, entities, events = stream(0, "corpora"), [], []
    for language in privacy_price.LANGUAGES:
        for number in range(60):
            words = [str(w) for w in rng.choice(["pain", "fever", "the", "has", "old", "new"], 6)] + [f"n{number}"]
            tags = ["B-CLINENTITY" if word in ("pain", "fever") else "O" for word in words]
            entities.append({"tokens": words, "tags": tags, "lang": language})
            if number % 10:  # a sentence without an event has no document
                events.append({"text": " ".join(words) + ".", "lang": language, "doc": f"{language}{number % 6}"})
    for name, rows in (("e3c_ner", entities), ("e3c_assertion", events)):
        (folder / name).mkdir(parents=True)
        with gzip.open(folder / name / "train.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_the_noise_is_just_enough_for_the_stated_epsilon() -> None:
    for rounds in (30,):
        found = multiplier(rounds)
        assert epsilon(found, rounds, privacy_price.DELTA) <= privacy_price.EPSILON
        assert epsilon(found / 1.03, rounds, privacy_price.DELTA) > privacy_price.EPSILON


def test_no_document_is_in_training_and_test_rows_nor_at_two_clients(tmp_path: Path) -> None:
    silos, clients = corpus(corpora(tmp_path / "data"), tmp_path / "out")

    def documents(file: str) -> set[str]:
        return {json.loads(line)["doc"] for line in Path(file).read_text().splitlines()}

    for language, one in silos.items():
        train = documents(one["train"])
        assert train
        assert not train & documents(one["test"])
        of_clients = [documents(c["train"]) for name, c in clients.items() if name.startswith(f"{language}-")]
        assert sum(map(len, of_clients)) == len(train)
        assert set().union(*of_clients) == train


def test_rows_are_run_once_and_written_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_price, "GROUPS", 1)
    data = corpora(tmp_path / "data")
    silos, _ = corpus(data, tmp_path / "corpus")
    start = {"name": "ner", "labels": ["CLINENTITY"]}
    raw: dict[str, Any] = {"task": start, "silos": silos, "rounds": 0, "model": {"preset": "mini"}}
    raw |= {"tokenizer": {"size": 330, "min_count": 2}, "data": {"max_length": 64, "valid": 0.0, "test": 0.01}}
    encoder = str(run(parse(raw), tmp_path / "encoder", workers=0).folder / "start")
    scale, said = Scale(rounds=1, workers=0), list[str]()

    def table() -> dict[str, Any]:
        return price_table(data, encoder, tmp_path / "out", scale, lambda _: (), said.append)

    found = table()
    assert len(found["rows"]) + len(found["skipped"]) == len(list(cells(scale)))
    assert [row["protection"] for row in found["rows"][:2]] == ["none", "noise at every silo"]
    assert found["rows"][0]["epsilon"] is None
    assert all(7.5 < row["epsilon"] < 12 for row in found["rows"][1:])
    assert all("this version does not know its settings" in line for line in found["skipped"])
    monkeypatch.setattr(privacy_price, "run", None)  # a second run would fail
    assert table() == found
    page = into_page(f"before\n{MARKS[0]}\nearlier figures\n{MARKS[1]}\nafter\n", found)
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "earlier figures" not in page
    assert "| none | none | – |" in page, "no protection, and no unit that is protected"
    with pytest.raises(UserError, match="the page has no place for the table"):
        into_page("nothing", found)


def test_without_the_corpus_the_error_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"e3c_assertion/train.jsonl.gz does not exist; give the folder that holds"):
        corpus(tmp_path, tmp_path / "out")
