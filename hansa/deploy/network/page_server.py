"""Runs an ASGI application, such as the pages of `hansa dashboard`, behind the HTTPS port of a coordinator.

uvicorn serves the application on the loopback interface, in a thread, and the front end forwards to it every request
that is not for members. The front end sets X-Forwarded-For, and X-Hansa-Member where the client has shown a member's
certificate; what a client sends under these names does not arrive.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from hansa.core.errors import RunFailed, UserError
from hansa.deploy.network.route import Route

START_SECONDS = 30.0


@contextmanager
def serve_pages(app: Any) -> Iterator[Route]:
    """Serve an ASGI application while the body runs, and yield the way to it."""
    try:
        import uvicorn
    except ImportError:
        raise UserError("uvicorn is not installed, which serves the pages: pip install 'hansa[deploy]'") from None
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=True,  # the address of a visitor, which limits attempts to log in, is that of X-Forwarded-For
        forwarded_allow_ips="127.0.0.1",
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([listener],), name="hansa-pages", daemon=True)
    thread.start()
    until = monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or monotonic() > until:
            raise RunFailed("the pages do not start; the log says why")
        sleep(0.01)
    try:
        yield Route(lambda: [("127.0.0.1", port)], None)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
        listener.close()
