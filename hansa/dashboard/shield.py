"""Headers that keep a page from loading or being loaded by anything else, and a limit on the size of requests."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 1 << 20  # bytes: the largest request is a federation file
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class TooLarge(Exception):
    """The body of a request has more than `MAX_BODY` bytes."""


class Shield:
    """Middleware around a site; ``secure``: it is reached by HTTPS alone."""

    def __init__(self, app: ASGIApp, secure: bool) -> None:
        self._app, self._secure = app, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with a bound on its body; add the headers to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received, started = 0, False

        async def bounded() -> Message:
            """The next part of the request; raises `TooLarge` once the body has more than `MAX_BODY` bytes."""
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise TooLarge
            return message

        async def protected(message: Message) -> None:
            """Send a part of the response; the first one gets the security headers."""
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers.setdefault("Cache-Control", "no-store")
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._secure:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        try:
            await self._app(scope, bounded, protected)
        except TooLarge:
            if not started:
                headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
                await protected({"type": "http.response.start", "status": 413, "headers": headers})
                await protected({"type": "http.response.body", "body": b"The request is too large.\n"})
