"""What a silo's agent is doing, in a file of the silo's home, and the pause that its administrator may ask for.

The agent writes ``agent.json`` with each heartbeat. `hansa status KIT` and the silo's page read it. While
``paused.json`` exists, the agent takes up no request and sends no reply; the coordinator sees that it is paused.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import time

from hansa.deploy.lock_file import LOCK, is_locked
from hansa.deploy.network.address import Address
from hansa.deploy.network.envelope import Envelope
from hansa.deploy.network.heartbeat import Heartbeat
from hansa.files import write_file

STATE_FILE, PAUSE_FILE = "agent.json", "paused.json"
PAUSED = "paused"
STALE_SECONDS = 20.0  # since the last heartbeat, after which the agent has no connection


@dataclass(frozen=True)
class OpenRequest:
    """A request that an agent has not answered. ``working``: it is worked on; else it waits for its turn."""

    asked: str
    run: str
    since: float  # when the parent sent it
    deadline: float | None
    working: bool


@dataclass(frozen=True)
class AgentState:
    """The state of an agent at its last heartbeat. Times are seconds since 1970."""

    node: str
    parent: str
    address: str  # of the parent
    phase: str
    version: str
    at: float
    serial: int  # of its list of members
    alarm: str = ""
    asked: str = ""  # the request that it works on
    run: str = ""
    since: float | None = None  # when the parent sent that request
    deadline: float | None = None
    last: str = ""  # the newest request, also if it is answered
    others: tuple[OpenRequest, ...] = ()  # requests of other runs that are not answered either
    rejected: Mapping[str, int] = field(default_factory=dict)  # why envelopes were rejected → how often

    def write(self, home: Path) -> None:
        """Write the state; a disk that takes no more is ignored: the agent's work is more important."""
        draft = home / f".{STATE_FILE}.draft"
        try:
            draft.write_text(json.dumps(asdict(self), ensure_ascii=False), encoding="utf-8")
            os.replace(draft, home / STATE_FILE)
        except OSError:
            return

    @staticmethod
    def read(home: Path) -> "AgentState | None":
        """The state that the agent wrote last; None if there is none, or it is of another version."""
        try:
            found = json.loads((home / STATE_FILE).read_text(encoding="utf-8"))
            others = tuple(OpenRequest(**one) for one in found.pop("others", ()))
            return AgentState(**found, others=others)
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    @property
    def connected(self) -> bool:
        """Whether the last heartbeat was sent a short time ago."""
        return time() - self.at < STALE_SECONDS


def state_of(sent: Heartbeat, address: Address, newest: Envelope | None, open: Sequence[Envelope]) -> AgentState:
    """The state of an agent that sends a heartbeat.

    ``newest``: its newest request; ``open``: those that it has not answered, one for each run, the current one first.
    """
    last = _title(newest) if newest is not None else ""
    state = AgentState(
        sent.node, sent.parent, "{}:{}".format(*address), sent.phase, sent.version, sent.at, sent.serial, last=last
    )
    if not open:
        return state
    now, *others = open
    more = tuple(OpenRequest(_title(one), one.run, one.sent_at, one.deadline, one.run in sent.runs) for one in others)
    state = replace(state, since=now.sent_at, deadline=now.deadline)
    return replace(state, asked=_title(now), run=now.run, others=more)


def _title(envelope: Envelope) -> str:
    return f"{envelope.kind} of round {envelope.round}"


def agent_runs(home: Path) -> bool:
    """Whether a 'hansa join' process works in the folder."""
    return (home / LOCK).is_file() and is_locked(home)


def pause(home: Path, by: str) -> None:
    """Let the agent take up nothing, and send nothing, until `resume`."""
    write_file(home / PAUSE_FILE, json.dumps({"by": by, "at": time()}, ensure_ascii=False).encode())


def resume(home: Path) -> None:
    """Let the agent work again."""
    (home / PAUSE_FILE).unlink(missing_ok=True)


def paused(home: Path) -> tuple[str, float] | None:
    """Who paused the agent, and when; None if it is not paused. A damaged file pauses it, too."""
    try:
        found = json.loads((home / PAUSE_FILE).read_text(encoding="utf-8"))
        return str(found["by"]), float(found["at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown user", 0.0
