"""The WorldLM experiments at their smallest: every table is made, every claim is judged by its figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.core.errors import UserError
from hansa.experiments.reproduce import Options, Reproduction, worldlm
from hansa.experiments.reproduce.cells import Cell
from hansa.experiments.reproduce.trees import Layout
from hansa.experiments.reproduce.worldlm import jobs_of
from hansa.experiments.reproduce.worldlm_tables import Figures, claims_of, tables_of

pytestmark = pytest.mark.xdist_group("worldlm")  # one process: its tests share a run


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduction, list[str]]:
    said: list[str] = []
    return worldlm.reproduce(Options("smoke", None, tmp_path_factory.mktemp("smoke") / "out", said.append)), said


def test_every_table_of_the_paper_is_there(smoke: tuple[Reproduction, list[str]]) -> None:
    found, said = smoke
    titles = [table.title.split(":")[0] for table in found.tables]
    assert titles[:5] == ["Table 1", "Table 2", "Table 3", "Table 4", "Figure 4"]
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert found.tables[0].rows[0][-1] == "80.47 ± 68.53", "the paper's figures stand beside ours"
    assert found.tables[2].rows[4][-2] == "724.56"
    own, shared = found.tables[4].rows[:2]
    assert own[0] == "WorldLM, own", "Figure 4 has own models beside the global one"
    assert shared[0] == "WorldLM, global"
    assert own[1] == shared[1], "all start from one model"
    assert "WorldLM, wrong tree 0: done" in said
    assert "The tree of WorldLM" in found.report.read_text(encoding="utf-8")


def test_the_json_output_names_every_claim(smoke: tuple[Reproduction, list[str]]) -> None:
    parsed = json.loads(json.dumps(smoke[0].as_dict()))
    assert len(parsed["claims"]) == 9
    [privacy] = [claim for claim in parsed["claims"] if "private" in claim["name"]]
    assert "ε = " in privacy["ours"]
    assert "all data of the silo" in privacy["ours"]


def test_tables_come_from_the_cells_and_the_report_from_what_is_there(
    smoke: tuple[Reproduction, list[str]], tmp_path: Path
) -> None:
    before, said = smoke[0], list[str]()
    cells = before.report.parent / "cells"
    found = worldlm.reproduce(Options("smoke", None, tmp_path / "out", said.append, cells=cells, finished=True))
    assert found.tables == before.tables
    assert [claim.line for claim in found.claims] == [claim.line for claim in before.claims]
    assert not [line for line in said if "started" in line]


def test_a_run_that_diverged_counts_as_infinite() -> None:
    scores = {leaf: {"perplexity": 5.0, "accuracy": 0.5, "bits_per_byte": 1.0} for leaf in ("fr", "bg")}
    kept = Cell("worldlm", "small", "a", 0, "0", scores, {}, {}, {}, 1, 1, 1, 1.0, 0.0, "0", "abc1234", "2026-01-01")
    lost = replace(kept, scores={}, facts={"diverged": "round 1: values that are not finite"})
    found = Figures.of([kept, lost], ("fr", "bg"))
    assert found.first.mean("own") == 5.0
    assert found.mean("own") == found.mean("shared") == float("inf")
    assert found.brief("own").endswith("(±∞)") or "inf" in found.brief("own")


def test_deviations_are_those_of_a_sample() -> None:
    assert figures(50.0).spread("own") == pytest.approx(0.5**0.5), "50 and 51"


def figures(own: float, shared: float = 100.0) -> Figures:
    one = [{"fr": own, "bg": own}, {"fr": own + 1, "bg": own + 1}]
    return Figures(one, one, [dict.fromkeys(("fr", "bg"), shared)] * 2, one, one)


def test_claims_are_judged_by_the_figures() -> None:
    names = list(jobs_of())
    good = dict.fromkeys(names, figures(50.0)) | {
        "FL, DP": figures(50.0, 300.0),
        "WorldLM, wrong tree": figures(60.0),
        "WorldLM, iid": figures(120.0, 120.0),
        "FL, iid": figures(110.0, 110.0),
        "HierFAVG, flipped": figures(500.0),
        "HierFAVG, flipped ×3": figures(500.0),
        "HierFAVG, ×100": figures(float("inf")),
    }
    assert all(claim.holds for claim in claims_of(good, "price"))

    def held(**changes: Figures) -> list[bool]:
        return [claim.holds for claim in claims_of(good | changes, "price")]

    assert held(WorldLM=figures(150.0))[:2] == [False, False]
    assert held(**{"WorldLM, ours": figures(52.0)})[2] is False
    assert held(**{"WorldLM, ours": figures(50.4)})[2] is True, "a tie within the spread of the seeds"
    assert held(**{"WorldLM, DP": figures(200.0)})[5] is False
    assert held(**{"WorldLM, flipped, filter": figures(60.0)})[6] is False
    assert held(**{"HierFAVG, ×100": figures(50.0)})[8] is False, "the attack must be one"
    assert held(FedPer=figures(45.0))[2] is False, "every rival counts"
    assert held(**{"central, as many tokens": figures(40.0, 40.0)})[1] is False, "the stronger central one"
    assert held(**{"FL, iid": figures(130.0, 110.0)})[4] is False, "own with own, global with global"


def test_runs_with_one_seed_are_marked_and_compared_with_the_same_seed() -> None:
    once = Figures(*([[{"fr": 50.0, "bg": 50.0}]] * 5))
    found = {name: once if job.once else figures(50.0) for name, job in jobs_of().items()}
    by_name = {table.title.split(":")[0]: table for table in tables_of(found, {"WorldLM": {"own": [1.0]}}, 2)}
    rows = [row[0] for row in by_name["Own models, and ablations of WorldLM"].rows]
    assert "moved¹" in rows
    assert "server lr 1" in rows
    assert "one seed" in by_name["Table 1"].note
    filtered = Figures(*([[{"fr": 52.4, "bg": 52.4}]] * 5))  # within 5% of the first seed's 50
    claims = claims_of(
        found | {"WorldLM, flipped ×3, filter": filtered, "HierFAVG, flipped ×3": figures(500.0).first}, ""
    )
    [claim] = [claim for claim in claims if "×3" in claim.name]
    assert claim.holds
    assert "50 to 52.4" in claim.ours


def test_the_wrong_tree_swaps_leaves_across_regions() -> None:
    layout = Layout({"west": ("fr", "it"), "east": ("uk", "bg")}, {})
    assert layout.swapped().regions == {"west": ("fr", "bg"), "east": ("uk", "it")}


def test_real_scales_need_real_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--data"):
        worldlm.reproduce(Options("small", None, tmp_path, print))
    with pytest.raises(UserError, match="--tune"):
        worldlm.reproduce(Options("smoke", None, tmp_path, print, tune=True))
