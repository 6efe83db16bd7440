"""Fixtures of the red team: those of the fault tests and of the deployment, and kits of a small federation."""

from pathlib import Path

import pytest

from tests.conftest import Build
from tests.deploy.conftest import log, make_kits  # noqa: F401
from tests.faults.conftest import gated  # noqa: F401


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Path:
    """The kits of a federation of three silos."""
    return make_kits(federation(), tmp_path / "kits")
