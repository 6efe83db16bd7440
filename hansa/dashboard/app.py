"""The consortium's dashboard as an ASGI application: runs, one run, comparisons, the queue, submissions.

`create` returns an application that serves itself (`hansa dashboard`) or is mounted below another one: all links begin
with the mount's path.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response, StreamingResponse

from hansa.config.shared import differences
from hansa.core.errors import HansaError, UserError, printable
from hansa.dashboard import queue_pages
from hansa.dashboard.accounts import Account, Accounts, NoAccounts, Role, open_accounts
from hansa.dashboard.download import zip_stream
from hansa.dashboard.live import MAX_STREAMS, events, stream
from hansa.dashboard.oidc import OidcSettings, add_oidc
from hansa.dashboard.queue_pages import QueuePages
from hansa.dashboard.run_folder import RunFolder
from hansa.dashboard.run_view import RunView, mean_curve, read_run
from hansa.dashboard.sessions import Session
from hansa.dashboard.site import NUMBER, Authority, Site
from hansa.dashboard.submissions import APPROVED, REFUSED, WAITING, WITHDRAWN, Submissions
from hansa.deploy.kit import Kit
from hansa.deploy.run_queue import RunQueue
from hansa.deploy.status import format_time
from hansa.report.charts import bars, lines, short
from hansa.report.traffic import size

MAX_COMPARED = 8
MAX_SERIES = 16  # lines of a chart
LIVE = ("state", "curves", "nodes", "traffic", "events", "log")  # the parts of the page that change
ACCESS: dict[str, Role | None] = {
    "runs": Role.reader,
    "run": Role.reader,
    "run_events": Role.reader,
    "compare": Role.reader,
    "model": Role.submitter,
    "submissions": Role.submitter,
    "submit": Role.submitter,
    "withdraw": Role.submitter,
    "approve": Role.approver,
    "refuse": Role.approver,
    **queue_pages.ACCESS,
}


@dataclass(frozen=True)
class Chart:
    """A chart with its values as a table, for people who cannot see it."""

    title: str
    svg: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0  # series that are not drawn


def open_dashboard(
    runs: Path, accounts: Path | None, oidc: Path | None, secure: bool, kit: Kit | None = None
) -> FastAPI:
    """`create` for the accounts in a file, the provider that a file names, or both.

    Raises `UserError` if a file cannot be used, or if there is neither an account nor a provider to log in with.
    """
    settings = OidcSettings.read(oidc) if oidc is not None else None
    if accounts is None:
        return create(runs, None, secure, settings, kit)
    return create(runs, open_accounts(accounts) if settings is None else Accounts(accounts), secure, settings, kit)


def create(
    runs: Path, accounts: Authority | None, secure: bool, oidc: OidcSettings | None = None, kit: Kit | None = None
) -> FastAPI:
    """The dashboard of the runs below a folder; ``secure``: it is reached by HTTPS alone.

    Without ``accounts`` people log in with the provider of ``oidc`` alone. ``kit``: the coordinator's, so that a
    submitted file is refused if its silos are not members. Raises `UserError` if there is neither, if there is no such
    folder, or if the provider's settings do not fit.
    """
    if accounts is None and oidc is None:
        raise UserError("no person could log in: give a file of accounts, or one that names an OpenID Connect provider")
    menu = (("Runs", "/"), ("Compare", "/compare"), ("Queue", "/queue"), ("Submissions", "/submissions"))
    access = ACCESS | ({"oidc_begin": None, "oidc_done": None} if oidc is not None else {})
    held = NoAccounts() if accounts is None else accounts
    site = Site("Hansa dashboard", held, access, secure, menu=menu, passwords=accounts is not None)
    dashboard = Dashboard(site, RunFolder(runs), Submissions(runs, kit))
    app = site.application()
    app.get("/", name="runs")(dashboard.runs)
    app.get("/runs/{run}", name="run")(dashboard.run)
    app.get("/runs/{run}/events", name="run_events")(dashboard.run_events)
    app.get("/runs/{run}/model.zip", name="model")(dashboard.model)
    app.get("/compare", name="compare")(dashboard.compare)
    app.get("/submissions", name="submissions")(dashboard.submissions)
    app.post("/submissions", name="submit")(dashboard.submit)
    app.post("/submissions/{id}/approve", name="approve")(dashboard.approve)
    app.post("/submissions/{id}/refuse", name="refuse")(dashboard.refuse)
    app.post("/submissions/{id}/withdraw", name="withdraw")(dashboard.withdraw)
    QueuePages(site, RunQueue(runs)).add_to(app)
    if oidc is not None:
        add_oidc(app, site, oidc)
    app.state.site = site
    return app


class Dashboard:
    """The pages of the dashboard."""

    def __init__(self, site: Site, runs: RunFolder, submissions: Submissions) -> None:
        self._site, self._runs, self._submissions = site, runs, submissions

    # ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def runs(self, request: Request) -> Response:
        """The list of runs."""
        found = self._runs.visible(_account(request))
        return self._site.page(request, "runs.html", runs=found, when=format_time)

    def run(self, request: Request, run: str) -> Response:
        """The page of one run."""
        view = read_run(self._find(request, run), run)
        parts = self._parts(request, view)
        return self._site.page(request, "run.html", view=view, parts=parts, when=format_time)

    async def run_events(self, request: Request, run: str) -> Response:
        """The parts of a run's page as they change."""
        folder = await run_in_threadpool(self._find, request, run)
        session, number = _session(request), str(request.session.get(NUMBER, ""))
        if session.streams >= MAX_STREAMS:
            raise HTTPException(429)

        def alive() -> bool:
            """Whether the session still exists and its account may still see the run."""
            now = self._site.sessions.find(number)
            return now is not None and now.account.may_see(run)

        async def counted() -> AsyncIterator[bytes]:
            """The events of the run's page, counted as one open stream of the session until they end."""
            session.streams += 1
            try:
                async for event in events(lambda: self._parts(request, read_run(folder, run)), alive):
                    yield event
            finally:
                session.streams -= 1

        return stream(counted())

    def _parts(self, request: Request, view: RunView) -> dict[str, str]:
        charts = [chart(one.title, one.series, "round") for one in (*view.languages, *view.silos)]
        values = {
            "view": view,
            "charts": charts,
            "traffic_chart": _traffic_chart(view),
            "when": format_time,
            "size": size,
            "short": short,
            "time_of": _time_of,
        }
        return {f"live-{name}": self._site.render(request, f"live/{name}.html", **values).strip() for name in LIVE}

    def model(self, request: Request, run: str) -> Response:
        """The final model as a zip file."""
        folder = self._find(request, run) / "model"
        if not folder.is_dir():
            raise HTTPException(404, "This run has no final model yet.")
        name = quote(f"{run}-model.zip", safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return StreamingResponse(zip_stream(folder, "model"), media_type="application/zip", headers=headers)

    def compare(self, request: Request, run: Annotated[list[str] | None, Query()] = None) -> Response:
        """Several runs beside one another."""
        ids = list(dict.fromkeys(run or []))[:MAX_COMPARED]
        views = [read_run(self._find(request, id), id) for id in ids]
        metrics = list(dict.fromkeys(view.metric for view in views))
        charts = []
        for metric in metrics:
            series = [(view.summary.id, tuple(mean_curve(view))) for view in views if view.metric == metric]
            charts.append(chart(f"{metric}, mean over languages", series, "round"))
        settings = [
            (view.summary.id, list(differences(views[0].settings, view.settings)) or ["none"]) for view in views[1:]
        ]
        values: dict[str, Any] = {"views": views, "charts": charts, "settings": settings, "size": size, "short": short}
        values["means"] = [mean_curve(view) for view in views]
        return self._site.page(request, "compare.html", runs=self._runs.visible(_account(request)), ids=ids, **values)

    def _find(self, request: Request, run: str) -> Path:
        folder = self._runs.find(_account(request), run)
        if folder is None:
            raise HTTPException(404)
        return folder

    # ── submissions ───────────────────────────────────────────────────────────────────────────────────────────────

    def submissions(self, request: Request) -> Response:
        """The federation files that the account may see: an approver sees all, a submitter its own."""
        return self._submissions_page(request)

    def _submissions_page(self, request: Request, problem: str = "", text: str = "", status: int = 200) -> Response:
        account = _account(request)
        held = [one for one in self._submissions.all() if account.role >= Role.approver or one.by == account.name]
        held = [one for one in held if account.may_see(one.name)]
        shown = [(one, self._submissions.difference(one) if one.state == WAITING else []) for one in held]
        values = {"shown": shown, "problem": problem, "text": text}
        return self._site.page(request, "submissions.html", status, **values)

    async def submit(self, request: Request) -> Response:
        """Keep a federation file for an approver to decide on."""
        text = str((await request.form()).get("text", ""))
        account = _account(request)
        try:
            await run_in_threadpool(self._submissions.add, text, account.name)
        except HansaError as error:
            return await run_in_threadpool(self._submissions_page, request, printable(str(error), 1000), text, 400)
        return self._back(request)

    def approve(self, request: Request, id: str) -> Response:
        """Approve a submission."""
        return self._decide(request, id, APPROVED)

    def refuse(self, request: Request, id: str) -> Response:
        """Refuse a submission."""
        return self._decide(request, id, REFUSED)

    def withdraw(self, request: Request, id: str) -> Response:
        """Withdraw one's own submission."""
        return self._decide(request, id, WITHDRAWN)

    def _decide(self, request: Request, id: str, state: str) -> Response:
        account, found = _account(request), self._submissions.find(id)
        if found is None or not account.may_see(found.name) or (state == WITHDRAWN and found.by != account.name):
            raise HTTPException(404)
        if state == APPROVED and found.by == account.name:
            raise HTTPException(403, "Another person must approve what you submitted.")
        try:
            self._submissions.decide(id, state, account.name)
        except UserError as error:
            return self._submissions_page(request, printable(str(error), 1000), status=400)
        return self._back(request)

    def _back(self, request: Request) -> Response:
        return RedirectResponse(self._site.path(request, "/submissions"), 303)


def _session(request: Request) -> Session:
    session: Session = request.state.session
    return session


def _account(request: Request) -> Account:
    return _session(request).account


def chart(title: str, series: Any, x_label: str) -> Chart:
    """A line chart and the table of its values; at most `MAX_SERIES` lines are drawn, the table has all of them."""
    safe = [(printable(name, 60), points) for name, points in series]
    shown = safe[:MAX_SERIES]
    rounds = sorted({x for _, points in safe for x, _ in points})
    by_name = [dict(points) for _, points in safe]
    rows = tuple((short(x), *(short(one[x]) if x in one else "–" for one in by_name)) for x in rounds)
    names = tuple(name for name, _ in shown)
    columns = (x_label, *(name for name, _ in safe))
    return Chart(title, lines(title, shown, x_label), names, columns, rows, len(safe) - len(shown))


def _traffic_chart(view: RunView) -> str:
    rows = [(printable(one.node, 60), (one.down / 1e6, one.up / 1e6)) for one in view.traffic[:30]]
    return bars("Bytes to (first bar) and from (second) each silo", rows, ["down", "up"], " MB") if rows else ""


def _time_of(text: str) -> str:
    """The time of a log line, in local time."""
    try:
        return format_time(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return ""
