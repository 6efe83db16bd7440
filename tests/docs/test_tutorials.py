"""The tutorials: every notebook runs from top to bottom, and gives the outputs that are stored in it.

`python packaging/pages.py --execute [NAME]` executes notebooks and stores their outputs. A cell with the tag ``varies``
has an output that differs from run to run (times, keys); it is executed, and its output is not compared.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
SECONDS = 600  # for a cell, on a machine with other work
pytestmark = pytest.mark.docs


def written(cell: Any) -> str:
    """What a cell printed and what its last line gives, without progress."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text if output.name == "stdout" else "")
        else:
            parts.append(output.get("data", {}).get("text/plain", "") + "\n")
    return re.sub(r"\s+\n", "\n", "".join(parts)).strip()


def differences(stored: Any, found: Any) -> list[str]:
    """The cells whose outputs differ, of those that are compared."""
    pairs = [(a, b) for a, b in zip(stored.cells, found.cells, strict=True) if a.cell_type == "code"]
    compared = [(a, b) for a, b in pairs if "varies" not in a.metadata.get("tags", ())]
    return [f"stored:\n{written(a)}\nfound:\n{written(b)}" for a, b in compared if written(a) != written(b)]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_tutorial_gives_its_stored_outputs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "notebook"
    folder.mkdir()
    stored, found = (nbformat.read(file, as_version=4) for _ in range(2))
    NotebookClient(found, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    assert differences(stored, found) == []
    assert any(written(cell) for cell in stored.cells if cell.cell_type == "code"), "the outputs are stored"


def test_another_output_is_noticed() -> None:
    """Negative control: a stored number that the code does not give."""
    stored = nbformat.read(NOTEBOOKS[0], as_version=4)
    changed = nbformat.read(NOTEBOOKS[0], as_version=4)
    cell = next(c for c in changed.cells if c.cell_type == "code" and written(c))
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="something else")]
    assert len(differences(stored, changed)) == 1
    assert differences(stored, stored) == []
