"""The asker's journal: what was asked, answered and taken, in SQLite, so that a restart neither forgets nor doubles.

It also counts what was refused, and hands out the rising numbers by which nodes tell new letters from old.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex
from time import time

from hansa.deploy.network.envelope import Envelope

SCHEMA = """
create table if not exists facts (name text primary key, value text);
create table if not exists asks (
  request text primary key, node text, round integer, kind text, asked real, until real, answered real, lost text
);
create table if not exists parts (request text, node text, name text, primary key (request, node, name));
create table if not exists refusals (node text, reason text, times integer, at real, primary key (node, reason));
"""
REASONS = 200  # kept in all: whoever sends nonsense must not fill our disk with it


class Journal:
    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()  # the depot's threads count refusals
        self._db = sqlite3.connect(file, check_same_thread=False)
        self._db.executescript("pragma journal_mode=wal; pragma synchronous=normal;" + SCHEMA)
        self.run = self._once("run", token_hex(8))
        self.begun = float(self._once("begun", repr(time())))

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _once(self, name: str, value: str) -> str:
        """A fact that never changes once it is written."""
        self._write("insert or ignore into facts values (?,?)", (name, value))
        return str(self._rows("select value from facts where name=?", name)[0][0])

    def sequence(self) -> int:
        """A number higher than any before, also before a crash."""
        with self._lock, self._db:
            self._db.execute("insert into facts values ('sequence', '1') on conflict do update set value = value + 1")
            [(value,)] = self._db.execute("select value from facts where name='sequence'").fetchall()
        return int(value)

    def asked(self, request: str, node: str, round: int, kind: str, until: float | None) -> None:
        row = (request, node, round, kind, time(), until)
        self._write("insert or ignore into asks values (?,?,?,?,?,?,null,null)", row)

    def arrived(self, request: str) -> None:
        """Nobody waits for it any more; what it says is taken when its turn comes."""
        self._write("update asks set answered=? where request=?", (time(), request))

    def answered(self, envelope: Envelope) -> None:
        names = [envelope.text[0], *(name for name, _ in envelope.vectors.values())]
        self._write("update asks set answered=?, lost=null where request=?", (time(), envelope.request))
        for name in names:
            self._write("insert or ignore into parts values (?,?,?)", (envelope.request, envelope.sender, name))

    def lost(self, request: str, reason: str) -> None:
        self._write("update asks set lost=? where request=?", (reason, request))

    def forget(self, durable: int) -> list[tuple[str, str]]:
        """What belongs to rounds that are on disk as checkpoints: the (node, name) of each thing that can go."""
        old = "select request from asks where round <= ?"
        rows = self._rows(f"select node, name from parts where request in ({old})", durable)
        kept = set(self._rows(f"select node, name from parts where request not in ({old})", durable))
        self._write(f"delete from parts where request in ({old})", (durable,))
        self._write("delete from asks where round <= ?", (durable,))
        return [(node, name) for node, name in rows if (node, name) not in kept]

    def parts(self, node: str) -> list[str]:
        """What a node brought that is still needed."""
        return [name for (name,) in self._rows("select name from parts where node=?", node)]

    def refused(self, node: str, reason: str) -> bool:
        """Count it; whether it is the first of its kind."""
        with self._lock, self._db:
            known = self._db.execute("select 1 from refusals where node=? and reason=?", (node, reason)).fetchone()
            [(count,)] = self._db.execute("select count(*) from refusals").fetchall()
            if known is None and count >= REASONS:
                node, reason = "", "more reasons than are kept"
                known = self._db.execute("select 1 from refusals where node=''").fetchone()
            self._db.execute(
                "insert into refusals values (?,?,1,?) on conflict do update set times=times+1, at=excluded.at",
                (node, reason, time()),
            )
        return known is None

    def refusals(self) -> dict[tuple[str, str], int]:
        return {(node, reason): times for node, reason, times in self._rows("select node, reason, times from refusals")}

    def waiting(self) -> list[tuple[str, str, int, float, float | None]]:
        """Who is awaited: (node, kind, round, since, until)."""
        return self._rows("select node, kind, round, asked, until from asks where answered is null and lost is null")

    def note(self, name: str, value: object) -> None:
        self._write("insert or replace into facts values (?,?)", (name, json.dumps(value)))

    def _rows(self, query: str, *arguments: object) -> list[tuple]:  # type: ignore[type-arg]
        with self._lock:
            return self._db.execute(query, arguments).fetchall()

    def _write(self, query: str, arguments: Iterable[object]) -> None:
        with self._lock, self._db:
            self._db.execute(query, tuple(arguments))
