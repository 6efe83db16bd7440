"""What both pages share: logging in, roles, protection against forged requests, headers, templates.

A route is refused unless `Site.access` names the role that it needs: a new route without an entry answers 403. Every
request that changes something carries the session's token (`csrf`) in its form and comes from the page's own origin.
"""

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, RedirectResponse, Response

from hansa.core.errors import HansaError, printable
from hansa.dashboard.accounts import Account, Role
from hansa.dashboard.sessions import MAX_SECONDS, LoginLimit, Session, Sessions
from hansa.dashboard.shield import Shield

FOLDER = Path(str(files("hansa.dashboard")))
STATIC = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
NUMBER = "number"  # of the session, in the cookie
MAX_SHOWN = 1000  # characters of a text from another party
BEFORE = "before"  # the token of a visitor who has not logged in, in the cookie
LOGGED_OUT: Mapping[str, Role | None] = {"login": None, "log_in": None, "static": None}
REASONS = {
    400: "The request cannot be read.",
    403: "Your account may not do this.",
    404: "There is no such page, or your account may not see it.",
    405: "This address does not take such requests.",
    413: "The request is too large.",
    422: "The request cannot be read.",
    429: "There were too many attempts. Wait a minute.",
}


class Authority(Protocol):
    """Checks names and passwords."""

    def check(self, name: str, password: str) -> Account | None:
        """The account with this name and password; None if there is none."""

    def find(self, name: str) -> Account | None:
        """The account with this name as it is now; None if there is none."""


@dataclass
class Site:
    """A site of pages.

    ``access``: name of a route → the least role it needs, None: everybody. ``secure``: the site is reached by HTTPS
    alone. ``hosts``: names by which browsers may address it; empty: any. ``buttons``: other ways to log in, label →
    name of a route.
    """

    title: str
    authority: Authority
    access: Mapping[str, Role | None]
    secure: bool
    hosts: tuple[str, ...] = ()
    token_only: bool = False  # the login asks for a token and for no name
    passwords: bool = True  # the login has a form; without one, people log in by the buttons alone
    buttons: dict[str, str] = field(default_factory=dict)
    menu: tuple[tuple[str, str], ...] = ()  # label, path
    sessions: Sessions = field(default_factory=Sessions)
    limit: LoginLimit = field(default_factory=LoginLimit)

    def __post_init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters |= {
            "name": shown_name,
            "plain": lambda text: printable(str(text), MAX_SHOWN),
            "lines": shown_lines,
            "part": lambda text: quote(str(text), safe=""),
        }

    def application(self) -> FastAPI:
        """A FastAPI application with login, logout and static files; the caller adds its own routes."""
        app = FastAPI(
            title=self.title, docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(self._admit)]
        )
        app.add_middleware(
            SessionMiddleware,
            secret_key=secrets.token_urlsafe(32),
            session_cookie="hansa-secure" if self.secure else "hansa",
            max_age=int(MAX_SECONDS),
            same_site="lax",  # an OIDC provider redirects back to the site
            https_only=self.secure,
        )
        if self.hosts:
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(self.hosts), www_redirect=False)
        app.add_middleware(Shield, secure=self.secure)  # the outermost: its headers are on every response
        app.get("/login", name="login")(self._login_page)
        app.post("/login", name="log_in")(self._log_in)
        app.post("/logout", name="logout")(self._log_out)
        app.get("/static/{file}", name="static")(self._static)
        for kind in (StarletteHTTPException, RequestValidationError, HansaError):
            app.add_exception_handler(kind, self._failed)
        return app

    # ── roles ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _admit(self, request: Request) -> None:
        """Refuse a request whose route needs a role that its session lacks, or that another site has forged."""
        name = getattr(request.scope.get("route"), "name", "")
        access = {**LOGGED_OUT, "logout": Role.reader, **self.access}
        if name not in access:
            raise HTTPException(403)
        session = self.sessions.find(str(request.session.get(NUMBER, "")))
        request.state.session = session
        role = access[name]
        if role is not None and session is None:
            raise HTTPException(401)
        if role is not None and session is not None and session.account.role < role:
            raise HTTPException(403)
        if request.method not in ("GET", "HEAD"):
            await self._check_origin(request, session)

    async def _check_origin(self, request: Request, session: Session | None) -> None:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(403, "The request comes from another site.")
        expected = session.csrf if session is not None else str(request.session.get(BEFORE, ""))
        given = str((await request.form()).get("csrf", ""))
        if not expected or not compare_digest(expected.encode(), given.encode()):
            raise HTTPException(403, "The form is out of date. Go back, reload the page and try again.")

    # ── logging in and out ────────────────────────────────────────────────────────────────────────────────────────

    async def _login_page(self, request: Request) -> Response:
        return self._login_form(request)

    def _login_form(self, request: Request, problem: str = "", status: int = 200, wait: int = 0) -> Response:
        token = request.session.setdefault(BEFORE, secrets.token_urlsafe(24))
        page = self.page(request, "login.html", status, token=token, problem=problem)
        if wait:
            page.headers["Retry-After"] = str(wait)
        return page

    async def _log_in(self, request: Request) -> Response:
        form = await request.form()
        name, password = str(form.get("name", "")), str(form.get("password", ""))
        address = request.client.host if request.client is not None else ""
        if wait := ceil(self.limit.wait(name, address)):
            return self._login_form(request, f"There were too many attempts. Wait {wait} seconds.", 429, wait)
        account = await run_in_threadpool(self.authority.check, name, password[:2000])
        if account is None:
            self.limit.failed(name, address)
            what = "This is not the token." if self.token_only else "The name or the password is wrong."
            return self._login_form(request, what, 401)
        return self.log_in(request, account, lambda: self.authority.find(account.name))

    def log_in(self, request: Request, account: Account, current: Callable[[], Account | None]) -> Response:
        """Begin a session for an account whose owner has shown who they are; return to the first page."""
        request.session.clear()
        request.session[NUMBER] = self.sessions.begin(account, current)
        return RedirectResponse(self.path(request, "/"), 303)

    async def _log_out(self, request: Request) -> Response:
        self.sessions.end(str(request.session.get(NUMBER, "")))
        request.session.clear()
        return RedirectResponse(self.path(request, "/login"), 303)

    # ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def path(self, request: Request, path: str) -> str:
        """A path of the site as browsers see it, also where the site is mounted below another one."""
        return f"{request.scope.get('root_path', '')}{path}"

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page from a template."""
        return HTMLResponse(self.render(request, template, **values), status)

    def render(self, request: Request, template: str, **values: Any) -> str:
        """The text of a page, or of a part of one."""
        session: Session | None = getattr(request.state, "session", None)
        common = {
            "site": self,
            "root": self.path(request, ""),
            "account": session.account if session is not None else None,
            "csrf": session.csrf if session is not None else "",
            "Role": Role,
            "here": request.scope.get("path", "").removeprefix(request.scope.get("root_path", "")),
        }
        return self._templates.get_template(template).render(common | values)

    async def _static(self, file: str) -> Response:
        if file not in STATIC:
            raise HTTPException(404)
        content = (FOLDER / "static" / file).read_bytes()
        return Response(content, media_type=STATIC[file], headers={"Cache-Control": "max-age=3600"})

    async def _failed(self, request: Request, error: Exception) -> Response:
        """A page for an error: one sentence."""
        status, detail = 400, ""
        if isinstance(error, StarletteHTTPException):
            status = error.status_code
            detail = "" if error.detail == _standard(status) else str(error.detail)
        elif isinstance(error, HansaError):
            detail = printable(str(error), 1000)
        if status == 401:
            return RedirectResponse(self.path(request, "/login"), 303)
        return self.page(request, "error.html", status, reason=detail or REASONS.get(status, "The request failed."))


def _standard(status: int) -> str:
    with suppress(AssertionError, ValueError):
        return str(StarletteHTTPException(status).detail)
    return ""


def shown_lines(text: object) -> str:
    """A text of several lines whose control characters, which could turn lines around, are replaced by a mark."""
    lines = str(text).splitlines()
    return "\n".join(
        "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line) for line in lines
    )


def shown_name(text: object) -> Markup:
    """A name from another party: no control characters, isolated from the text around it, in its own direction."""
    return Markup('<bdi dir="auto">{}</bdi>').format(escape(printable(str(text), MAX_SHOWN)))
