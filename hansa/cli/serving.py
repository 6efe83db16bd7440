"""What `hansa serve` does at the root: one run, or the runs of a queue. Imported when it is needed: it loads torch."""

import logging
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hansa.cli.console import errors
from hansa.cli.dashboard import require_dashboard
from hansa.cli.logs import LogFormat, log_files
from hansa.config.federation import Federation
from hansa.deploy.alerts import Alerts
from hansa.deploy.coordinator import check_coordinator, serve, serve_run
from hansa.deploy.kit import Kit
from hansa.deploy.log_callbacks import LogCallbacks
from hansa.deploy.public_certificate import PublicCertificate
from hansa.deploy.queue_worker import QueueTurn, serve_queue
from hansa.deploy.retention import deleting, old_parts
from hansa.deploy.run_log import RunLog
from hansa.deploy.run_queue import RunQueue
from hansa.deploy.standing import standing_server
from hansa.deploy.status import SERVER_FOLDER
from hansa.report import html
from hansa.report.progress import Progress
from hansa.runs.result import Result

log = logging.getLogger("hansa")


@dataclass
class Serving:
    """The coordinator of a federation: its kit, where it listens, and who is told what.

    ``alerts`` hear of all runs, and watch the members of a queue also between runs; ``pages``: an ASGI application for
    the same port; ``public``: the port's certificate for browsers; ``open``: the directories of the runs that are under
    way.
    """

    kit: Kit
    nats: str | None
    listen: str | None
    log_format: LogFormat
    alerts: Alerts | None = None
    pages: Any | None = None
    public: PublicCertificate | None = None
    open: list[Path] = field(default_factory=list)

    def run(self, settings: Federation, out: Path) -> tuple[Result, Path]:
        """Run a federation file to its end between organisations; return the result and the path of its report."""
        self.open.append(out)
        told = self._told(settings, out, True)
        outcome = serve(settings, self.kit, out, self.nats, told, self.listen, self.pages, self.public)
        return outcome, _report(settings, outcome)

    def queue(self, runs: Path, at_once: int, keep_days: float | None = None) -> None:
        """Work on submitted runs, up to ``at_once`` at the same time, until the process is stopped.

        The port stays open between runs. ``keep_days``: after how many days spools and checkpoints of runs go.
        """
        check_coordinator(self.kit)
        files = runs / SERVER_FOLDER
        with ExitStack() as stack:
            standing = standing_server(self.kit, files, self.nats, log.info, self.listen, self.pages, self.public)
            server = stack.enter_context(standing)
            if self.alerts is not None:
                self.alerts.watch(runs, self.kit.info.federation)
            if keep_days is not None:
                stack.enter_context(deleting(lambda: old_parts(runs, keep_days), log.info))

            def one(settings: Federation, out: Path, turn: QueueTurn) -> None:
                """Run one submitted federation and write its report; ``turn`` is the callback that can end it."""
                self.open.append(out)
                try:
                    told = [*self._told(settings, out, at_once == 1), turn]
                    _report(settings, serve_run(settings, self.kit, out, server.open_run, told))
                finally:
                    self.open.remove(out)

            try:
                serve_queue(RunQueue(runs), one, log.info, at_once=at_once)
            except SystemExit as ended:
                # Runs go on in threads, and nothing may be closed below them: they resume after a restart, as after a
                # crash.
                logging.shutdown()
                sys.stdout.flush()
                os._exit(ended.code if isinstance(ended.code, int) else 1)

    def _told(self, settings: Federation, out: Path, alone: bool) -> list[object]:
        """Who is told about a run. ``alone``: no other run writes to the terminal at the same time."""
        shows = alone and self.log_format is LogFormat.text
        watcher: object = Progress(errors, settings.name) if shows else LogCallbacks(_named(out.name, self.log_format))
        # What the progress display shows does not pass through the log.
        told = [watcher, RunLog(out, log_files() if shows else [])]
        return [*told, self.alerts] if self.alerts is not None else told


def _named(run: str, format: LogFormat) -> logging.Logger:
    """The logger of one run among several: in text format its lines begin with the run's name."""
    found = logging.getLogger("hansa.serve")
    if format is LogFormat.json:
        return found
    named = logging.Logger(f"hansa.serve.{run}", found.getEffectiveLevel())
    named.addFilter(lambda record: _prefix(record, run))
    named.parent = found
    return named


def _prefix(record: logging.LogRecord, run: str) -> bool:
    record.msg = f"{run}: {record.getMessage()}"
    record.args = ()
    return True


def _report(settings: Federation, outcome: Result) -> Path:
    return html.write([(settings.name, outcome.folder)], outcome.folder / "report.html")


def pages_of(runs: Path, accounts: Path | None, oidc: Path | None, kit: Kit) -> Any:
    """The dashboard of the runs below a folder, for the accounts in a file, the provider that one names, or both.

    ``kit``: the coordinator's, against which submitted files are checked. Raises `UserError` if a file cannot be used,
    or if no person could log in.
    """
    require_dashboard()
    from hansa.dashboard.app import open_dashboard

    runs.mkdir(parents=True, exist_ok=True)
    return open_dashboard(runs, accounts, oidc, secure=True, kit=kit)
