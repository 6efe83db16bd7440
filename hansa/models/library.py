"""Hugging Face transformers, imported when it is first needed: that takes seconds, and a coordinator that goes on after
a crash, or a command that finds a mistake, does without."""

from functools import cache
from threading import Lock
from typing import Any

ONE_AT_A_TIME = Lock()  # agents of one process need it at the same moment, and half-imported modules are no use
NEEDED = ("AutoConfig", "AutoTokenizer", "PreTrainedModel", "PreTrainedTokenizerFast")


def transformers() -> Any:
    with ONE_AT_A_TIME:
        return _imported()


@cache
def _imported() -> Any:
    import transformers as library
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading is quick and repeated; Hansa shows its own progress
    logging.set_verbosity_error()
    for name in NEEDED:
        getattr(library, name)  # it imports its parts when they are asked for
    return library
