"""Alerts of a coordinator by webhook: a round failed, the run ended with an error, a member is missing or back.

A region has no run of its own: its alerts are about its members, and ``run`` is the name of its folder.

    POST URL
    X-Hansa-Signature: sha256=HMAC-SHA256(secret, "TIME." + body)      X-Hansa-Time: TIME
    {"event": "member missing", "federation": "clinics", "run": "clinics", "time": …, "node": "lyon", "text": "…"}

One `Alerts` serves all runs of a process, so that a member that is missing is told once, whatever the number of runs.
The text is Hansa's own: it has names of nodes and figures, and no reason that a silo stated, so that no text of a silo
can leave by it. Alerts are sent by a thread, with a bound on attempts, on time and on how many wait; the run never
waits for them.
"""

import hashlib
import hmac
import http.client
import json
import os
import sqlite3
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from hansa.core.errors import HansaError, UserError
from hansa.deploy.status import AWAY_SECONDS, is_away, read_status
from hansa.runs.callbacks import CurrentRun, RoundRecord

ATTEMPTS = 4
PAUSES = (1.0, 5.0, 20.0)  # seconds between attempts
SECONDS = 10.0  # of one attempt
MAX_WAITING = 100
LOOK_SECONDS = 5.0  # between looks at the members
CLOSE_SECONDS = 15.0  # for alerts that wait when the process ends
SECRET = "HANSA_WEBHOOK_SECRET"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Webhook:
    """Where alerts go, and the secret that signs them."""

    url: str
    secret: bytes

    @staticmethod
    def parse(url: str, secret: str | None = None) -> "Webhook":
        """A webhook; the secret is in the variable HANSA_WEBHOOK_SECRET. Raises `UserError` if it cannot be used."""
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UserError(f"--webhook {url!r}: write it as https://HOST/PATH")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise UserError(f"--webhook {url}: alerts leave this machine, so it must begin with https://")
        secret = os.environ.get(SECRET, "") if secret is None else secret
        if len(secret) < 16:
            raise UserError(f"--webhook needs a secret of at least 16 characters in the variable {SECRET}")
        return Webhook(url, secret.encode())

    def post(self, body: bytes) -> int:
        """Send one alert; returns the status of the answer. Raises `OSError` or `HTTPException`. No proxy is used."""
        parts, at = urlsplit(self.url), str(int(time()))
        made: http.client.HTTPConnection
        if parts.scheme == "https":
            made = http.client.HTTPSConnection(
                str(parts.hostname), parts.port, timeout=SECONDS, context=ssl.create_default_context()
            )
        else:
            made = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=SECONDS)
        headers = {
            "Content-Type": "application/json",
            "X-Hansa-Time": at,
            "X-Hansa-Signature": sign(self.secret, at, body),
        }
        try:
            made.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
            return made.getresponse().status
        finally:
            made.close()


def sign(secret: bytes, at: str, body: bytes) -> str:
    """The signature of an alert, for the header X-Hansa-Signature."""
    return "sha256=" + hmac.new(secret, at.encode() + b"." + body, hashlib.sha256).hexdigest()


class Alerts:
    """Sends the alerts of a coordinator; a callback of all its runs.

    Of a region, which runs no callbacks, `watch` and `close` are called instead. ``log`` gets a sentence for each alert
    that could not be sent. ``grace``: seconds for which members that were connected before may connect again.
    """

    def __init__(
        self,
        webhook: Webhook,
        log: Callable[[str], None],
        pauses: tuple[float, ...] = PAUSES,
        grace: float = 2 * AWAY_SECONDS,
    ) -> None:
        self._webhook, self._log, self._pauses, self._grace = webhook, log, pauses, grace
        self._waiting: Queue[dict[str, Any]] = Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._missing: set[str] = set()
        self._watched: _Watched | None = None
        self._looked = 0.0
        self._look_seconds = LOOK_SECONDS
        self._thread = threading.Thread(target=self._work, name="hansa-alerts", daemon=True)
        self._thread.start()

    def watch(self, folder: Path, federation: str, run: str = "") -> None:
        """Watch the members in the journal below ``folder`` from now on.

        ``run``: the run that the folder is of; empty for a queue, whose members are watched also while no run is under
        way.
        """
        self._watched = _Watched(folder, federation, run, monotonic())

    def close(self) -> None:
        """Send what waits, for a bounded time. Nothing is sent after that."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)

    # ── what happens in the runs ──────────────────────────────────────────────────────────────────────────────────

    def on_message(self, run: CurrentRun, text: str) -> None:
        """A run has begun: its members are watched from now on, unless those of the queue are."""
        if self._watched is None:
            self.watch(run.folder, run.name, run.folder.name)

    def on_round_end(self, run: CurrentRun, record: RoundRecord) -> None:
        """Alert if silos had no part in the round."""
        if record.failures:
            lost, asked = sorted(record.failures), len(record.participants)
            text = f"{len(lost)} of {asked} silos had no part in round {record.number}: {', '.join(lost)}"
            self._add("round incomplete", run.name, run.folder.name, text, round=record.number, nodes=lost)

    def on_failure(self, run: CurrentRun, error: BaseException) -> None:
        """Alert that a run ended with an error."""
        if isinstance(error, Exception):
            kind = type(error).__name__
            text = f"the run ended after round {run.round} with {kind}; the coordinator's log has the reason"
            self._add("run failed", run.name, run.folder.name, text, round=run.round)

    # ── sending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, event: str, federation: str, run: str, text: str, **fields: Any) -> None:
        about = {"event": event, "federation": federation, "run": run, "time": time(), "text": text}
        with suppress(Full):
            self._waiting.put_nowait(about | fields)

    def _work(self) -> None:
        while True:
            self._look()
            try:
                alert = self._waiting.get(timeout=0.2)
            except Empty:
                if self._closing.is_set():
                    return
                continue
            self._deliver(alert)

    def _deliver(self, alert: dict[str, Any]) -> None:
        body, why = json.dumps(alert, ensure_ascii=False).encode(), ""
        for attempt in range(ATTEMPTS):
            try:
                status = self._webhook.post(body)
            except (OSError, http.client.HTTPException) as error:
                why = type(error).__name__
            else:
                if 200 <= status < 300:
                    return
                why = f"status {status}"
                if 400 <= status < 500 and status not in (408, 429):
                    break
            if attempt + 1 < ATTEMPTS and self._closing.wait(self._pauses[min(attempt, len(self._pauses) - 1)]):
                self._pauses = (0.2,)  # the process ends: the remaining attempts follow at once
        self._log(f"the alert '{alert['event']}' could not be sent to the webhook ({why})")

    def _look(self) -> None:
        """Alert once for each member that goes missing, and once when it is back."""
        watched = self._watched
        if watched is None or monotonic() - self._looked < self._look_seconds or self._closing.is_set():
            return
        if monotonic() - watched.since < self._grace:  # members connect again after a restart of the coordinator
            return
        self._looked = monotonic()
        found = missing_members(watched.folder)
        if found:  # empty: the journal cannot be read now
            self._missing &= found.keys()
        for node, missing in found.items():
            if missing and node not in self._missing:
                self._missing.add(node)
                text = f"'{node}' sends no heartbeat"
                self._add("member missing", watched.federation, watched.run, text, node=node)
            elif not missing and node in self._missing:
                self._missing.discard(node)
                text = f"'{node}' is connected again"
                self._add("member back", watched.federation, watched.run, text, node=node)


@dataclass(frozen=True)
class _Watched:
    """Whose members are watched: the folder with their journal, what alerts say about it, and since when."""

    folder: Path
    federation: str
    run: str
    since: float


def missing_members(folder: Path) -> dict[str, bool]:
    """Node → whether it was connected before and is not now, or is awaited and never was; empty without a journal."""
    try:
        return {node.node: is_away(node) for node in read_status(folder, time())}
    except (HansaError, OSError, ValueError, sqlite3.Error):
        return {}
