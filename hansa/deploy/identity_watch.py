"""An agent's watch over its own name: it hears everything that is sent under it, and raises an alarm.

The broker returns to an agent all heartbeats and replies that carry its name. One with the node's valid signature that
this process has not sent, and no earlier process of this home either, means that someone else has the key. The agent
then answers nothing, also after a restart, until its key is another one, or its operator states that the matter is
resolved (`hansa kit resolve HOME`). It also answers nothing while its parent says, in a signed note, that its identity
is suspended.
"""

import json
import os
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from time import time

from hansa.deploy.kit import Kit
from hansa.deploy.leave import LEFT_FILE
from hansa.deploy.network.envelope import LEAVE, EnvelopeError, open_envelope
from hansa.deploy.network.heartbeat import open_heartbeat
from hansa.deploy.network.instance import Instance, start_instance
from hansa.deploy.network.note import Note

ALARM = "alarm.json"
MAX_SENT = 4096  # messages of this process that are remembered


class IdentityWatch:
    """Watches over the name of the node with ``kit``, whose files are in ``home``; ``raised`` is called on an alarm."""

    def __init__(self, kit: Kit, home: Path, raised: Callable[[str], None]) -> None:
        self._kit, self._file, self._raised = kit, home / ALARM, raised
        self.instance = start_instance(home)
        self._sent: OrderedDict[bytes, None] = OrderedDict()
        self._unwritten = ""  # an alarm that the disk could not take
        self._note: Note | None = None

    def sent(self, data: bytes) -> bytes:
        """Remember a message before it is sent."""
        self._sent[sha256(data).digest()] = None
        while len(self._sent) > MAX_SENT:
            self._sent.popitem(last=False)
        return data

    def hear_heartbeat(self, data: bytes) -> None:
        """Judge a heartbeat under the node's name."""
        if sha256(data).digest() in self._sent:
            return
        try:
            found = open_heartbeat(data, self._kit.name, self._kit.parent.node, self._kit.key.public_key())
        except ValueError:
            return  # not of our key
        self._judge(found.process, found.at, "heartbeat")

    def hear_reply(self, data: bytes) -> None:
        """Judge a reply under the node's name."""
        if sha256(data).digest() in self._sent:
            return
        try:
            found = open_envelope(data, self._kit.name, self._kit.parent.node, self._kit.key.public_key())
            if found.kind == LEAVE and (self._file.parent / LEFT_FILE).exists():
                return  # `hansa leave` in this home
            process = Instance.parse(found.instance)
        except EnvelopeError:
            return
        except ValueError:
            process = Instance("", 0)
        self._judge(process, found.sent_at, "reply")

    def _judge(self, process: Instance, at: float, what: str) -> None:
        own = self.instance
        if process.id == own.id and process.started < own.started and at * 1000 < own.started:
            return  # an earlier process of this home sent it, and it arrived late
        reason = (
            f"another agent uses the identity of '{self._kit.name}' (a {what} that this one has not sent): the key may "
            "be stolen; nothing is answered until the authority has signed a new key, or until the operator runs "
            "'hansa kit resolve HOME'"
        )
        if self._own_alarm():
            return
        alarm = {"reason": reason, "key": self._key, "at": time()}
        draft = self._file.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(alarm), encoding="utf-8")
            os.replace(draft, self._file)
        except OSError:
            self._unwritten = reason
        self._raised(reason)

    def note(self, note: Note) -> None:
        """Take the parent's word that the identity is suspended, or no longer; older notes count nothing."""
        if self._note is not None and note.at < self._note.at:
            return
        before, self._note = self._note, note
        if note.suspended and (before is None or not before.suspended):
            self._raised(self.alarm)

    @property
    def alarm(self) -> str:
        """Why nothing is answered now; empty if there is no alarm."""
        if own := self._own_alarm():
            return own
        if self._note is not None and self._note.suspended:
            return f"'{self._note.sender}' has suspended '{self._kit.name}': {self._note.suspended}"
        return ""

    @property
    def own_alarm(self) -> bool:
        """Whether this agent itself has seen another one under its name."""
        return bool(self._own_alarm())

    def _own_alarm(self) -> str:
        """The alarm on disk; one that was raised under another key is over."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            reason, key = str(found["reason"]), str(found["key"])
        except FileNotFoundError:
            return self._unwritten
        except (OSError, ValueError, KeyError, TypeError):
            return f"{self._file} cannot be read; run 'hansa kit resolve HOME' when the matter is resolved"
        if key != self._key:
            self._file.unlink(missing_ok=True)
            self._unwritten = ""
            return ""
        return reason

    @property
    def _key(self) -> str:
        return self._kit.key.public_key().public_bytes_raw().hex()


def resolve_home(home: Path) -> bool:
    """End the alarm of the agent in ``home``; return whether there was one."""
    found = (home / ALARM).exists()
    (home / ALARM).unlink(missing_ok=True)
    return found
