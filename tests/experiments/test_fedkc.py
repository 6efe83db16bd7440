"""The FedKC experiments at their smallest: every table and claim is made; settings can be selected."""

import json
from pathlib import Path

import pytest

from hansa.attacks.centroids import MIN_CONTROL
from hansa.core.errors import UserError
from hansa.experiments.reproduce import Options, Reproduction, fedkc, multilingual
from hansa.experiments.reproduce.encoder import model_of
from hansa.experiments.reproduce.fedkc import CONTROL, INVERSION, Leaks, clearly, privacy_claim
from hansa.experiments.reproduce.fedkc_runs import ALL, GRID, LAST, SIZES, Hits, Tuned, federation, methods
from hansa.experiments.reproduce.published_fedkc import AVERAGES
from hansa.experiments.reproduce.verdict import OPEN

pytestmark = pytest.mark.xdist_group("fedkc")  # one process: its tests share a run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    folder = tmp_path_factory.mktemp("fedkc")
    return fedkc.reproduce(Options("smoke", None, folder / "out", lambda line: None))


def test_every_table_and_claim_of_the_paper_is_there(smoke: Reproduction) -> None:
    titles = [table.title.split(":")[0] for table in smoke.tables]
    assert titles[:5] == ["Table 3, shape", "Table 3, PI", "Table 3, QA", "Table 3, NC", "Table 4"]
    assert {"Figures 2 and 3", "Section 4.4.2"} <= set(titles)
    for table in smoke.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    shape = {row[0]: row for row in smoke.tables[0].rows}
    assert shape[ALL][-3:] == ["0.8204", "0.6355", "0.7840"], "the paper's figures stand beside ours"
    assert "±" in shape["FedAvg"][-4]
    assert json.loads(json.dumps(smoke.as_dict()))["paper"] == "fedkc"
    assert smoke.report.is_file()


def test_defences_have_a_cost_in_the_table_and_a_curve_in_the_report(smoke: Reproduction) -> None:
    [table] = [table for table in smoke.tables if table.title.startswith("Defences")]
    assert [row[0] for row in table.rows] == ["none", "floor 20", "floor 20, noise 1"]
    assert [row[-1] == "–" for row in table.rows] == [True, True, False], "ε where there is noise"
    assert all(0 <= float(row[1]) <= 1 for row in table.rows), "accuracy, with one seed"
    page = smoke.report.read_text(encoding="utf-8")
    for part in (
        "Audit: Price",
        "accuracy over tokens recovered",
        "Audit: Embedding inversion",
        "Audit: Nearest token",
    ):
        assert part in page


def test_every_pair_is_sent_up_and_down_once(smoke: Reproduction) -> None:
    [traffic] = [table for table in smoke.tables if table.title.startswith("Section 4.4.2")]
    for row in traffic.rows:
        up, down, both, *_ = (float(cell.replace(",", "")) for cell in row[1:])
        assert up == down
        assert both == pytest.approx(2 * up, abs=0.11)


def test_every_method_is_published_and_tuned_with_the_same_budget() -> None:
    assert set(methods(Tuned(), 10)) == set(AVERAGES)
    assert len({len(values) for _, values in GRID.values()}) == 1
    assert {setting for setting, _ in GRID.values()} == set(vars(Tuned()))


def test_settings_are_selected_on_validation_files_never_on_test_files(tmp_path: Path) -> None:
    corpus = multilingual.generate(tmp_path)["ICD-10"]
    tuning = federation(corpus, LAST, SIZES["smoke"], Tuned(), 2, tuning=True)
    measured = federation(corpus, LAST, SIZES["smoke"], Tuned(), 2)
    assert all(".valid." in (node.sources[0].test or "") for node in tuning.silos.values())
    assert all(".test." in (node.sources[0].test or "") for node in measured.silos.values())


def test_layouts_have_the_papers_numbers_of_clients() -> None:
    layouts = (multilingual.PAWSX, multilingual.XQUAD, multilingual.MASAKHANEWS, multilingual.ICD10)
    assert [sum(layout.values()) for layout in layouts] == [22, 20, 70, 20]


def test_real_text_is_needed_beyond_smoke(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give its folder with --data"):
        fedkc.reproduce(Options("small", None, tmp_path, lambda line: None))


def test_a_pre_trained_encoder_has_its_own_tokenizer_and_a_small_learning_rate(tmp_path: Path) -> None:
    corpus = multilingual.generate(tmp_path)["QA"]
    ours, theirs = (federation(corpus, ALL, SIZES["small"], Tuned(), 2, model=m) for m in (None, "some/encoder"))
    assert (theirs.model.path, theirs.tokenizer.path) == ("some/encoder", None)
    assert (ours.train.lr, theirs.train.lr) == (1e-3, 1e-4)
    assert model_of("some/encoder") == "some/encoder", "a hub id"


def test_a_difference_within_the_spread_of_the_seeds_is_not_clear() -> None:
    assert clearly([0.5, 0.6], [0.4, 0.5])
    assert not clearly([0.5, 0.4], [0.4, 0.5])
    assert not clearly([0.50, 0.70], [0.40, 0.60]), "0.1 apart in every seed, but seeds differ by more"
    assert clearly([0.5], [0.4, 0.3]), "one seed has no spread"


def leaks(control: float, everything: float = 0.1, last: float = 0.9) -> Leaks:
    """Shares of tokens at their position: by the attack on each layer, and by its control on the last one."""

    def hits(attack: float, control: float) -> Hits:
        return {INVERSION: {"attack": {"same": [attack]}, CONTROL: {"same": [control]}}}

    return {"last": hits(last, control), "all": hits(everything, 0.9)}


def test_an_attack_that_fails_its_own_control_decides_nothing() -> None:
    for everything, last in ((0.1, 0.9), (0.9, 0.1)):
        claim = privacy_claim(leaks(MIN_CONTROL - 0.01, everything, last))
        assert claim.verdict.state == OPEN
        assert claim.verdict.why.startswith("undecided: the attack fails its control without averaging (last 49.0% of")
    decided = privacy_claim(leaks(MIN_CONTROL))
    assert "undecided" not in decided.line
    assert decided.holds
    assert not privacy_claim(leaks(MIN_CONTROL, everything=0.95)).holds


def test_chance_is_the_majority_of_each_test_set(tmp_path: Path) -> None:
    silos = {}
    for language, labels in {"en": "aaab", "de": "ab"}.items():
        file = tmp_path / f"{language}.jsonl"
        file.write_text("".join(json.dumps({"text": "x", "label": label}) + "\n" for label in labels))
        silos[language] = {"test": str(file)}
    corpus = multilingual.Corpus("classify", silos, 1, 1, 8, ("a", "b", "c", "d"))
    assert corpus.majority == pytest.approx((0.75 + 0.5) / 2), "not a quarter"


def test_tables_come_from_the_cells(smoke: Reproduction, tmp_path: Path) -> None:
    cells, said = smoke.report.parent / "cells", list[str]()
    found = fedkc.reproduce(Options("smoke", None, tmp_path / "out", said.append, cells=cells, finished=True))
    assert found.tables == smoke.tables, "with what the attacks found"
    assert [claim.line for claim in found.claims] == [claim.line for claim in smoke.claims]
    assert not [line for line in said if "started" in line]
