"""The run's ledger: what happened, round by round, in SQLite for questions and in metrics.jsonl for pipes."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from time import time
from typing import Any

from hansa.core.errors import RunFailed, UserError
from hansa.core.round import Record

MetricsByGroup = Mapping[str, Mapping[str, float]]
OWN = "own"  # of a split: scores of every node's own model, by node; without it, of the one global model, by group
TRAFFIC = "round, node, sent, received, seen, loss, told, offered, weight, norm"
SCHEMA = """
create table if not exists rounds (
  round integer primary key, at real, loss real, seen integer, steps integer, cohort integer, lost integer,
  seconds real, work_seconds real, step_seconds real, move_seconds real, trade_seconds real,
  evaluate_seconds real, checkpoint_seconds real,
  clock real
);
create table if not exists metrics (round integer, split text, share real, grp text, metric text, value real);
create table if not exists silo_metrics (
  round integer, split text, share real, silo text, grp text, metric text, value real
);
create table if not exists traffic (
  round integer, node text, sent integer, received integer, seen integer, loss real,
  told integer, offered integer, -- of those bytes, the tensors of the exchange: what it was told, what it offered
  weight real, norm real -- its share of the aggregate, and the norm of its update; null where they are not known
);
create table if not exists events (at real, round integer, node text, kind text, text text);
create table if not exists attention (round integer, node text, stage text, layer text, member text, weight real);
create table if not exists arrivals (round integer, position integer, node text); -- of asynchronous updates
create table if not exists region_arrivals ( -- the same in asynchronous regions, by rounds of their own
  round integer, region text, own_round integer, position integer, node text
);
create table if not exists facts (name text primary key, value text);
"""


def _complete(db: sqlite3.Connection) -> None:
    """Columns that a run of an earlier version does not have, empty: its report must not fail for want of them."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        for (table,) in fresh.execute("select name from sqlite_master where type = 'table'").fetchall():
            columns, there = (
                {name: kind for _, name, kind, *_ in one.execute(f"pragma table_info({table})")} for one in (fresh, db)
            )
            for name in columns.keys() - there.keys():
                db.execute(f"alter table {table} add column {name} {columns[name]}")
    db.commit()


class Ledger:
    """The ledger of one run directory."""

    def __init__(self, folder: Path) -> None:
        self._jsonl = folder / "metrics.jsonl"
        self._db = sqlite3.connect(folder / "ledger.sqlite", check_same_thread=False)
        self._db.executescript("pragma journal_mode=wal; pragma synchronous=normal;" + SCHEMA)
        _complete(self._db)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def rewind(self, round: int) -> None:
        """Forget what came after ``round``: it will happen again."""
        for table in (
            "rounds",
            "metrics",
            "silo_metrics",
            "traffic",
            "events",
            "attention",
            "arrivals",
            "region_arrivals",
        ):
            self._db.execute(f"delete from {table} where round > ?", (round,))
        self._db.commit()
        if self._jsonl.exists():
            lines = self._jsonl.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _round_of(line) <= round]
            self._jsonl.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """All of it, or nothing; a disk that takes no more ends the run in one sentence."""
        try:
            yield
            self._db.commit()
        except (sqlite3.OperationalError, OSError) as error:
            self._db.rollback()
            raise RunFailed(
                f"{self._jsonl.parent} could not be written ({error}); the last checkpoint is intact: "
                "make room, or the disk writable, then continue with --resume"
            ) from None

    def round(
        self, record: Record, seconds: Mapping[str, float], workers: int, weights: Mapping[str, float] | None = None
    ) -> None:
        """Note a round; ``seconds``: by phase; ``weights``: each node's share of the aggregate, if known.

        ``workers``: nodes that work at the same time. ``step_seconds`` is the sum over all nodes, divided by it.
        """
        updates, totals = record.updates.values(), record.totals
        row = {
            "round": record.round,
            "at": time(),
            "loss": record.loss,
            "seen": totals.seen,
            "steps": totals.steps,
            "cohort": len(record.cohort),
            "lost": len(record.failures),
            "seconds": sum(seconds.values()),
            "work_seconds": seconds.get("work", 0.0),
            "step_seconds": totals.seconds / workers,
            "move_seconds": seconds.get("move", 0.0),
            "trade_seconds": seconds.get("exchange", 0.0),
            "evaluate_seconds": seconds.get("evaluate", 0.0),
            "checkpoint_seconds": 0.0,
            "clock": record.clock,
        }
        with self._writing():
            self._insert("rounds", row)
            for node in record.cohort:
                update = record.updates.get(node)
                sent, received = record.sent.get(node, 0), record.received.get(node, 0)
                entry = (
                    record.round,
                    node,
                    sent,
                    received,
                    update.seen if update else 0,
                    update.loss if update and record.hidden is None else None,
                    record.exchange.down.get(node, 0),
                    record.exchange.up.get(node, 0),
                    (weights or {}).get(node),
                    record.norms.get(node),
                )
                self._db.execute(f"insert into traffic ({TRAFFIC}) values (?,?,?,?,?,?,?,?,?,?)", entry)
            for below in (update.below for update in updates if update.below is not None):
                for node in below.sent.keys() | below.received.keys():
                    counts = (below.sent.get(node, 0), below.received.get(node, 0))
                    entry = (record.round, node, *counts, 0, None, 0, 0, None, None)
                    self._db.execute(f"insert into traffic ({TRAFFIC}) values (?,?,?,?,?,?,?,?,?,?)", entry)
            self._db.executemany("insert into attention values (?,?,?,?,?,?)", _heard(record))
            order = ((record.round, position, node) for position, node in enumerate(record.arrivals))
            self._db.executemany("insert into arrivals values (?,?,?)", order)
            self._db.executemany("insert into region_arrivals values (?,?,?,?,?)", _arrived_below(record))
            self._line({"event": "round", **row})
        for kind, reasons in {
            "lost": record.failures,
            "refused": record.refused,
            "not heard": record.exchange.rejected,
        }.items():
            for node, reason in reasons.items():
                self.event(record.round, node, kind, reason)
        for node, update in record.updates.items():
            for inner, reason in (update.below.failures if update.below is not None else {}).items():
                self.event(record.round, inner, "lost", f"below {node}: {reason}")

    def checkpointed(self, round: int, seconds: float) -> None:
        """A round is in the ledger before its checkpoint is on disk, never the other way round."""
        with self._writing():
            self._db.execute(
                "update rounds set checkpoint_seconds=?, seconds=seconds+? where round=?", (seconds, seconds, round)
            )

    def scores(
        self, round: int, split: str, share: float, metrics: MetricsByGroup, silos: Mapping[str, MetricsByGroup]
    ) -> None:
        """Note metrics (group → metric → value) of an evaluation: over all silos, and of each of the ``silos``."""
        with self._writing():
            for group, values in metrics.items():
                rows = [(round, split, share, group, metric, value) for metric, value in values.items()]
                self._db.executemany("insert into metrics values (?,?,?,?,?,?)", rows)
            by_silo = ((silo, group, values) for silo, own in silos.items() for group, values in own.items())
            for silo, group, values in by_silo:
                entries = [(round, split, share, silo, group, metric, value) for metric, value in values.items()]
                self._db.executemany("insert into silo_metrics values (?,?,?,?,?,?,?)", entries)
            self._line({"event": "scores", "round": round, "split": split, "share": share, "metrics": metrics})

    def event(self, round: int, node: str, kind: str, text: str) -> None:
        """Note something that happened at a node."""
        with self._writing():
            self._db.execute("insert into events values (?,?,?,?,?)", (time(), round, node, kind, text))
            self._line({"event": kind, "round": round, "node": node, "text": text})

    def fact(self, name: str, value: Any) -> None:
        """Note something that holds for the whole run.

        The silos' cards, versions, what was released to build the vocabulary.
        """
        with self._writing():
            self._db.execute("insert or replace into facts values (?,?)", (name, json.dumps(value, ensure_ascii=False)))

    def arrivals(self) -> list[list[str]]:
        """With an asynchronous method, for every round the silos whose updates arrived, in that order."""
        rounds = [number for (number,) in self.select("select distinct round from arrivals order by round")]
        query = "select node from arrivals where round=? order by position"
        return [[node for (node,) in self.select(query, number)] for number in rounds]

    def region_arrivals(self) -> dict[str, list[list[str]]]:
        """The same for every asynchronous region, by its own rounds; a round whose updates did not count is empty."""
        found: dict[str, list[list[str]]] = {}
        query = "select region, own_round, node from region_arrivals order by region, own_round, position"
        for region, number, node in self.select(query):
            rounds = found.setdefault(region, [])
            rounds += [[] for _ in range(number - len(rounds))]
            rounds[number - 1].append(node)
        return found

    def facts(self) -> dict[str, Any]:
        """All facts by name; see `fact`."""
        return {name: json.loads(value) for name, value in self._db.execute("select name, value from facts")}

    def select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """The rows of an SQL query."""
        return self._db.execute(query, arguments).fetchall()

    def final(self, split: str = "test") -> dict[str, dict[str, float]]:
        """The last figures on the whole test set: group → metric → value."""
        rows = self.select(
            "select grp, metric, value from metrics where split=?1 and share=1.0 and round="
            "(select max(round) from metrics where split=?1 and share=1.0)",
            split,
        )
        found: dict[str, dict[str, float]] = {}
        for group, metric, value in rows:
            found.setdefault(group, {})[metric] = value
        return found

    def final_by_silo(self) -> dict[str, dict[str, dict[str, float]]]:
        """The last figures on the whole test set of each silo that released its own: silo → group → metric → value."""
        rows = self.select(
            "select silo, grp, metric, value from silo_metrics where split='test' and share=1.0 and round="
            "(select max(round) from silo_metrics where split='test' and share=1.0)"
        )
        found: dict[str, dict[str, dict[str, float]]] = {}
        for silo, group, metric, value in rows:
            found.setdefault(silo, {}).setdefault(group, {})[metric] = value
        return found

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        marks = ",".join("?" * len(row))
        self._db.execute(f"insert or replace into {table} ({','.join(row)}) values ({marks})", tuple(row.values()))

    def _line(self, event: Mapping[str, Any]) -> None:
        with self._jsonl.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, ensure_ascii=False) + "\n")


def _heard(record: Record) -> Iterator[tuple[Any, ...]]:
    """Who listened to whom: `down` a node to itself, its parent and residuals, `up` a federation to its members."""
    for who, layers in record.attention.items():
        stage, _, node = who.partition(" ")
        for layer, members in layers.items():
            for member, weight in members.items():
                yield record.round, node, stage, layer, member, weight


def _round_of(line: str) -> int:
    try:
        return int(json.loads(line).get("round", 0))
    except ValueError:  # a line cut short by a crash
        return 1 << 62


def _arrived_below(record: Record) -> Iterator[tuple[int, str, int, int, str]]:
    """The rows of a round in the table of arrivals in regions."""
    for part in (update.below for update in record.updates.values() if update.below is not None):
        for order in part.arrivals:
            for position, node in enumerate(order.children):
                yield record.round, order.node, order.round, position, node


def recorded_arrivals(folder: Path) -> dict[str, Any]:
    """The order of arrivals in the ledger of a run, as settings of `simulate`; raises `UserError` if it has none."""
    if not (folder / "ledger.sqlite").is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no ledger.sqlite")
    ledger = Ledger(folder)
    try:
        found: dict[str, Any] = {"arrivals": ledger.arrivals(), "region_arrivals": ledger.region_arrivals()}
    finally:
        ledger.close()
    if not any(found.values()):
        raise UserError(f"the run in {folder} recorded no order of arrivals: its method waits for its cohort")
    return found
