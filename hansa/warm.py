"""The process that workers are forked from: it imports torch and transformers once for all of them.

In a file of its own because it imports nothing heavy itself: the command line calls it first, and its imports then run
beside our own.
"""

from multiprocessing.forkserver import ensure_running, set_forkserver_preload


def warm_up() -> None:
    """Start it, in the background, unless it is running."""
    set_forkserver_preload(["hansa.links.worker"])
    ensure_running()
