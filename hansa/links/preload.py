"""The process that workers are forked from: it imports torch and transformers once for all of them.

In a file of its own because it imports nothing heavy itself: the command line calls it first, and its imports then run
beside our own.
"""

import signal
import threading
from multiprocessing.forkserver import ensure_running, set_forkserver_preload

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
