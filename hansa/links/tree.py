"""A link to silos and inner nodes: silos are reached through another link, inner nodes answer in threads."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from hansa.core import wire
from hansa.core.link import Answer, Link
from hansa.core.messages import NodeId, Reply, Request
from hansa.links.local import attempt


class TreeLink:
    """Reaches silos through another link, and inner nodes through their answer functions.

    Inner nodes answer in threads, since they only wait for their own children. ``reason_of``: see `attempt`.
    """

    def __init__(
        self,
        silos: Link,
        inner: Mapping[NodeId, Callable[[Request], Reply]],
        reason_of: Callable[[BaseException], str] | None = None,
    ) -> None:
        self._silos, self._inner, self._reason_of = silos, inner, reason_of
        self.size, self.remote, self.posting = silos.size, silos.remote, silos.posting

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask silos and inner nodes at once; see `Link.ask`."""
        below = {node: request for node, request in asks.items() if node in self._inner}
        with ThreadPoolExecutor(max(1, len(below))) as threads:
            futures = {
                n: threads.submit(attempt, self._inner[n], request, self._reason_of) for n, request in below.items()
            }
            silos = self._silos.ask({n: r for n, r in asks.items() if n not in below}, until)
            for node, request in asks.items():
                if node in below:
                    reply = futures[node].result()
                    yield Answer(node, reply, wire.size(request), wire.size(reply))
                else:
                    yield next(silos)
