"""The Translation experiments at their smallest: every table is made, every claim is judged by its figures."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from markupsafe import escape

from hansa.config.file import dump, parse
from hansa.config.method import build_method
from hansa.core.errors import DataError, UserError
from hansa.experiments.reproduce import Options, Reproduction, domains, translation, translation_tables
from hansa.experiments.reproduce.translation_tables import SERVER, Found, Scored

pytestmark = pytest.mark.xdist_group("translation")  # one process: its tests share a run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    folder = tmp_path_factory.mktemp("smoke")
    return translation.reproduce(Options("smoke", None, folder / "out", lambda line: None))


def test_every_table_is_there_with_the_papers_figures(smoke: Reproduction) -> None:
    titles = [table.title.split(":")[0] for table in smoke.tables]
    assert titles[:4] == ["Table 3", "Table 4", "Table 5", "Figure 3"]
    assert {"Table 6", "Dynamic pulling", "Quality against uplink bytes, of all uploads"} <= set(titles)
    page = smoke.report.read_text(encoding="utf-8")
    assert all(escape(table.title) in page for table in smoke.tables), "the report has the tables too"
    for table in smoke.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    combination = next(row for row in smoke.tables[0].rows if row[0] == "combination")
    assert combination[-5:] == ["33.50", "21.82", "31.51", "37.56", "35.61"]
    assert combination[1].count("·") == 2, "BLEU, chrF and cross-entropy"
    assert smoke.report.is_file()


def test_the_json_output_has_claims_and_signatures(smoke: Reproduction) -> None:
    parsed = json.loads(json.dumps(smoke.as_dict()))
    assert len(parsed["claims"]) == 10
    assert parsed["signatures"][0].startswith("BLEU nrefs:1")


def test_parts_send_fewer_bytes_than_everything(smoke: Reproduction) -> None:
    table = next(t for t in smoke.tables if t.title.startswith("Dynamic pulling: the gain"))
    spent = {row[0]: float(row[1].rstrip("%")) for row in table.rows}
    assert spent["server"] == 100
    assert spent["DP_l"] < 100
    assert spent["no exchange"] < spent["DP_l"]


def found(valid: Mapping[str, float] | None = None, /, **losses: float) -> Found:
    """Runs with the same cross-entropy everywhere; BLEU falls as it rises. ``valid``: another on validation data."""

    def scored(loss: float, uplink: int = 100, valid: float | None = None) -> list[Scored]:
        by_domain = {d: {"loss": loss, "bleu": 20 - loss, "chrf": 40 - loss} for d in domains.DOMAINS}
        return [Scored(by_domain, by_domain, by_domain, uplink, loss if valid is None else valid)]

    names = {
        SERVER: 4.0, "after 1 round": 4.8, "no exchange": 4.6, "combination": 4.5, "chained": 4.7,
        "combination, all work": 3.9, "chained, all work": 4.6, "DP_l": 4.1, "random": 4.2, "DP_g": 4.3,
        "DP_l ⅓": 4.05, "10 rounds": 4.0, "50 rounds": 3.9, "top-k 5% + int8": 4.1,
    } | losses  # fmt: skip
    bytes_of = {"DP_l": 60, "random": 60, "DP_g": 60, "DP_l ⅓": 46, "top-k 5% + int8": 8, "after 1 round": 20}
    bytes_of |= {"DP_g ⅓": 46, "top-k 9% + int8": 9}
    runs = {name: scored(loss, bytes_of.get(name, 100), (valid or {}).get(name)) for name, loss in names.items()}
    generic = {d: {"loss": 5.0, "bleu": 15.0, "chrf": 35.0} for d in domains.DOMAINS}
    curves = {5: [5.0, 4.0], 10: [5.0, 4.0], 50: [5.0, 3.9]}
    start = Scored(generic, generic, generic, 0)
    return Found((5, 10, 50), start, runs, {}, dict.fromkeys(domains.DOMAINS, start.server), curves, {}, ("BLEU",))


def test_claims_are_judged_by_the_figures() -> None:
    claims = translation_tables.claims(found())
    assert [claim.holds for claim in claims] == [True, False, True, True, True, True, True, True, True, True]
    assert "DP_l ⅓: 95% for 46%" in claims[7].ours
    worse = translation_tables.claims(found(**{"combination": 3.9, "DP_g": 4.0, "DP_l ⅓": 4.5, "50 rounds": 4.1}))
    assert [claim.holds for claim in worse] == [False, False, True, True, False, False, False, False, False, True]
    lossy = translation_tables.claims(found(**{"top-k 5% + int8": 6.0}))
    assert not lossy[-1].holds


def test_the_best_of_several_is_selected_on_validation_data() -> None:
    seen = found({"DP_g ⅓": 9.0, "top-k 9% + int8": 9.0}, **{"DP_g ⅓": 4.0, "top-k 9% + int8": 3.9})
    claims = translation_tables.claims(seen)
    assert claims[7].ours.startswith("DP_l ⅓:"), "DP_g ⅓ is better on test data"
    assert claims[9].ours.startswith("top-k 5% + int8:")
    assert seen.valid("DP_g ⅓") == 9.0
    unknown = Found((5, 10, 50), seen.start, {"a": [Scored({}, {}, {}, 1)]}, {}, {}, {}, {}, ())
    assert unknown.valid("a") == float("inf"), "it is never selected before one that was recorded"


def test_gains_are_shares_of_the_full_exchanges_gain() -> None:
    seen = found()
    assert seen.retained(SERVER, "own") == pytest.approx(1.0)
    assert seen.retained("DP_l", "server") == pytest.approx(0.9)
    assert seen.mean("no exchange", "server") == pytest.approx(4.8), "its server stopped after the first round"
    assert seen.spent("no exchange") == pytest.approx(0.2)


def test_a_share_of_the_gain_needs_a_gain() -> None:
    table = translation_tables.gains(found())
    [row] = [row for row in table.rows if row[0] == "DP_l"]
    assert row[2] == "90% · 90% · 90%"
    table = translation_tables.gains(found(**{SERVER: 5.5}))
    assert table.rows[0][2] == "– · – · –"


def test_movement_is_counted_in_a_histogram() -> None:
    moved = {"WMT": {"encoder": [0.1, 0.2, 9.9, 10.0], "decoder": [1.0]}}
    table = translation_tables.figure_1(Found((5, 10, 50), Scored({}, {}, {}, 0), {}, {}, {}, {}, moved, ()))
    assert table.rows[0][2:] == ["10", "2", "0", "0", "0", "0", "0", "0", "0", "0", "2"]


def test_real_pairs_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--scale small needs real text"):
        translation.reproduce(Options("small", None, tmp_path / "out", print))
    with pytest.raises(DataError, match="needs a folder with deen_parallel"):
        translation.reproduce(Options("small", tmp_path, tmp_path / "out", print))


def test_tables_come_from_the_cells(smoke: Reproduction, tmp_path: Path) -> None:
    cells, said = smoke.report.parent / "cells", list[str]()
    options = Options("smoke", None, tmp_path / "out", said.append, cells=cells, finished=True)
    found = translation.reproduce(options)
    assert found.tables == smoke.tables
    assert not [line for line in said if "started" in line]
    assert not list((tmp_path / "out").glob("*/federation.yaml")), "no model of an earlier run was needed"


def test_every_variant_survives_its_file(tmp_path: Path) -> None:
    """Runs are handed to processes of their own as files."""
    size, sources = translation.SIZES["small"], domains.sources(tmp_path)
    parts = translation.PULLING | translation.SETTINGS | translation.TABLE_7
    for name, changes in (parts | translation.CONTROLLERS | translation.CODES).items():
        made = translation.federation(sources, size, "x", 0, **changes)
        assert parse(yaml.safe_load(dump(made))) == made, name
        build_method(made)


def test_baselines_make_as_many_steps_as_one_client(tmp_path: Path) -> None:
    size, sources = translation.SIZES["small"], domains.sources(tmp_path)
    one = translation.federation(sources, size, "x", 0)
    assert one.train.samples.amount(10**6) * one.rounds == size.steps * size.batch
    combined = translation.federation(sources, size, "x", 0, kind="central", share=1 / 5)
    assert combined.train.samples.amount(10**6) * combined.rounds * 5 == pytest.approx(
        size.steps * size.batch, rel=0.01
    )
    assert one.aggregate is not None
    assert one.aggregate.weights is not None
    assert one.aggregate.weights.by == "uniform"
