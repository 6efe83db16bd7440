"""Mistakes that are answered before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hansa.config.checks import check_data_files, check_settings
from hansa.config.defaults import chosen_defaults
from hansa.config.file import parse
from hansa.core.errors import ConfigError, DataError
from hansa.report.progress import Progress
from hansa.runs.callbacks import CurrentRun, Evaluation, RoundRecord
from tests.conftest import Build


def test_a_misspelt_model_folder_is_not_taken_for_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "minilm").mkdir(parents=True)
    (tmp_path / "models" / "minilm" / "config.json").write_text("{}")
    silos = {"lyon": "lyon.jsonl"}
    with pytest.raises(ConfigError, match=r"models/minlm is not a folder; did you mean models/minilm\?"):
        check_settings(parse({"silos": silos, "model": "models/minlm"}))
    check_settings(parse({"silos": silos, "model": "google-bert/bert-base-cased"}))  # a hub id passes


def test_an_empty_file_is_named(federation: Build, tmp_path: Path) -> None:
    settings = federation()
    check_data_files(settings)
    (tmp_path / "data" / "south.jsonl").write_text("")
    with pytest.raises(DataError, match=r"silos\.south: .*south\.jsonl is empty"):
        check_data_files(settings)


def test_a_misspelt_setting_of_a_silo_is_named_as_it_was_written() -> None:
    with pytest.raises(ConfigError, match=r"'silos\.lyon\.txt' is not a setting"):
        parse({"silos": {"lyon": {"train": "lyon.jsonl", "txt": "note"}}})


@pytest.mark.parametrize(
    ("train", "listed"), [({}, {"train.samples", "train.batch"}), ({"batch": 16, "samples": {"epochs": 1}}, set())]
)
def test_what_the_file_says_is_not_listed_as_a_default(train: dict[str, Any], listed: set[str]) -> None:
    found = {one.setting for one in chosen_defaults(parse({"silos": {"lyon": "lyon.jsonl"}, "train": train}))}
    assert found & {"train.samples", "train.batch"} == listed


def test_a_score_of_an_earlier_round_says_so() -> None:
    run = CurrentRun(parse({"silos": {"lyon": "x.jsonl"}, "rounds": 3}), Path("."))
    display = Progress(Console(quiet=True), "clinics")
    display.on_run_start(run)
    display.on_evaluate(run, Evaluation(1, "valid", 1.0, "strict_f1", {"en": {"strict_f1": 0.5}}))
    for number, text in ((1, "strict_f1 0.5,"), (2, "strict_f1 0.5 (of round 1),")):
        display.on_round_end(run, RoundRecord(number, ("lyon",), 0.4, {}, {}, {}, (), {}, {}, {}, 1.0, {}))
        assert text in display._line()
