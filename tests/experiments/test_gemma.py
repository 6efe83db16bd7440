"""The tree of languages with adapters at its smallest: every arm runs, own and global figures differ as they must."""

from pathlib import Path

import pytest

from hansa.experiments.reproduce import Options, Reproduction, gemma
from hansa.experiments.reproduce.study import BASE
from hansa.experiments.reproduce.trees import halves
from hansa.experiments.reproduce.verdict import OPEN


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    return gemma.reproduce(Options("smoke", None, tmp_path_factory.mktemp("gemma"), lambda line: None))


def test_every_arm_has_own_and_global_figures(smoke: Reproduction) -> None:
    scores, leaves, rates = smoke.tables
    assert [row[0] for row in scores.rows] == [BASE, *gemma.ARMS]
    assert leaves.columns == ["", "fr", "it", "uk", "bg"]
    figures = {row[0]: (row[1], row[2]) for row in scores.rows}
    assert figures[BASE][0] == figures[BASE][1], "the untrained base counts as every leaf's own"
    assert figures["WorldLM"][0] != figures["WorldLM"][1]
    assert [row[0] for row in rates.rows] == ["flat FL", "HierFAVG", "WorldLM"]
    assert all(claim.verdict.state == OPEN for claim in smoke.claims), "one seed shows nothing"
    names = {cell.arm: cell for cell in smoke.cells}
    assert set(names["WorldLM lr 0.001"].own) == {"root", "west", "east", "fr", "it", "uk", "bg"}


def test_halves_of_dev_share_no_text_and_every_node_has_its_own(tmp_path: Path) -> None:
    layout = halves(None, tmp_path, texts=21, tested=7)
    seen: dict[str, str] = {}
    for leaf, levels in layout.sources.items():
        for level, files in levels.items():
            for split in ("train", "valid", "test"):
                for line in Path(files[split]).read_text(encoding="utf-8").splitlines():
                    assert seen.setdefault(f"{leaf} {line}", f"{level} {split}") == f"{level} {split}"
    assert layout.regions == {"west": ["fr", "it"], "east": ["uk", "bg"]}
