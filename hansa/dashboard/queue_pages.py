"""The queue of a standing coordinator: every submitted run, with the buttons that stop one or put it back.

The dashboard changes the queue's files alone (`hansa.deploy.run_queue`); the coordinator that works on them acts on it.
"""

from dataclasses import dataclass

from fastapi import FastAPI, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from hansa.core.errors import UserError, printable
from hansa.dashboard.accounts import Account, Role
from hansa.dashboard.run_folder import SEPARATOR, is_run
from hansa.dashboard.site import Site
from hansa.deploy.lock_file import LOCK, is_locked
from hansa.deploy.run_queue import BEGUN, ENDED, FAILED, QUEUED, RUNNING, STOPPED, WAITING, QueuedRun, RunQueue

ACCESS: dict[str, Role | None] = {"queue": Role.reader, "stop": Role.approver, "retry": Role.approver}


@dataclass(frozen=True)
class QueueRow:
    """A submitted run as the page shows it."""

    run: QueuedRun
    position: int | None  # of a run that waits: 1 is the next one
    stopping: str  # who stopped a run that is under way; empty if it goes on
    page: str  # the id of its own page; empty while it has none

    @property
    def may_stop(self) -> bool:
        """Whether it can be stopped."""
        return self.run.state not in ENDED and not self.stopping

    @property
    def may_retry(self) -> bool:
        """Whether it can be put into the queue again."""
        return self.run.state in (FAILED, STOPPED)


class QueuePages:
    """The page of a queue, and its two buttons."""

    def __init__(self, site: Site, queue: RunQueue) -> None:
        self._site, self._queue = site, queue

    def add_to(self, app: FastAPI) -> None:
        """Add the routes to the dashboard's application."""
        app.get("/queue", name="queue")(self.queue)
        app.post("/queue/{id}/stop", name="stop")(self.stop)
        app.post("/queue/{id}/retry", name="retry")(self.retry)

    def queue(self, request: Request) -> Response:
        """All submitted runs that the account may see."""
        return self._page(request)

    def stop(self, request: Request, id: str) -> Response:
        """Stop a run after its current round, or take it out of the queue."""
        return self._change(request, id, "stop")

    def retry(self, request: Request, id: str) -> Response:
        """Put a run that failed or was stopped into the queue again."""
        return self._change(request, id, "retry")

    def _change(self, request: Request, id: str, what: str) -> Response:
        account = _account(request)
        if not any(one.id == id and account.may_see(self._id(one)) for one in self._queue.all()):
            raise HTTPException(404)
        try:
            if what == "stop":
                self._queue.stop(id, account.name)
            else:
                self._queue.retry(id)
        except UserError as error:  # it has ended, or was put back, since the page was made
            return self._page(request, printable(str(error), 1000), 400)
        return RedirectResponse(self._site.path(request, "/queue"), 303)

    def _page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        rows = self._rows(_account(request))
        lock = self._queue.folder
        values = {
            "open": [row for row in rows if row.run.state not in ENDED],
            "ended": [row for row in rows if row.run.state in ENDED][::-1],
            "served": (lock / LOCK).is_file() and is_locked(lock),
            "problem": problem,
        }
        return self._site.page(request, "queue.html", status, **values)

    def _rows(self, account: Account) -> list[QueueRow]:
        """The runs that an account may see: those under way, those that wait, those that have ended."""
        found = self._queue.all()
        waiting = {one.id: number for number, one in enumerate((o for o in found if o.state == QUEUED), 1)}
        order = {RUNNING: 0, WAITING: 0, QUEUED: 1}
        shown = [one for one in found if account.may_see(self._id(one))]
        shown.sort(key=lambda one: (order.get(one.state, 2), int(one.id)))
        return [
            QueueRow(
                one,
                waiting.get(one.id),
                self._queue.stop_requested(one) if one.state in BEGUN else "",
                self._id(one) if is_run(self._queue.directory(one)) else "",
            )
            for one in shown
        ]

    def _id(self, one: QueuedRun) -> str:
        """The id of a run in the list of runs."""
        return SEPARATOR.join(self._queue.directory(one).relative_to(self._queue.runs).parts)


def _account(request: Request) -> Account:
    account: Account = request.state.session.account
    return account
