"""Fixtures of the fault tests."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Build
from tests.faults.processes import GATED


@pytest.fixture
def gated(federation: Build, tmp_path: Path) -> Any:
    """Builds federations whose silos can be paused in the middle of training."""
    (tmp_path / "gated.py").write_text(GATED)
    marks = tmp_path / "marks"
    marks.mkdir()

    def build(**settings: Any) -> Any:
        task = {"name": "gated", "gates": str(marks)}
        usual = {"rounds": 3, "evaluate": {"every": 2, "share": 1.0}, "server": {"optimizer": "adam", "lr": 0.01}}
        return federation(task=task, plugins=[str(tmp_path / "gated.py")], **(usual | settings))

    return build
