"""Compressors of model updates, which an ``upload`` setting chains together.

Every module registers its settings in `hansa.core.compression.COMPRESSORS` under the name that a federation file uses;
importing this package imports them all.
"""

from hansa.compressors import basic, dynamic_pulling, fragments

__all__ = ["basic", "dynamic_pulling", "fragments"]
