"""The tree as people look at it: Appendix A.1.3's sampling ratios, the drawing, `hansa check`, the report."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.file import dump
from hansa.config.outline import Branch, drawn, ratios
from hansa.preview.preview import preview
from hansa.report import html
from hansa.report.charts import _rows
from hansa.runs.run import run
from tests.core.trees import tree  # noqa: F401

SIZES = {"fr": 483, "it": 252, "uk": 84, "bg": 44}


def leaf(name: str) -> Branch:
    return Branch(name, {name: SIZES[name]})


def mixed(name: str, *below: Branch) -> Branch:
    held: dict[str, int] = {}
    for branch in below:
        held |= branch.held
    return Branch(name, held, below)


WORLD = mixed("world", mixed("west", leaf("fr"), leaf("it")), mixed("east", leaf("uk"), leaf("bg")))


def same_say(samples: int) -> float:
    return 1.0


def test_the_papers_example() -> None:
    bg, uk, everything = SIZES["bg"], SIZES["uk"], sum(SIZES.values())
    expected = bg / everything + 0.5 * bg / (uk + bg) + 0.25
    assert ratios(WORLD, same_say)["bg"] == pytest.approx(expected)


def test_weights_by_samples_and_nodes_without_data() -> None:
    flat = Branch("server", {}, tuple(leaf(name) for name in SIZES))
    assert ratios(flat, same_say) == pytest.approx(dict.fromkeys(SIZES, 0.25))
    assert ratios(flat, float)["fr"] == pytest.approx(483 / 863)


branches = st.recursive(
    st.builds(lambda n: Branch("leaf", {f"s{n}": n}), st.integers(1, 9)),
    lambda below: st.builds(
        lambda own, children: Branch("inner", {"own": own} if own else {}, tuple(children)),
        st.integers(0, 9),
        st.lists(below, min_size=1, max_size=4),
    ),
    max_leaves=12,
)


def say(branch: Branch, share: float = 1.0) -> float:
    own = share if branch.held else 0.0
    return own + sum(say(child, share / len(branch.below)) for child in branch.below)


@given(branches)
def test_every_node_with_data_has_its_say_and_no_more(branch: Any) -> None:
    assert sum(ratios(branch, same_say).values()) == pytest.approx(say(branch))


def test_the_drawing() -> None:
    assert [line for line, _ in drawn(WORLD)] == [
        "world", "├─ west", "│  ├─ fr", "│  └─ it", "└─ east", "   ├─ uk", "   └─ bg",
    ]  # fmt: skip


def test_in_the_report_a_parent_stands_beside_the_middle_of_its_children() -> None:
    assert _rows([0, 1, 2, 2, 1, 2, 2]) == [1.5, 0.5, 0, 1, 2.5, 2, 3]
    assert _rows([0, 1, 1, 2]) == [0.5, 0, 1, 1]


def test_check_draws_the_tree_and_the_ratios(tree: Any, tmp_path: Path) -> None:  # noqa: F811
    settings = tree()
    seen = preview(settings)
    n, west, root = ({s.name: s.samples for s in seen.silos}[name] for name in ("north", "west", "root"))
    ratio = n / root + 0.5 * n / west + 0.25
    assert seen.as_dict()["sampling"]["north"] == pytest.approx(ratio)
    assert sum(seen.sampling.values()) == pytest.approx(3.0), "root, regions and leaves, each level once"
    file = tmp_path / "federation.yaml"
    file.write_text(dump(settings), encoding="utf-8")
    shown = CliRunner().invoke(app, ["check", str(file)]).output
    assert re.search(rf"├─ west +{west} +north {n}, north-2 {west - n}", shown), shown
    assert re.search(rf"north +{ratio:.3f} +{ratio / 3:.1%}", shown), shown


def test_the_report_draws_the_tree_with_perplexities(tree: Any, tmp_path: Path) -> None:  # noqa: F811
    outcome = run(tree(rounds=1), tmp_path / "run", workers=0)
    page = html.write([("tree", outcome.folder)], tmp_path / "report.html").read_text(encoding="utf-8")
    drawing = page[page.index("The tree of tree") :]
    assert drawing.count('class="node"') == 7
    assert re.search(r"\d+ samples · [\d.,]+ \([\d.,]+\)", drawing), "own, and in brackets the global model's"
