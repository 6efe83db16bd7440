"""Fixtures of the red team: those of the fault tests."""

from tests.faults.conftest import gated  # noqa: F401
