"""Imports transformers. The fork server imports this module, so that the workers it forks need not import it."""

from hansa.models.library import transformers

transformers()
