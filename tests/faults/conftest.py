"""Fixtures of the fault tests."""

import pytest

from tests.faults.processes import GATED


@pytest.fixture
def gated(federation, tmp_path):
    """Builds federations whose silos can be paused in the middle of training."""
    (tmp_path / "gated.py").write_text(GATED)
    marks = tmp_path / "marks"
    marks.mkdir()

    def build(**settings):
        task = {"name": "gated", "gates": str(marks)}
        usual = {"rounds": 3, "evaluate": {"every": 2, "share": 1.0}, "server": {"optimizer": "adam", "lr": 0.01}}
        return federation(task=task, plugins=[str(tmp_path / "gated.py")], **(usual | settings))

    return build
