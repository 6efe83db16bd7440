"""Hugging Face transformers, imported on first use.

The import takes seconds, which commands that do not build a model should not spend.
"""

import os
from functools import cache
from logging import ERROR, getLogger
from threading import Lock
from typing import Any

ONE_AT_A_TIME = Lock()  # threads must not use modules that another thread has imported only partly
NEEDED = ("AutoConfig", "AutoTokenizer", "PreTrainedModel", "PreTrainedTokenizerFast")


def transformers() -> Any:
    """The module `transformers`; thread-safe."""
    with ONE_AT_A_TIME:
        return _imported()


@cache
def _imported() -> Any:
    # Some model types load compiled code from a hub when they are built, if the package `kernels` is installed.
    os.environ.setdefault("USE_HUB_KERNELS", "NO")
    import transformers as library
    from transformers.utils import logging

    logging.disable_progress_bar()  # Hansa shows its own progress
    logging.set_verbosity_error()
    # PEFT imports bitsandbytes wherever it is installed, which then recommends a package with compiled code from a hub.
    getLogger("bitsandbytes").setLevel(ERROR)
    for name in NEEDED:
        getattr(library, name)  # transformers imports a submodule when its attribute is accessed
    return library
