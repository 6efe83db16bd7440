"""Who is there, who is awaited and until when: what a coordinator or a region knows of the nodes below it.

Every agent says each few seconds that it is alive, in which phase, with which version and what its clock shows; the
`Roster` notes it in the journal, from which `hansa status` reads, also while the coordinator is down.
"""

import fcntl
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from hansa.core.errors import UserError, parse_json, printable
from hansa.deploy.network.retry import GaveUp

if TYPE_CHECKING:
    from hansa.deploy.network.journal import Journal
    from hansa.deploy.network.session import Session

SILENT = 20.0  # seconds without a word after which a node counts as away
SKEWED = 30.0  # seconds between clocks that are worth a word
LONG = 15.0  # seconds that somebody is waited for without a word of it
LIFE = "life:"  # what the journal calls what a node says of itself
LONGEST = 4096  # bytes of such a word: whoever says more is not listened to
PHASES = ("idle", "fetching", "working", "sending")


class Roster:
    """Listens to the nodes below, on a connection of its own, until it is closed."""

    def __init__(
        self, open: "Callable[[Callable[[], bool]], Session]", names: dict[str, str], journal: "Journal"
    ) -> None:
        """``open`` makes a session that gives up when asked to; ``names``: subject → node."""
        self._stop = threading.Event()
        self._session, self._names, self._journal = open(self._stop.is_set), names, journal
        self._session.do(lambda connection: None)  # connected before anybody is asked, so that nobody speaks unheard
        self._thread = threading.Thread(target=self._listen, name="hansa-roster", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._session.next(0.5)
                if message is not None and message.subject in self._names and len(message.payload) <= LONGEST:
                    node = self._names[message.subject]
                    if said := heard(bytes(message.payload), time()):
                        self._journal.note(LIFE + node, said)
        except GaveUp:
            pass
        finally:
            self._session.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Awaited:
    """Says for whom everybody waits, when that takes longer than a moment, and again when it changes."""

    def __init__(self, journal: "Journal", say: Callable[[str], None]) -> None:
        self._journal, self._say = journal, say
        self._began, self._said = time(), ""

    def tell(self, now: float) -> None:
        waiting = [
            (kind, round, node, until)
            for node, kind, round, asked, until in self._journal.waiting()
            if now - max(asked, self._began) >= LONG and (until is None or until > now)
        ]
        if not waiting:
            return
        kind, round, _, until = max(waiting, key=lambda one: one[1])
        names = sorted(node for k, r, node, _ in waiting if (k, r) == (kind, round))
        said = f"waiting for {', '.join(names)}: {kind} of round {round}" + (f", until {clock(until)}" if until else "")
        if said != self._said:
            self._said = said
            self._say(said)


def heard(payload: bytes, now: float) -> dict[str, Any] | None:
    """What a node says of itself, with when it was heard; None for nonsense."""
    try:
        said = parse_json(payload)
        phase, told, at = said["phase"], said["version"], float(said["at"])
    except (ValueError, TypeError, KeyError):
        return None
    if phase not in PHASES or not isinstance(told, str) or not isfinite(at):
        return None
    return {"phase": phase, "version": printable(told, 40), "heard": now, "skew": at - now}


@dataclass(frozen=True)
class NodeStatus:
    node: str
    connected: bool
    heard: float | None  # when it was heard last
    phase: str
    version: str
    skew: float | None  # seconds that its clock is ahead of ours
    awaited: str  # what it was asked and has not answered
    until: float | None  # when nobody waits for it any more
    refused: int  # letters and connections of it that were refused

    @property
    def row(self) -> list[str]:
        there = "connected" if self.connected else "away" if self.heard else "never seen"
        if self.heard and not self.connected:
            there += f" since {clock(self.heard)}"
        awaited = f"{self.awaited} until {clock(self.until)}" if self.until else self.awaited
        skew = "" if self.skew is None else f"{self.skew:+.1f} s" + (" !" if self.off else "")
        release = self.version + (" !" if self.other else "")
        return [self.node, there, self.phase, awaited or "–", release, skew, str(self.refused or "–")]

    @property
    def off(self) -> bool:
        """Whether its clock is."""
        return self.skew is not None and abs(self.skew) > SKEWED

    @property
    def other(self) -> bool:
        """Whether it is another version than ours."""
        return self.version not in ("", version("hansa"))


@dataclass(frozen=True)
class Refused:
    """Something that was not let in: of a member, by its name, or of a stranger, by its address."""

    node: str
    reason: str
    times: int
    at: float  # the last time

    @property
    def line(self) -> str:
        often = "once" if self.times == 1 else f"{self.times} times"
        return f"{self.node or 'others'}: {self.reason} ({often}, last {clock(self.at)})"


COLUMNS = ["node", "", "phase", "awaited", "version", "clock", "refused"]


def clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%d %b %H:%M:%S")


def read(folder: Path, now: float) -> list[NodeStatus]:
    """What the journal of the run in ``folder`` says of the nodes below."""
    with _journal(folder) as journal:
        facts = dict(journal.execute("select name, value from facts"))
        waiting = journal.execute("select node, kind, round, until from asks where answered is null and lost is null")
        asked = {node: (f"{kind} of round {round}", until) for node, kind, round, until in waiting}
        refused = dict(journal.execute("select node, sum(times) from refusals group by node"))
    lives = {name.removeprefix(LIFE): json.loads(value) for name, value in facts.items() if name.startswith(LIFE)}
    children = json.loads(facts.get("children", "[]"))
    return [_status(name, lives.get(name, {}), asked.get(name, ("", None)), refused, now) for name in children]


def refusals(folder: Path) -> list[Refused]:
    """What was refused, the latest first."""
    with _journal(folder) as journal:
        return [
            Refused(*row) for row in journal.execute("select node, reason, times, at from refusals order by at desc")
        ]


def marks(nodes: list[NodeStatus]) -> list[str]:
    """What the exclamation marks in the table mean, where there are any."""
    said = []
    if others := [node.node for node in nodes if node.other]:
        said.append(
            f"! another version than this one, {version('hansa')}: {', '.join(others)}; use the same everywhere"
        )
    if off := [node.node for node in nodes if node.off]:
        said.append(f"! a clock that is more than {SKEWED:.0f} s off: {', '.join(off)}; set it")
    return said


def _journal(folder: Path) -> "closing[sqlite3.Connection]":
    file = folder / "seat" / "journal.sqlite"
    if not file.is_file():
        raise UserError(f"{folder} is no run of 'hansa serve' (no seat/journal.sqlite there); name its --out")
    return closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True))


def running(folder: Path) -> bool:
    """Whether a 'hansa serve' sits there: it holds the lock of its seat for as long as it lives."""
    with (folder / "seat" / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _status(
    name: str, life: dict[str, Any], asked: tuple[str, float | None], refused: dict[str, int], now: float
) -> NodeStatus:
    last = life.get("heard")
    there = last is not None and now - last < SILENT
    phase = life.get("phase", "") if there else ""
    awaited, until = asked
    return NodeStatus(
        name, there, last, phase, life.get("version", ""), life.get("skew"), awaited, until, refused.get(name, 0)
    )


def as_dict(nodes: list[NodeStatus], refused: list[Refused], running: bool) -> dict[str, Any]:
    told = [asdict(node) | {"other_version": node.other, "clock_off": node.off} for node in nodes]
    return {"running": running, "nodes": told, "refused": [asdict(one) for one in refused]}
