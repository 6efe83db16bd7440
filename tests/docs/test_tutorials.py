"""The tutorials: every notebook runs from top to bottom, and gives the outputs that are stored in it.

`python packaging/pages.py --execute [NAME]` executes notebooks and stores their outputs. A cell with the tag ``varies``
has an output that differs from run to run (times, keys); it is executed, and its output is not compared. Words and
whole numbers must be equal; decimals, which depend on the processor, may differ by `TOLERANCE`.
"""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
TOLERANCE = 0.1
DECIMAL = re.compile(r"-?\d+\.\d+")
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


def same(stored: str, found: str) -> bool:
    """Whether two outputs are equal, up to `TOLERANCE` in decimals and to white space."""
    texts = [" ".join(DECIMAL.sub("#", text).split()) for text in (stored, found)]
    numbers = [map(float, DECIMAL.findall(text)) for text in (stored, found)]
    return texts[0] == texts[1] and all(abs(a - b) <= TOLERANCE for a, b in zip(*numbers, strict=True))


def differences(stored: Any, found: Any) -> list[str]:
    """The cells whose outputs differ, of those that are compared."""
    pairs = [(a, b) for a, b in zip(stored.cells, found.cells, strict=True) if a.cell_type == "code"]
    compared = [(a, b) for a, b in pairs if "varies" not in a.metadata.get("tags", ())]
    return [f"stored:\n{written(a)}\nfound:\n{written(b)}" for a, b in compared if not same(written(a), written(b))]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_tutorial_gives_its_stored_outputs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HANSA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "notebook"
    folder.mkdir()
    stored, found = (nbformat.read(file, as_version=4) for _ in range(2))
    NotebookClient(
        found, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
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


def test_decimals_may_differ_a_little_and_nothing_else() -> None:
    assert same("accuracy  0.62\n", "accuracy 0.60")
    assert not same("accuracy 0.62", "accuracy 0.95")
    assert not same("round 2", "round 3")
    assert not same("lung 0.5", "stomach 0.5")
