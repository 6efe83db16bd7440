"""What `hansa serve` does at the root: one run, or the runs of a queue. Imported when it is needed: it loads torch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.cli.console import errors
from hansa.cli.dashboard import require_dashboard
from hansa.cli.logs import LogFormat, log_files
from hansa.config.federation import Federation
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import Kit
from hansa.deploy.log_callbacks import LogCallbacks
from hansa.deploy.run_log import RunLog
from hansa.deploy.run_queue import RunQueue, StopOnRequest, serve_queue
from hansa.report import html
from hansa.report.progress import Progress
from hansa.runs.result import Result

log = logging.getLogger("hansa")


@dataclass
class Serving:
    """The coordinator of a federation: its kit, where it listens, and who is told what.

    ``callbacks``: for every run, beside its log; ``pages``: an ASGI application for the same port. ``folder``: the
    directory of the run that is under way, or was last.
    """

    kit: Kit
    nats: str | None
    listen: str | None
    log_format: LogFormat
    callbacks: Sequence[object] = ()
    pages: Any | None = None
    folder: Path | None = None

    def run(self, settings: Federation, out: Path, *callbacks: object) -> tuple[Result, Path]:
        """Run a federation file to its end between organisations; return the result and the path of its report."""
        self.folder = out
        watcher = LogCallbacks() if self.log_format is LogFormat.json else Progress(errors, settings.name)
        # In text format the progress display shows the run, and nothing of it passes through the log.
        files = log_files() if self.log_format is LogFormat.text else []
        told = [watcher, RunLog(out, files), *self.callbacks, *callbacks]
        outcome = serve(settings, self.kit, out, self.nats, told, self.listen, self.pages)
        return outcome, html.write([(settings.name, outcome.folder)], outcome.folder / "report.html")

    def queue(self, runs: Path) -> None:
        """Work on submitted runs until the process is stopped."""

        def one(settings: Federation, out: Path, stop: StopOnRequest) -> None:
            self.run(settings, out, stop)

        serve_queue(RunQueue(runs), one, log.info)


def pages_of(runs: Path, accounts: Path) -> Any:
    """The dashboard of the runs below a folder, for the accounts in a file; raises `UserError` without accounts."""
    require_dashboard()
    from hansa.dashboard.accounts import open_accounts
    from hansa.dashboard.app import create

    runs.mkdir(parents=True, exist_ok=True)
    return create(runs, open_accounts(accounts), secure=True)
