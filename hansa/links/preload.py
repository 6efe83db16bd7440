"""The process that workers are forked from: it imports torch and transformers once for all of them.

In a file of its own because it imports nothing heavy itself: the command line calls it first, and its imports then run
beside our own.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.forkserver import ensure_running, set_forkserver_preload
from typing import Any

MODULES = ("hansa.links.worker", "hansa.models.preloaded")


def preload() -> None:
    """Start it, in the background, unless it is running."""
    set_forkserver_preload(list(MODULES))
    if threading.current_thread() is not threading.main_thread():
        ensure_running()
        return
    # Ctrl-C reaches every process of the terminal; this one must not die of it in the middle of an import.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def without_main() -> Iterator[None]:
    """A worker needs nothing from the script that started us: do not let it run that script again."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__dict__["__spec__"] = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
