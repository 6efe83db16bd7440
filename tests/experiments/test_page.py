"""The results page: its summary, its sections, and whether they are stale."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.experiments.reproduce import Claim, Reproduction, Table, page, sources
from hansa.experiments.reproduce.cells import Cell, Cells

ROOT = Path(__file__).parents[2]
START = "# Results\n\n<!-- begin: summary -->\n<!-- end: summary -->\n"


def cell_of(folder: Path, commit: str = "abc1234", **files: str) -> Cell:
    """A cell that was kept, whose run imported these files."""
    kept = sources.keep({"hansa/core/round.py": sources.digest_of(ROOT / "hansa/core/round.py")} | files, folder)
    scores = {"en": {"loss": 2.0}}
    cell = Cell("toy", "small", "average", 0, "0", scores, {}, {}, {}, 1, 1, 1, 1.0, 0.0, kept, commit, "2026-01-01")
    Cells(folder, "toy", "small").keep(cell)
    return cell


def write(results: Path, cells: list[Cell], ours: str = "2", scale: str = "small") -> None:
    table = Table("A table", ["", "x"], [["row", ours]])
    claims = [Claim("c", True, ours, "1")]
    page.update(results, Reproduction("toy", scale, [table], claims, results, 60.0, cells=cells))


def test_sections_are_rewritten_one_by_one_and_keep_their_place(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    for scale, ours in (("smoke", "eins"), ("small", "zwei"), ("smoke", "drei")):
        write(results, [], ours, scale)
    text = results.read_text(encoding="utf-8")
    assert text.count("## Toy") == 2
    assert "eins" not in text
    assert text.index("## Toy, scale smoke") < text.index("## Toy, scale small"), "a section keeps its place"
    assert text.index("| claim |") < text.index("## Toy"), "the summary stands at the top"


def test_a_section_is_current_until_a_source_file_changes(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    results.write_text(START, encoding="utf-8")
    folder = page.cells_folder(results)
    write(results, [cell_of(folder)])
    text = results.read_text(encoding="utf-8")
    assert "**Status:** current (runs of commit abc1234)." in text
    assert "Commit abc1234." in text.split("**A table**")[1], "every table has its commit"
    assert "| toy small: c | 1 | 2 | not shown | the evidence for the rules was not recorded |" in text
    cell_of(folder, **{"hansa/core/method.py": "0" * 12})  # it has another digest today
    [section] = page.refresh(results)
    assert section.status == "stale since abc1234"
    text = results.read_text(encoding="utf-8")
    assert "**Status:** stale since abc1234 (runs of commit abc1234)." in text
    assert "not recorded; stale since abc1234 |" in text
    page.refresh(results)
    assert results.read_text(encoding="utf-8") == text, "written again, it is the same"


def test_a_section_whose_cells_are_gone_or_were_never_kept_is_not_current(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    results.write_text(START, encoding="utf-8")
    folder = page.cells_folder(results)
    cell = cell_of(folder)
    write(results, [cell])
    Cells(folder, "toy", "small").file(cell.arm, cell.seed).unlink()
    [section] = page.refresh(results)
    assert section.status == "incomplete: 1 of its cells are missing"
    write(results, [])
    [section] = page.refresh(results)
    assert section.status.startswith("stale since")


def test_sections_of_earlier_times_are_legacy_and_their_claims_are_not_shown(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    claims = "- holds: one (ours: 1 (a); paper: 2)\n- does not hold: two (ours: 1; paper: 2)\n"
    old = f"<!-- begin: toy small -->\n## Toy\n\n{claims}"
    results.write_text(START + old + "<!-- end: toy small -->\n", encoding="utf-8")
    page.adopt(results, "toy small", "fee1dea")
    [section] = page.refresh(results)
    assert section.status == "stale since fee1dea, legacy"
    assert [claim["verdict"] for claim in section.claims] == ["not shown", "not shown"]
    text = results.read_text(encoding="utf-8")
    assert "- holds:" not in text
    assert "- does not hold:" not in text, "from one seed, by no rule"
    assert "- not shown: one (ours: 1 (a); paper: 2)" in text


@pytest.mark.docs
def test_the_page_of_this_repository_says_truly_which_sections_are_stale() -> None:
    """If this fails: `hansa reproduce --status` writes the status into the page; no run is needed."""
    results = ROOT / "docs" / "results.md"
    text = results.read_text(encoding="utf-8")
    found = page.sections(results, text)
    assert found
    assert page.refreshed(text, found) == text


def test_the_cells_of_this_repository_can_be_read_and_are_small() -> None:
    folder = ROOT / "docs" / "results" / "cells"
    for file in folder.glob("*/*.json"):
        assert file.stat().st_size < 20_000, file
        if file.parent.name != sources.FOLDER:
            cell = Cell(**json.loads(file.read_text(encoding="utf-8")))
            assert replace(cell) == cell
            assert (folder / sources.FOLDER / f"{cell.sources}.json").is_file()


def test_comments_and_docstrings_do_not_make_a_result_stale() -> None:
    before = 'def f(x):\n    """Ünits."""\n    return x + "# no comment"  # ü\n'
    after = '"""Module."""\n\n# why\ndef f(x):\n    """Other\n    words."""\n\n    return x + "# no comment"\n'
    assert sources.code(before) == sources.code(after) == 'def f(x):\n    return x + "# no comment"'
    assert sources.code(before) != sources.code(before.replace("x +", "x *"))
    assert sources.code('"""A."""\nx = """B."""') == 'x = """B."""', "a string that is a value is code"
