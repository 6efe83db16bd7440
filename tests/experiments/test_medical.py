"""The Medical experiments at their smallest: every table and claim is made, the results page is written."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.config.federation import Federation
from hansa.core.errors import UserError
from hansa.experiments.reproduce import (
    Options,
    Reproduction,
    downstream,
    encoder,
    medical,
    medical_runs,
    medical_tables,
    record_duration,
    tuning,
)
from hansa.experiments.reproduce.cells import Cells
from hansa.experiments.reproduce.jobs import Fact, Jobs
from hansa.models.tokenizer import byte_tokenizer
from hansa.runs.result import Result
from hansa.runs.results import PersonalModels
from tests.conftest import Build

pytestmark = pytest.mark.xdist_group("medical")  # one process: its tests share a run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, list[str]]:
    folder = tmp_path_factory.mktemp("smoke")
    said: list[str] = []
    return medical.reproduce(Options("smoke", None, folder / "out", said.append)), said


def test_every_table_of_the_paper_is_there(smoke: tuple[Reproduction, list[str]]) -> None:
    found, _ = smoke
    titles = [table.title.split(":")[0] for table in found.tables]
    assert titles == [
        "Table 3", "Table 3, continued", "Weights and samples per round", "Table 4", "Table 5", "Table 6", "Table 7",
    ]  # fmt: skip
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert [row[0] for row in found.tables[0].rows[:9]] == [
        "English", "French", "Spanish", "Italian", "German", "Portuguese", "Russian", "Arabic", "Hebrew",
    ]  # fmt: skip
    assert found.tables[0].rows[7][-4:] == ["8.36", "10.48", "10.81", "19.82"], "the paper's figures stand beside ours"
    assert "±" in found.tables[-1].rows[0][1]
    assert found.report.is_file()


def test_the_json_output_names_every_claim(smoke: tuple[Reproduction, list[str]]) -> None:
    found, said = smoke
    parsed = json.loads(json.dumps(found.as_dict()))
    assert parsed["paper"] == "medical"
    assert len(parsed["claims"]) == 6
    assert all({"name", "holds", "ours", "paper", "verdict"} <= set(claim) for claim in parsed["claims"])
    assert all(claim.line.startswith(("not shown: ", "does not hold: ")) for claim in found.claims), "one seed"
    assert "federated: started" in said


def test_tables_come_from_the_cells(smoke: tuple[Reproduction, list[str]], tmp_path: Path) -> None:
    before, said = smoke[0], list[str]()
    cells = before.report.parent / "cells"
    found = medical.reproduce(Options("smoke", None, tmp_path / "out", said.append, cells=cells, finished=True))
    assert found.tables == before.tables
    assert [claim.line for claim in found.claims] == [claim.line for claim in before.claims]
    assert not [line for line in said if "started" in line]


def test_the_published_weights_and_the_rejected_ones_stand_beside_ours(smoke: tuple[Reproduction, list[str]]) -> None:
    [table] = [table for table in smoke[0].tables if table.title.startswith("Weights")]
    assert [row[0] for row in table.rows] == ["N^0.35, our rounds", "central training", *medical_runs.RULES]
    assert "–" not in {cell for row in table.rows for cell in row}


def test_rules_train_on_as_many_samples_and_pooled_batches_mix_languages() -> None:
    silos, size = {"en": {"train": "en.jsonl"}}, medical_runs.SIZES["small"]
    for rule, floor in zip(medical_runs.RULES, (4, 500, 100), strict=True):
        made = medical_runs.by_rule(rule, silos, size, "base")
        assert made.aggregate is not None
        assert made.aggregate.weights is not None
        assert made.aggregate.weights.temperature == 1.0
        assert made.train.samples.floor == floor
        assert abs(made.rounds * floor - size.rounds * size.batch) < floor
    assert medical_runs.federation("central", silos, size, "base").baseline.by_length is False


def outcome(values: dict[str, float]) -> Result:
    return Result(Path(), {code: {"perplexity": v} for code, v in values.items()})


def test_claims_are_judged_by_the_figures() -> None:
    counts = {"en": 1000.0, "fr": 10.0, "he": 1.0, "ar": 2.0}
    languages = list(counts)
    good = {"en": 9.0, "fr": 5.0, "he": 5.0, "ar": 5.0}
    bad = {"en": 3.0, "fr": 9.0, "he": 9.0, "ar": 9.0}

    def judge(fl: dict[str, float], cl: dict[str, float], own: dict[str, float]) -> list[bool]:
        runs = {"FL": outcome(fl), "CL": outcome(cl), "own silo": outcome(own), "base": outcome(bad)}
        seeds = {"federated": [fl], "central": [cl]}
        return [claim.holds for claim in medical_tables.pretraining_claims(runs, languages, counts, seeds, {})]

    assert judge(good, bad, bad)[:2] == [True, True]
    assert judge(bad, good, good)[:2] == [False, False]
    assert judge(good, good | {"he": 4.0}, bad)[1] is False, "one of the three smallest is enough to lose it"

    def personal(**interpolated: float) -> bool:
        accuracies = {code: {"federated": 0.5, "interpolated": interpolated.get(code, 0.5)} for code in counts}
        models = {
            code: PersonalModels({kind: {code: {"accuracy": a}} for kind, a in by_kind.items()}, 0.0, {}, "federated")
            for code, by_kind in accuracies.items()
        }
        return medical_tables.personal_claim(models, languages, counts).holds

    assert personal()
    assert personal(en=0.4), "the dominant language does not count"
    assert not personal(en=0.4, he=0.4)


def test_fine_tuning_claims_need_scores_above_zero() -> None:
    def scores(federated: float, central: float, none: float) -> downstream.Scores:
        return {
            n: {"federated": {"strict_f1": federated}, "central": {"strict_f1": central}, "none": {"strict_f1": none}}
            for n in downstream.NER
        }

    assert [c.holds for c in downstream.claims(scores(0.70, 0.705, 0.5))] == [True, True]
    assert [c.holds for c in downstream.claims(scores(0.68, 0.705, 0.5))] == [False, True]
    assert [c.holds for c in downstream.claims(scores(0.70, 0.70, 0.69))] == [True, False]
    assert [c.holds for c in downstream.claims(scores(0.0, 0.0, 0.0))] == [False, False]
    assert [c.holds for c in encoder.claims({"federated": 0.81, "central": 0.815})] == [True, True]
    assert [c.holds for c in encoder.claims({"federated": 0.79, "central": 0.815})] == [False, False]


def test_the_time_of_all_sessions_is_counted(tmp_path: Path) -> None:
    assert record_duration(tmp_path, 5.0) == [5.0]
    (tmp_path / "a run").mkdir()
    assert record_duration(tmp_path, 60.0) == [60.0], "before it, nothing had begun"
    took = record_duration(tmp_path, 30.0)
    found = Reproduction("medical", "smoke", [], [], tmp_path, sum(took), sessions=len(took), tuning=6.0)
    assert "1.5 minutes in all, of which 0.1 to select settings, in 2 sessions." in found.markdown()
    assert record_duration(tmp_path / "never made", 1.0) == [1.0]


def test_real_text_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--scale small needs real text"):
        medical.reproduce(Options("small", None, tmp_path / "out", print))
    with pytest.raises(UserError, match="neither a Hugging Face folder nor"):
        encoder.folder_of("no-such-encoder")


def test_full_scale_has_the_published_settings(tmp_path: Path) -> None:
    silos = {"fr": {"train": "fr.jsonl", "language": "fr"}, "he": {"train": "he.jsonl", "language": "he"}}
    settings = medical_runs.federation("federated", silos, medical_runs.SIZES["full"], "some/encoder")
    assert settings.train.samples.amount(132_593_658) == 10_607
    assert settings.train.samples.amount(34_104) == 500
    assert settings.server is not None
    assert settings.aggregate is not None
    assert (settings.train.lr, settings.train.batch, settings.server.lr) == (1e-4, 2048, 3e-4)
    assert settings.aggregate.weights is not None
    assert settings.aggregate.weights.by == "samples"
    assert medical_runs.federation("central", silos, medical_runs.SIZES["full"], "x").baseline.lr == 3e-5


def test_central_training_sees_as_many_tokens_as_the_federation(tmp_path: Path) -> None:
    """A token is a byte here: ninety texts of 30 and ten of 10, in a federation that asks both silos alike."""
    words = byte_tokenizer()
    words.save_pretrained(tmp_path / "words")
    silos = {}
    for name, count, length in (("long", 90, 30), ("short", 10, 10)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"text": f"{i:02}".ljust(length, "x")}) + "\n" for i in range(count)))
        silos[name] = {"train": str(file), "valid": str(file), "test": str(file), "language": name}
    long, short = (len(words("x" * length)["input_ids"]) for length in (30, 10))
    expected = (long + short) / 2 / (0.9 * long + 0.1 * short)
    assert tuning.equal_tokens(silos, str(tmp_path / "words"), 64) == pytest.approx(expected)
    fewer = medical_runs.federation("central", silos, medical_runs.SIZES["small"], "x", 0.5)
    assert fewer.rounds == medical_runs.SIZES["small"].rounds // 2
    assert medical_runs.federation("federated", silos, medical_runs.SIZES["small"], "x", 0.5).rounds == 2 * fewer.rounds


def test_rates_are_tuned_separately_on_validation_data(federation: Build, tmp_path: Path) -> None:
    def build(kind: str, size: medical_runs.Size) -> Federation:
        return federation(
            kind=kind,
            rounds=size.rounds,
            data={"max_length": 16, "valid": 0.15, "test": 0.2},
            server={"optimizer": "adam", "lr": size.server_lr},
            baseline={"optimizer": "adamw", "lr": size.central_lr, "batch": 8},
            evaluate={"every": 2, "share": 1.0},
        )

    usual = replace(medical_runs.SIZES["smoke"], rounds=8, server_lr=1e-2, central_lr=1e-3)
    with Jobs(tmp_path / "tuned", lambda line: None, False, Cells(tmp_path / "cells", "toy", "small")) as jobs:
        size, [table], grids = tuning.tune(jobs, usual, build)
    assert len(table.rows) == 8
    assert min(grids["central"], key=lambda lr: grids["central"][lr]) == pytest.approx(size.central_lr)
    for label, chosen in (("FL, server", size.server_lr), ("CL", size.central_lr)):
        rows = [row for row in table.rows if row[0] == label]
        [best] = [row for row in rows if row[3]]
        assert float(best[1]) == pytest.approx(chosen, rel=0.1)
        assert float(best[2].replace(",", "")) == min(float(row[2].replace(",", "")) for row in rows)


def test_a_federated_encoder_takes_one_step_per_round_and_sees_as_many_samples(tmp_path: Path) -> None:
    noted: dict[str, Federation] = {}

    class Noted(Jobs):
        def __init__(self) -> None:
            """Start no processes."""

        def start(
            self,
            name: str,
            federation: Federation,
            workers: int | None = 0,
            facts: Mapping[str, Fact] | None = None,
        ) -> None:
            noted[name] = federation

    encoder_folder, rows = tmp_path / "encoder", [{"tokens": [f"word{i}"], "tags": ["O"]} for i in range(320)]
    encoder_folder.mkdir()
    (encoder_folder / "config.json").write_text("{}")
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {part: str(tmp_path / f"{part}.jsonl") for part in ("train", "test")}
    task = downstream.Downstream("ner", {"en": source})
    encoder.start(Noted(), str(encoder_folder), task, tmp_path)
    federated, central = noted["encoder federated"], noted["encoder central"]
    assert federated.train.samples.amount(1000) == federated.train.batch, "one batch"
    assert federated.rounds * len(federated.silos) * federated.train.batch == central.rounds * len(rows)
