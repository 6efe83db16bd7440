"""The blob servers of the runs that are open at the same time, behind one port.

Every run has a `BlobServer` of its own, with its own offers, quotas and folder. A blob is named by its digest and a
reply by the id of its request, which depends on the run; so an upload is about one run at most. Two runs may offer the
same blob, and one of them may withdraw it while the other still offers it: then the other one's is sent.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hansa.deploy.network.blob_protocol import BLOBS, REPLIES
from hansa.deploy.network.blob_server import BlobServer
from hansa.deploy.network.exchange import Exchange
from hansa.deploy.network.front import Handler


class BlobServers:
    """Passes requests of members on to the run that they are about; ``fallback`` refuses all others."""

    def __init__(self, fallback: BlobServer) -> None:
        self._fallback, self._open = fallback, list[BlobServer]()
        self._lock = threading.Lock()

    @property
    def handlers(self) -> dict[str, Handler]:
        """What answers requests, by the first part of their path."""
        return {BLOBS: self.answer, REPLIES: self.answer}

    @contextmanager
    def serving(self, server: BlobServer) -> Iterator[None]:
        """Pass requests on to a run's server while the body runs."""
        server.offered_elsewhere = self._offered
        with self._lock:
            self._open.append(server)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(server)

    def _offered(self, node: str, name: str) -> memoryview | None:
        with self._lock:
            open = list(self._open)
        return next((view for one in open if (view := one.offered(node, name)) is not None), None)

    def answer(self, exchange: Exchange) -> None:
        """Answer a member's request; raises `BadHttp` if it is malformed."""
        with self._lock:
            open = list(self._open)
        found = (one for one in open if one.concerns(exchange.member, exchange.head.target))
        next(found, self._fallback).answer(exchange)
