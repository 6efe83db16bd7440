"""The small federation of tests/api, for callbacks."""

from tests.api.conftest import make

__all__ = ["make"]
