"""Hansa trains language models across organisations while the text stays where it is."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("hansa")
