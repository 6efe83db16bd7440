"""The status of the nodes below a coordinator or a region: who is connected, what is awaited, what was refused.

The parent's listener (listener.py) writes heartbeats to the journal, from which `hansa status` reads, also while the
coordinator is down. The folder of a standing coordinator has a journal for all runs, and each run has its own: the
status of a run takes the heartbeats from the former, the status of the coordinator the open requests from the latter.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Any

from hansa.core.errors import UserError
from hansa.deploy.lock_file import is_locked
from hansa.deploy.network.journal import HEARTBEAT, OPEN, Journal
from hansa.deploy.network.presence import SUSPENDED

SERVER_FOLDER = "server"  # the files of a server session, in the run directory
JOURNAL = "journal.sqlite"
CHILDREN, OPEN_RUNS, STANDING = "children", "runs", "standing"  # facts: nodes; run → folder; the standing journal
AWAY_SECONDS = 20.0  # without a heartbeat, after which a node counts as away
MAX_SKEW = 30.0  # seconds between two clocks before the status marks it
WAITING_SECONDS = 15.0  # for which a request is open before the log mentions it
Awaited = tuple[str, float | None]  # a request that is not answered, in words, and its deadline
COLUMNS = ["node", "", "phase", "awaited", "version", "clock", "refused"]


class WaitingLog:
    """Logs which nodes are awaited, when that takes longer than `WAITING_SECONDS`, and again when it changes."""

    def __init__(self, journal: Journal, log: Callable[[str], None]) -> None:
        self._journal, self._log = journal, log
        self._started, self._last = time(), ""

    def update(self, now: float) -> None:
        """Log the open requests, if they have changed."""
        waiting = [
            request
            for request in self._journal.open_requests()
            if now - max(request.sent, self._started) >= WAITING_SECONDS
            and (request.deadline is None or request.deadline > now)
        ]
        if not waiting:
            return
        newest = max(waiting, key=lambda request: request.round)
        names = sorted(r.node for r in waiting if (r.kind, r.round) == (newest.kind, newest.round))
        until = f", until {format_time(newest.deadline)}" if newest.deadline else ""
        text = f"waiting for {', '.join(names)}: {newest.kind} of round {newest.round}{until}"
        if text != self._last:
            self._last = text
            self._log(text)


@dataclass(frozen=True)
class NodeStatus:
    """The status of one node. Times are seconds since 1970."""

    node: str
    connected: bool
    last_seen: float | None
    phase: str
    version: str
    skew: float | None  # seconds that the node's clock is ahead of this machine's
    awaited: str  # the request that the node has not answered yet
    deadline: float | None  # of that request
    refused: int  # envelopes and connections of the node that were refused
    serial: int | None = None  # of the node's list of members
    suspended: str = ""  # why the node is suspended

    @property
    def row(self) -> list[str]:
        """The cells of the node's row in the table."""
        state = "connected" if self.connected else "away" if self.last_seen else "never seen"
        if self.last_seen and not self.connected:
            state += f" since {format_time(self.last_seen)}"
        state = f"SUSPENDED ({state})" if self.suspended else state
        awaited = f"{self.awaited} until {format_time(self.deadline)}" if self.deadline else self.awaited
        skew = "" if self.skew is None else f"{self.skew:+.1f} s" + (" !" if self.clock_off else "")
        release = self.version + (" !" if self.other_version else "")
        return [self.node, state, self.phase, awaited or "–", release, skew, str(self.refused or "–")]

    @property
    def clock_off(self) -> bool:
        """Whether the node's clock differs by more than `MAX_SKEW`."""
        return self.skew is not None and abs(self.skew) > MAX_SKEW

    @property
    def other_version(self) -> bool:
        """Whether the node has another version of Hansa."""
        return self.version not in ("", version("hansa"))


@dataclass(frozen=True)
class RefusalCount:
    """How often something was refused, of a member by its name or of an unknown peer by its address."""

    node: str
    reason: str
    times: int
    at: float  # the last time, in seconds since 1970

    @property
    def line(self) -> str:
        """The count as one line of text."""
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"{self.node or 'other nodes'}: {self.reason} ({times}, last {format_time(self.at)})"


def format_time(at: float) -> str:
    """A time in seconds since 1970, in local time."""
    return datetime.fromtimestamp(at).strftime("%d %b %H:%M:%S")


def read_status(folder: Path, now: float) -> list[NodeStatus]:
    """The status of the nodes below, from the journal of the run in ``folder``."""
    facts, awaited, refused = _read(_journal_file(folder))
    own = facts.get("run", "") if STANDING in facts else ""
    if STANDING in facts:
        file = folder / SERVER_FOLDER / json.loads(facts[STANDING])
        facts = (_read(file)[0] if file.is_file() else {}) | facts
    else:
        awaited = _awaited_in_runs(json.loads(facts.get(OPEN_RUNS, "{}"))) | awaited
    heartbeats = {
        name.removeprefix(HEARTBEAT): json.loads(value) for name, value in facts.items() if name.startswith(HEARTBEAT)
    }
    suspended = {
        name.removeprefix(SUSPENDED): str(json.loads(value)["reason"])
        for name, value in facts.items()
        if name.startswith(SUSPENDED)
    }
    children = json.loads(facts.get(CHILDREN, "[]"))
    found = [
        _status(name, heartbeats.get(name, {}), awaited.get(name, ("", None)), refused, now, own) for name in children
    ]
    return [replace(node, suspended=suspended.get(node.node, "")) for node in found]


def _read(file: Path) -> tuple[dict[str, str], dict[str, Awaited], dict[str, int]]:
    """The facts of a journal, what is awaited of each node, and how often each was refused."""
    with _open(file) as journal:
        if not _is_made(journal):
            return {}, {}, {}
        facts = dict(journal.execute("select name, value from facts"))
        rows = journal.execute(f"select node, kind, round, deadline from requests where {OPEN}")
        awaited: dict[str, Awaited] = {
            node: (f"{kind} of round {round}", deadline) for node, kind, round, deadline in rows
        }
        return facts, awaited, dict(journal.execute("select node, sum(times) from refusals group by node"))


def _awaited_in_runs(runs: dict[str, str]) -> dict[str, Awaited]:
    """What the open runs of a standing coordinator wait for, of each node; the earliest deadline of several."""
    found: dict[str, list[Awaited]] = {}
    for server in map(Path, runs.values()):
        if (server / JOURNAL).is_file() and is_locked(server):
            for node, (text, deadline) in _read(server / JOURNAL)[1].items():
                name = server.parent.name if server.name == SERVER_FOLDER else server.name
                found.setdefault(node, []).append((f"{text} ({name})", deadline))
    return {
        node: ("; ".join(text for text, _ in some), min((at for _, at in some if at), default=None))
        for node, some in found.items()
    }


def read_refusals(folder: Path) -> list[RefusalCount]:
    """What was refused in the run in ``folder``, the latest first."""
    with _open(_journal_file(folder)) as journal:
        if not _is_made(journal):
            return []
        rows = journal.execute("select node, reason, times, at from refusals order by at desc")
        return [RefusalCount(*row) for row in rows]


def footnotes(nodes: list[NodeStatus]) -> list[str]:
    """The explanations of the exclamation marks in the table."""
    notes = []
    if others := [node.node for node in nodes if node.other_version]:
        notes.append(
            f"! another version than this one, {version('hansa')}: {', '.join(others)}; "
            "versions at most one protocol version apart work together: upgrade the others soon"
        )
    if off := [node.node for node in nodes if node.clock_off]:
        notes.append(f"! the clock differs by more than {MAX_SKEW:.0f} s: {', '.join(off)}; synchronise it")
    for node in nodes:
        if node.suspended:
            notes.append(
                f"ALARM: {node.node} is suspended: {node.suspended}; let the authority sign a new key for it, or run "
                f"'hansa kit resolve RUN {node.node}'"
            )
    serials = {node.serial for node in nodes if node.serial is not None and node.connected}
    if len(serials) > 1:
        lists = ", ".join(f"{node.node} {node.serial}" for node in nodes if node.serial is not None and node.connected)
        notes.append(f"! different lists of members (serial numbers): {lists}")
    return notes


def _journal_file(folder: Path) -> Path:
    file = folder / SERVER_FOLDER / JOURNAL
    if not file.is_file():
        raise UserError(
            f"{folder} is not a run of 'hansa serve': it has no {SERVER_FOLDER}/{JOURNAL}; give the --out of 'hansa "
            "serve', or its --queue"
        )
    return file


def _open(file: Path) -> "closing[sqlite3.Connection]":
    return closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True))


def _is_made(journal: sqlite3.Connection) -> bool:
    """Whether a journal has its tables, or its process is just making it."""
    return journal.execute("select 1 from sqlite_master where name = 'facts'").fetchone() is not None


def is_away(node: NodeStatus) -> bool:
    """Whether a node that should be there is not: it was seen before, or its reply is awaited."""
    return not node.connected and (node.last_seen is not None or bool(node.awaited))


def is_running(folder: Path) -> bool:
    """Whether a 'hansa serve' process uses the run directory."""
    return is_locked(folder / SERVER_FOLDER)


def _status(
    name: str, heartbeat: dict[str, Any], awaited: Awaited, refused: dict[str, int], now: float, run: str
) -> NodeStatus:
    """The status of a node; ``run``: the id of the run whose status it is, empty: that of all runs."""
    last = heartbeat.get("last_seen")
    connected = last is not None and now - last < AWAY_SECONDS
    phase = heartbeat.get("phase", "") if connected else ""
    if run and awaited[0] and heartbeat.get("runs") and run not in heartbeat["runs"] and phase:
        phase = f"{phase} (another run)"
    release, skew = heartbeat.get("version", ""), heartbeat.get("skew")
    return NodeStatus(
        name, connected, last, phase, release, skew, *awaited, refused.get(name, 0), heartbeat.get("serial")
    )


def as_dict(nodes: list[NodeStatus], refused: list[RefusalCount], running: bool) -> dict[str, Any]:
    """The status for `hansa status --format json`."""
    rows = [asdict(node) | {"other_version": node.other_version, "clock_off": node.clock_off} for node in nodes]
    return {"running": running, "nodes": rows, "refused": [asdict(one) for one in refused]}
