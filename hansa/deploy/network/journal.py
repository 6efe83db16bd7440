"""A parent's journal: requests, replies and refusals in SQLite, so that a restart neither loses nor repeats a reply.

It also issues the rising sequence numbers by which children recognise replays.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex
from time import time
from typing import Any, NamedTuple

from hansa.deploy.network.envelope import Envelope

SCHEMA = """
create table if not exists facts (name text primary key, value text);
create table if not exists requests (
  id text primary key, node text, round integer, kind text, sent real, deadline real, answered real, failure text
);
create table if not exists parts (request text, node text, name text, primary key (request, node, name));
create table if not exists refusals (node text, reason text, times integer, at real, primary key (node, reason));
"""
MAX_REASONS = 200  # in all, so that invalid messages cannot fill the disk
OPEN = "answered is null and failure is null"
HEARTBEAT = "heartbeat:"  # prefix of heartbeats among the facts
LEFT = "left:"  # prefix of the nodes that have left for good


class OpenRequest(NamedTuple):
    """A request that is not answered yet. Times are seconds since 1970."""

    node: str
    kind: str
    round: int
    sent: float
    deadline: float | None


class Journal:
    """The journal in a SQLite file. Several threads may use it."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()  # the blob server's threads count refusals
        self._db = sqlite3.connect(file, check_same_thread=False)
        self._db.executescript(f"pragma journal_mode=wal; pragma synchronous=normal; begin; {SCHEMA} commit;")
        self.run = self._constant("run", token_hex(8))
        self.run_started = float(self._constant("run_started", repr(time())))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _constant(self, name: str, value: str) -> str:
        """A fact that never changes after it was first written."""
        self._write("insert or ignore into facts values (?,?)", (name, value))
        return str(self._rows("select value from facts where name=?", name)[0][0])

    def next_sequence(self) -> int:
        """A number higher than all before it, also before a crash."""
        with self._lock, self._db:
            self._db.execute("insert into facts values ('sequence', '1') on conflict do update set value = value + 1")
            [(value,)] = self._db.execute("select value from facts where name='sequence'").fetchall()
        return int(value)

    def raise_sequence(self, least: int) -> None:
        """Continue with numbers above ``least``."""
        self._write(
            "insert into facts values ('sequence', ?) on conflict do update "
            "set value = max(cast(value as integer), cast(excluded.value as integer))",
            (str(least),),
        )

    def record_request(self, id: str, node: str, round: int, kind: str, deadline: float | None) -> None:
        """Note that a request is sent; nothing changes if it was sent before."""
        row = (id, node, round, kind, time(), deadline)
        self._write("insert or ignore into requests values (?,?,?,?,?,?,null,null)", row)

    def record_arrival(self, id: str) -> None:
        """Note that a reply arrived; it is processed later, in the order of the requests."""
        self._write("update requests set answered=? where id=?", (time(), id))

    def record_reply(self, envelope: Envelope) -> None:
        """Note that a reply was processed, with the blobs that belong to it."""
        names = [envelope.text[0], *(name for name, _ in envelope.vectors.values())]
        self._write("update requests set answered=?, failure=null where id=?", (time(), envelope.request))
        for name in names:
            self._write("insert or ignore into parts values (?,?,?)", (envelope.request, envelope.sender, name))

    def record_failure(self, id: str, reason: str) -> None:
        """Note that a request was not answered."""
        self._write("update requests set failure=? where id=?", (reason, id))

    def forget(self, durable: int) -> list[tuple[str, str]]:
        """Delete the requests of rounds up to the newest checkpoint.

        Returns the (node, digest) of every blob that no other request needs.
        """
        old = "select id from requests where round <= ?"
        rows = self._rows(f"select node, name from parts where request in ({old})", durable)
        kept = set(self._rows(f"select node, name from parts where request not in ({old})", durable))
        self._write(f"delete from parts where request in ({old})", (durable,))
        self._write("delete from requests where round <= ?", (durable,))
        return [(node, name) for node, name in rows if (node, name) not in kept]

    def parts(self, node: str) -> list[str]:
        """The digests of a node's uploads that are still needed."""
        return [name for (name,) in self._rows("select name from parts where node=?", node)]

    def count_refusal(self, node: str, reason: str) -> bool:
        """Count a refusal; return whether it is the first of this node with this reason."""
        with self._lock, self._db:
            known = self._db.execute("select 1 from refusals where node=? and reason=?", (node, reason)).fetchone()
            [(count,)] = self._db.execute("select count(*) from refusals").fetchall()
            if known is None and count >= MAX_REASONS:
                node, reason = "", f"other reasons (only {MAX_REASONS} are listed)"
                known = self._db.execute("select 1 from refusals where node=''").fetchone()
            self._db.execute(
                "insert into refusals values (?,?,1,?) on conflict do update set times=times+1, at=excluded.at",
                (node, reason, time()),
            )
        return known is None

    def refusals(self) -> dict[tuple[str, str], int]:
        """How often each (node, reason) was refused."""
        return {(node, reason): times for node, reason, times in self._rows("select node, reason, times from refusals")}

    def open_requests(self) -> list[OpenRequest]:
        """The requests that are not answered yet."""
        rows = self._rows(f"select node, kind, round, sent, deadline from requests where {OPEN}")
        return [OpenRequest(*row) for row in rows]

    def set_fact(self, name: str, value: object) -> None:
        """Store a value under a name, for `hansa status`."""
        self._write("insert or replace into facts values (?,?)", (name, json.dumps(value)))

    def fact(self, name: str) -> Any:
        """The value that `set_fact` stored under a name; None if there is none."""
        rows = self._rows("select value from facts where name=?", name)
        return json.loads(rows[0][0]) if rows else None

    def names(self, prefix: str) -> list[str]:
        """The rest of the names of facts that begin with a prefix."""
        rows = self._rows("select name from facts where substr(name, 1, ?) = ?", len(prefix), prefix)
        return [name[len(prefix) :] for (name,) in rows]

    def delete_fact(self, name: str) -> None:
        """Forget what `set_fact` stored under a name."""
        self._write("delete from facts where name=?", (name,))

    def heartbeat(self, node: str) -> dict[str, Any]:
        """The newest heartbeat of a node; empty if there was none."""
        rows = self._rows("select value from facts where name=?", HEARTBEAT + node)
        return dict(json.loads(rows[0][0])) if rows else {}

    def record_leave(self, node: str, key: str = "") -> None:
        """Note that a node has left for good; ``key``: its public key, in hexadecimal."""
        self.set_fact(LEFT + node, {"at": time(), "key": key})

    def has_left(self, node: str, key: str = "") -> bool:
        """Whether a node has left for good; one that was let in again has another ``key``."""
        found = self.fact(LEFT + node)
        return found is not None and (not key or not found["key"] or found["key"] == key)

    def _rows(self, query: str, *arguments: object) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock:
            return self._db.execute(query, arguments).fetchall()

    def _write(self, query: str, arguments: Iterable[object]) -> None:
        with self._lock, self._db:
            self._db.execute(query, tuple(arguments))
