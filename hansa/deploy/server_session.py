"""The server session of one run: a standing server (standing.py) on which that run alone is open."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hansa.deploy.kit import Kit
from hansa.deploy.network.link import NatsLink
from hansa.deploy.public_certificate import PublicCertificate
from hansa.deploy.standing import standing_server


@contextmanager
def server_session(
    kit: Kit,
    folder: Path,
    nats: str | None,
    log: Callable[[str], None],
    children: Sequence[str] | None = None,
    listen: str | None = None,
    pages: Any | None = None,
    public: PublicCertificate | None = None,
) -> Iterator[NatsLink]:
    """Serve the children of a node in one run, by default all members below it, and yield the link to them.

    ``folder`` holds everything that survives a crash: a session that is started there again continues. The other
    arguments are those of `standing_server`.
    """
    with standing_server(kit, folder, nats, log, listen, pages, public) as server:
        served = kit.children if children is None else children
        with server.open_run(folder, served, log) as link:
            yield link
