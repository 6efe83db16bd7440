"""What the process that workers are forked from imports for all of them."""

import importlib.util

import pytest

from hansa.links import preload


@pytest.mark.parametrize("name", preload.MODULES)
def test_preloaded_modules_exist(name: str) -> None:
    """The forkserver skips a module that is not there, without a word, and every worker then imports by itself."""
    assert importlib.util.find_spec(name) is not None
