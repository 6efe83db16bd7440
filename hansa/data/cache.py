"""The cache folder: tokenised samples, downloaded corpora, the key of the surrogates."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder named by HANSA_CACHE; else ``hansa`` in XDG_CACHE_HOME, or in ``.cache`` of the home folder."""
    root = os.environ.get("HANSA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hansa"
    return Path(root)
