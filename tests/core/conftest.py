"""Fixtures of the core's tests."""

from tests.core.trees import tree

__all__ = ["tree"]
