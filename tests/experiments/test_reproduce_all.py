"""`hansa reproduce all`: every paper, with the scales that it has; --status says what is stale."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.core.errors import UserError
from hansa.experiments.reproduce import PAPERS, Options, page


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


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_rejects_the_options_that_it_does_not_use(paper: str, tmp_path: Path) -> None:
    module = import_module(f"hansa.experiments.reproduce.{paper.replace('-', '_')}")
    given = Options("smoke", None, tmp_path, print, encoder="x", model="y", tune=True)
    for option in module.UNUSED:
        with pytest.raises(UserError, match=f"--{option} is not an option of"):
            given.reject(paper, option)
    left = given.without(*given.given(*module.UNUSED))
    left.reject(paper, *module.UNUSED)
    assert [option for option in ("encoder", "model", "tune") if option not in module.UNUSED] == left.given(
        "encoder", "model", "tune"
    )


@pytest.mark.docs
def test_all_papers_take_an_option_that_only_some_use_and_name_what_is_not_finished(tmp_path: Path) -> None:
    arguments = ["reproduce", "all", "--tune", "--finished", "--out", str(tmp_path), "--format", "json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "worldlm does not use --tune" in done.stderr
    assert "medical does not use --tune" not in done.stderr
    assert "of translation is not finished; leave --finished out to run it" in " ".join(done.stderr.split())
    assert not list(tmp_path.rglob("ledger.sqlite")), "nothing was run"
    alone = CliRunner().invoke(app, ["reproduce", "worldlm", "--tune", "--out", str(tmp_path / "alone")])
    assert alone.exit_code != 0


def test_an_unknown_paper_or_scale_is_one_sentence() -> None:
    for arguments in (["nothing"], ["all", "--scale", "huge"]):
        assert CliRunner().invoke(app, ["reproduce", *arguments]).exit_code != 0
