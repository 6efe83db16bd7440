"""Cells: a finished run is kept and not repeated; changed settings, data or source files are noticed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.errors import RunFailed
from hansa.experiments.reproduce import sources
from hansa.experiments.reproduce.cell_run import finished, run_cell
from hansa.experiments.reproduce.cells import Cell, Cells, experiments, settings_digest

pytestmark = pytest.mark.docs  # real runs, in processes of their own


def federation(folder: Path, **changes: object) -> Federation:
    """One silo with a few texts."""
    file = folder / "silo.jsonl"
    if not file.exists():
        file.write_text("".join(json.dumps({"text": f"a text with number {i} in it"}) + "\n" for i in range(40)))
    settings = {
        "model": "mini",
        "tokenizer": {"kind": "bytes"},
        "data": {"max_length": 32, "valid": 0.2, "test": 0.2},
        "silos": {"one": {"train": str(file), "language": "en"}},
        "rounds": 2,
        "train": {"batch": 4, "samples": {"floor": 4}},
        "evaluate": {"every": 2, "share": 1.0},
    }
    return parse(settings | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cells, Cell]:
    folder = tmp_path_factory.mktemp("cells")
    cells = Cells(folder / "cells", "toy", "small")
    return folder, cells, run_cell(cells, "average lr 0.1", 0, federation(folder), folder / "runs", lambda line: None)


def test_a_cell_has_the_scores_samples_bytes_and_origin_of_its_run(run: tuple[Path, Cells, Cell]) -> None:
    folder, cells, cell = run
    assert json.loads((folder / "cells" / "toy-small" / "average-lr-0.1.0.json").read_text()) == vars(cell)
    assert cell.scores["en"]["perplexity"] > 1
    assert cell.valid["loss"] < cell.start["loss"], "before and after training, on validation data"
    assert cell.samples == 8
    assert cell.bytes_up > 0 < cell.bytes_down
    assert cell.commit not in ("", "unknown")
    assert cells.all() == [cell]
    assert [(one.experiment, one.scale) for one in experiments(folder / "cells") if one.all()] == [("toy", "small")]
    assert list((folder / "runs").iterdir()) == [], "the run directory is gone"


def test_a_finished_cell_is_not_run_again_unless_settings_or_data_changed(run: tuple[Path, Cells, Cell]) -> None:
    folder, cells, cell = run
    said: list[str] = []
    same = run_cell(cells, "average lr 0.1", 0, federation(folder), folder / "runs", said.append)
    assert (same, said) == (cell, ["average lr 0.1, seed 0: finished before"])
    assert finished(cells, "average lr 0.1", 0, settings_digest(federation(folder, rounds=3))) is None
    other = folder / "other"
    other.mkdir()
    moved = federation(other)
    assert settings_digest(moved) == cell.settings, "the same data in another place"
    (other / "silo.jsonl").write_text((folder / "silo.jsonl").read_text() + '{"text": "one more"}\n')
    assert settings_digest(moved) != cell.settings


def test_a_cell_is_stale_when_a_file_that_its_run_imported_changed(run: tuple[Path, Cells, Cell]) -> None:
    folder, cells, cell = run
    kept = json.loads((folder / "cells" / "sources" / f"{cell.sources}.json").read_text())
    assert "hansa/client/training.py" in kept
    assert "hansa/core/round.py" in kept
    assert not [file for file in kept if file.startswith(("hansa/cli/", "hansa/experiments/"))]
    assert cells.changed(cell) == []
    older = replace(cell, sources=sources.keep(kept | {"hansa/core/round.py": "0" * 12}, folder / "cells"))
    assert cells.changed(older) == ["hansa/core/round.py"]
    settings = settings_digest(federation(folder))
    assert finished(cells, "average lr 0.1", 0, settings) == cell
    cells.keep(replace(older, arm="stale"))
    assert finished(cells, "stale", 0, settings, again=True) is None, "it is repeated if that is asked for"
    cells.file("stale", 0).unlink()


def test_what_was_not_imported_does_not_make_a_run_stale() -> None:
    code = "import hansa.core.round; from hansa.experiments.reproduce.sources import imported; print(*imported())"
    files = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "hansa/core/round.py" in files
    assert "hansa/deploy/agent.py" not in files


def test_a_run_that_fails_is_named(tmp_path: Path) -> None:
    broken = federation(tmp_path)
    (tmp_path / "silo.jsonl").unlink()
    with pytest.raises(RunFailed, match="'a', seed 1"):
        run_cell(Cells(tmp_path / "cells", "toy", "small"), "a", 1, broken, tmp_path / "runs", lambda line: None)
