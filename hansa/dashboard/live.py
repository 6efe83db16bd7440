"""Server-sent events: the parts of a page that have changed since they were last sent."""

import json
from asyncio import sleep
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from hansa.core.errors import HansaError

POLL_SECONDS = 1.0
QUIET_SECONDS = 15.0  # after which a comment is sent, so that proxies keep the connection
MAX_SECONDS = 900.0  # of a stream; the browser then opens another one
MAX_STREAMS = 12  # of one session

Parts = Mapping[str, str]  # the id of an element → its content


async def events(parts: Callable[[], Parts], alive: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The changed parts as events, until ``alive`` is false or `MAX_SECONDS` have passed."""
    sent: dict[str, str] = {}
    began = quiet = monotonic()
    yield b"retry: 3000\n\n"
    while alive() and monotonic() - began < MAX_SECONDS:
        try:
            found = await run_in_threadpool(parts)
        except HansaError:  # such as a run directory that is being replaced
            found = {}
        changed = {id: text for id, text in found.items() if sent.get(id) != text}
        if changed:
            sent |= changed
            yield f"event: parts\ndata: {json.dumps(changed, ensure_ascii=False)}\n\n".encode()
            quiet = monotonic()
        elif monotonic() - quiet > QUIET_SECONDS:
            yield b": nothing new\n\n"
            quiet = monotonic()
        await sleep(POLL_SECONDS)


def stream(source: AsyncIterator[bytes]) -> StreamingResponse:
    """A response that sends events as they come."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(source, media_type="text/event-stream", headers=headers)
