"""WorldLM's experiments at their smallest: every table is there, every claim is said and judged by its figures."""

import json

import pytest

from hansa.errors import UserError
from hansa.reproduce import Asked, worldlm
from hansa.reproduce.trees import Layout
from hansa.reproduce.worldlm import Figures, claims_of, jobs_of


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    said: list[str] = []
    return worldlm.reproduce(Asked("smoke", None, tmp_path_factory.mktemp("smoke") / "out", said.append)), said


def test_every_table_of_the_paper_is_there(smoke):
    found, said = smoke
    titles = [table.title.split(":")[0] for table in found.tables]
    assert titles[:5] == ["Table 1", "Table 2", "Table 3", "Table 4", "Figure 4"]
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert found.tables[0].rows[0][-1] == "80.47 ± 68.53", "the paper's figures stand beside ours"
    assert found.tables[2].rows[1][-2] == "724.56"
    assert "WorldLM, wrong tree 0: done" in said
    assert "The tree of WorldLM" in found.report.read_text(encoding="utf-8")


def test_the_last_line_for_machines_names_every_claim(smoke):
    parsed = json.loads(json.dumps(smoke[0].as_dict()))
    assert len(parsed["claims"]) == 8
    [privacy] = [claim for claim in parsed["claims"] if "private" in claim["name"]]
    assert "ε = " in privacy["ours"]
    assert "all data of the silo" in privacy["ours"]


def figures(own: float, shared: float = 100.0) -> Figures:
    one = [{"fr": own, "bg": own}, {"fr": own + 1, "bg": own + 1}]
    return Figures(one, one, [dict.fromkeys(("fr", "bg"), shared)] * 2, one, one)


def test_claims_are_judged_by_the_figures():
    names = list(jobs_of())
    good = dict.fromkeys(names, figures(50.0)) | {
        "FL, DP": figures(50.0, 300.0),
        "WorldLM, wrong tree": figures(60.0),
        "WorldLM, iid": figures(120.0),
        "HierFAVG, flipped": figures(500.0),
        "HierFAVG, ×100": figures(float("inf")),
    }
    assert all(claim.holds for claim in claims_of(good, "price"))

    def held(**changes):
        return [claim.holds for claim in claims_of(good | changes, "price")]

    assert held(WorldLM=figures(150.0))[:2] == [False, False]
    assert held(**{"WorldLM, ours": figures(52.0)})[2] is False
    assert held(**{"WorldLM, ours": figures(50.4)})[2] is True, "a tie within the spread of the seeds"
    assert held(**{"WorldLM, DP": figures(200.0)})[5] is False
    assert held(**{"WorldLM, flipped, filter": figures(60.0)})[6] is False
    assert held(**{"HierFAVG, ×100": figures(50.0)})[7] is False, "the attack must be one"


def test_the_wrong_tree_swaps_leaves_across_regions():
    layout = Layout({"west": ("fr", "it"), "east": ("uk", "bg")}, {})
    assert layout.swapped().regions == {"west": ("fr", "bg"), "east": ("uk", "it")}


def test_real_scales_need_real_text(tmp_path):
    with pytest.raises(UserError, match="--data"):
        worldlm.reproduce(Asked("small", None, tmp_path, print))
    with pytest.raises(UserError, match="--tune"):
        worldlm.reproduce(Asked("smoke", None, tmp_path, print, tune=True))
