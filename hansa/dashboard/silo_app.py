"""The page of a silo's administrator, on the silo's own machine (`hansa silo-page KIT`)."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from hansa.core.errors import HansaError, printable
from hansa.dashboard.accounts import Role
from hansa.dashboard.live import MAX_STREAMS, events, stream
from hansa.dashboard.silo_view import SiloView
from hansa.dashboard.site import NUMBER, Authority, Site
from hansa.deploy.status import format_time

ACCESS: dict[str, Role | None] = {
    "now": Role.reader,
    "now_events": Role.reader,
    "approvals": Role.reader,
    "log": Role.reader,
    "budget": Role.reader,
    "policy": Role.reader,
    "approve": Role.approver,
    "refuse": Role.approver,
    "withdraw": Role.approver,
    "pause": Role.approver,
    "resume": Role.approver,
}
KINDS = {
    "": "everything",
    "release": "what was sent",
    "request": "requests",
    "refusal": "refusals",
    "decision": "decisions",
}


def create(view: SiloView, authority: Authority, token_only: bool, secure: bool, hosts: tuple[str, ...]) -> FastAPI:
    """The page of one silo. ``token_only``: the login asks for a token and for no name; see `Site` for the others."""
    menu = (
        ("Now", "/"),
        ("Approvals", "/approvals"),
        ("What left", "/log"),
        ("Budget", "/budget"),
        ("Policy", "/policy"),
    )
    title = f"Hansa at {printable(view.kit.name, 60)}"
    site = Site(title, authority, ACCESS, secure, hosts, token_only, menu=menu)
    pages, app = SiloPages(site, view), site.application()
    app.get("/", name="now")(pages.now)
    app.get("/events", name="now_events")(pages.now_events)
    app.get("/approvals", name="approvals")(pages.approvals)
    app.post("/approvals/{digest}/approve", name="approve")(pages.approve)
    app.post("/approvals/{digest}/refuse", name="refuse")(pages.refuse)
    app.post("/approvals/{digest}/withdraw", name="withdraw")(pages.withdraw)
    app.post("/pause", name="pause")(pages.pause)
    app.post("/resume", name="resume")(pages.resume)
    app.get("/log", name="log")(pages.log)
    app.get("/budget", name="budget")(pages.budget)
    app.get("/policy", name="policy")(pages.policy)
    app.state.site = site
    return app


class SiloPages:
    """The pages of a silo."""

    def __init__(self, site: Site, view: SiloView) -> None:
        self._site, self._view = site, view

    def now(self, request: Request) -> Response:
        """What is asked of the silo now."""
        return self._site.page(request, "silo/now.html", part=self._now(request), pause=self._view.state()["paused"])

    def _now(self, request: Request) -> str:
        return self._site.render(
            request,
            "silo/state.html",
            **self._view.state(),
            kit=self._view.kit,
            when=format_time,
            recent=self._view.log(0, "release").rows[:10],
        ).strip()

    async def now_events(self, request: Request) -> Response:
        """The state as it changes."""
        session, number = request.state.session, str(request.session.get(NUMBER, ""))
        if session.streams >= MAX_STREAMS:
            raise HTTPException(429)

        async def counted() -> AsyncIterator[bytes]:
            """The events of the silo's state, which count as one of the session's streams while they are sent."""
            session.streams += 1
            try:
                alive = self._site.sessions.find
                async for event in events(lambda: {"live-now": self._now(request)}, lambda: alive(number) is not None):
                    yield event
            finally:
                session.streams -= 1

        return stream(counted())

    def approvals(self, request: Request) -> Response:
        """Pending runs with the difference to what was approved before, and what was decided."""
        return self._approvals_page(request)

    def _approvals_page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        held = self._view.approvals
        used = {one.digest: len(held.used(one.digest)) for one in held.all()}
        values = {"pending": self._view.pending(), "approved": held.all()[::-1], "refused": held.refused()[::-1]}
        return self._site.page(request, "silo/approvals.html", status, problem=problem, used=used, **values)

    async def approve(self, request: Request, digest: str) -> Response:
        """Approve a pending run."""
        form = await request.form()
        runs = str(form.get("runs", "1"))
        number = int(runs) if runs.isdecimal() and len(runs) < 6 else 0
        by = request.state.session.account.name
        try:
            await run_in_threadpool(self._view.approve, digest, number, form.get("start") == "accept", by)
        except HansaError as error:
            return await run_in_threadpool(self._approvals_page, request, printable(str(error), 1000), 400)
        return self._to(request, "/approvals")

    def refuse(self, request: Request, digest: str) -> Response:
        """Refuse a pending run."""
        self._view.refuse(digest, request.state.session.account.name)
        return self._to(request, "/approvals")

    def withdraw(self, request: Request, digest: str) -> Response:
        """Withdraw an approval."""
        self._view.withdraw(digest, request.state.session.account.name)
        return self._to(request, "/approvals")

    def pause(self, request: Request) -> Response:
        """Pause the agent."""
        self._view.pause(request.state.session.account.name)
        return self._to(request, "/")

    def resume(self, request: Request) -> Response:
        """Let the agent work again."""
        self._view.resume(request.state.session.account.name)
        return self._to(request, "/")

    def log(
        self, request: Request, page: Annotated[int, Query(ge=0, le=100_000)] = 0, kind: Annotated[str, Query()] = ""
    ) -> Response:
        """The audit log as sentences."""
        kind = kind if kind in KINDS else ""
        found = self._view.log(page, kind)
        return self._site.page(request, "silo/log.html", log=found, number=page, kind=kind, kinds=KINDS)

    def budget(self, request: Request) -> Response:
        """What was spent of the privacy budget."""
        return self._site.page(request, "silo/budget.html", budget=self._view.budget())

    def policy(self, request: Request) -> Response:
        """The policy in sentences."""
        file = self._view.policy_file
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        words = self._view.policy_words()
        return self._site.page(request, "silo/policy.html", lines=words, file=file, text=text[:100_000])

    def _to(self, request: Request, path: str) -> Response:
        return RedirectResponse(self._site.path(request, path), 303)
