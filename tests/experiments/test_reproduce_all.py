"""`hansa reproduce all`: every paper, with the scales that it has; --status says what is stale."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.experiments.reproduce import PAPERS, page


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_a_small_and_a_medium_scale(paper: str) -> None:
    module = import_module(f"hansa.experiments.reproduce.{paper.replace('-', '_')}")
    assert {"smoke", "small", "medium"} <= set(module.SIZES)
    assert module.SIZES["medium"] != module.SIZES["small"]


def test_status_writes_into_the_page_which_sections_are_stale(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    section = "## Toy\n\n- holds: a (ours: 1; paper: 2)"
    results.write_text(f"# Results\n\n<!-- begin: toy small -->\n{section}\n<!-- end: toy small -->\n")
    page.adopt(results, "toy small", "abc1234")
    done = CliRunner().invoke(app, ["reproduce", "--status", "--results", str(results), "--format", "json"])
    assert done.exit_code == 0, done.output
    [section] = json.loads(done.output)["sections"]
    assert (section["name"], section["status"]) == ("toy small", "stale since abc1234, legacy")
    assert "**Status:** stale since abc1234, legacy" in results.read_text()
    assert "| toy small: a | 2 | 1 | not shown |" in results.read_text()


def test_an_unknown_paper_or_scale_is_one_sentence() -> None:
    for arguments in (["nothing"], ["all", "--scale", "huge"]):
        assert CliRunner().invoke(app, ["reproduce", *arguments]).exit_code != 0
