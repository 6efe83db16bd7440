"""Fixtures of the red team: those of the fault tests and of the deployment."""

from tests.deploy.conftest import log  # noqa: F401
from tests.faults.conftest import gated  # noqa: F401
