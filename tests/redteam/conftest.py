"""Fixtures of the red team: those of the fault tests and of the deployment, and kits of a small federation."""

import shutil
from pathlib import Path

import pytest

from hansa.models import build
from hansa.models.tokenizer import byte_tokenizer
from tests.conftest import Build
from tests.deploy.conftest import log, make_kits  # noqa: F401
from tests.faults.conftest import gated  # noqa: F401
from tests.redteam.bundles import MASKED, write_model


@pytest.fixture
def kits(federation: Build, tmp_path: Path) -> Path:
    """The kits of a federation of three silos."""
    return make_kits(federation(), tmp_path / "kits")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The start folder of a small masked language model."""
    return write_model(tmp_path_factory.mktemp("honest") / "start", build.preset("mini", MASKED, byte_tokenizer(), 32))


@pytest.fixture
def start(honest: Path, tmp_path: Path) -> Path:
    """A copy of the folder, which a test may change."""
    return Path(shutil.copytree(honest, tmp_path / "start"))
