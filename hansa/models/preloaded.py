"""Imported by the process that workers are forked from, so that none of them needs seconds of its own for it."""

from hansa.models.library import transformers

transformers()
