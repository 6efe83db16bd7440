"""Figures for Prometheus at `/metrics` of the health port, on both sides.

They are read when they are asked for: at the coordinator from the ledgers and journals of the runs that are under way,
at a silo from its files.
Labels are the names of nodes and of reasons that Hansa itself states; no figure is made from a silo's text.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shutil import disk_usage
from time import time

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from hansa.core.errors import HansaError
from hansa.deploy.agent_state import AgentState, paused
from hansa.deploy.approval import Approvals
from hansa.deploy.kit import Kit
from hansa.deploy.status import JOURNAL, SERVER_FOLDER, read_refusals, read_status
from hansa.privacy.dp.budget import BUDGET_FILE, charges, total
from hansa.privacy.policy.audit_log import AUDIT_LOG, entries
from hansa.privacy.policy.rules import Policy

Families = Callable[[], Iterator[Metric]]


class _Figures(Collector):
    """A collector that asks a function; what cannot be read is left out and counted."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """The metric families, then whether some of them could not be read."""
        problem = 0
        try:
            yield from self._families()
        except (HansaError, OSError, sqlite3.Error):
            problem = 1
        yield GaugeMetricFamily("hansa_figures_unreadable", "1 if figures are missing: files cannot be read", problem)


def exposition(families: Families) -> Callable[[], tuple[str, bytes]]:
    """What `/metrics` answers: its content type and its text, made anew with each call."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Figures(families))
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))


def coordinator_figures(runs: Callable[[], Sequence[Path]], kit: Kit, folder: Path) -> Families:
    """The figures of a coordinator or a region.

    ``runs`` returns the folders of the runs that are under way, whose names are the label ``run``; ``folder``: where
    the journal with all nodes is, the folder of the run itself or that of a queue.
    """

    def families() -> Iterator[Metric]:
        """The families of the node itself, of the runs' rounds and of the nodes below, as far as their files exist."""
        under_way = {one.absolute().name: one for one in runs()}
        yield from _common(kit, folder)
        if _has_journal(folder):
            yield from _nodes(folder)
        own = {} if folder in under_way.values() else {"": folder}
        if journals := {run: one for run, one in (own | under_way).items() if _has_journal(one)}:
            yield _refused(journals)
        if ledgers := {run: one for run, one in under_way.items() if (one / "ledger.sqlite").is_file()}:
            yield from _rounds(ledgers)

    return families


def _has_journal(folder: Path) -> bool:
    return (folder / SERVER_FOLDER / JOURNAL).is_file()


def _common(kit: Kit, folder: Path) -> Iterator[Metric]:
    about = {"node": kit.name, "federation": kit.info.federation, "kind": kit.info.kind}
    yield InfoMetricFamily("hansa_node", "Which node this is", about)
    left = (kit.valid_until - datetime.now(UTC)).total_seconds()
    yield GaugeMetricFamily("hansa_certificate_seconds_left", "Until the node's certificate expires", left)
    place = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    yield GaugeMetricFamily("hansa_disk_free_bytes", "Free bytes where the node writes", disk_usage(place).free)


def _rounds(folders: Mapping[str, Path]) -> Iterator[Metric]:
    """The figures of the runs in folders, by name; a family has those of all runs, as Prometheus demands.

    A run whose ledger cannot be read is left out, and the error is raised after the others' figures.
    """
    by_run, by_node = ["run"], ["run", "node"]
    rounds = CounterMetricFamily("hansa_rounds", "Rounds that are done", labels=by_run)
    seconds = CounterMetricFamily("hansa_round_seconds", "Seconds of all rounds together", labels=by_run)
    lost = CounterMetricFamily(
        "hansa_replies_lost", "Silos that had no part in a round, summed over rounds", labels=by_run
    )
    last = GaugeMetricFamily("hansa_last_round_timestamp_seconds", "When the last round was done", labels=by_run)
    loss = GaugeMetricFamily("hansa_training_loss", "Mean training loss of the last round", labels=by_run)
    sent = CounterMetricFamily("hansa_sent_bytes", "Bytes to each node", labels=by_node)
    received = CounterMetricFamily("hansa_received_bytes", "Bytes from each node", labels=by_node)
    events = CounterMetricFamily(
        "hansa_events", "Failures and refusals of nodes in rounds", labels=["run", "node", "kind"]
    )
    problem: sqlite3.Error | None = None
    for run, folder in folders.items():
        try:
            found = _ledger_figures(folder)
        except sqlite3.Error as error:
            problem = error
            continue
        done, at, spent, missed = found.totals
        for family, value in ((rounds, done), (last, at), (seconds, spent), (lost, missed)):
            family.add_metric([run], value)
        if found.loss is not None:
            loss.add_metric([run], found.loss)
        for node, down, up in found.moved:
            sent.add_metric([run, node], down or 0)
            received.add_metric([run, node], up or 0)
        for node, kind, times in found.kinds:
            events.add_metric([run, node, kind], times)
    yield from (rounds, seconds, lost, last, loss, sent, received, events)
    if problem is not None:
        raise problem


@dataclass(frozen=True)
class _LedgerFigures:
    """What a ledger says: totals (rounds, time of the last, seconds, lost replies), the last loss, traffic, events."""

    totals: tuple[int, float, float, int]
    loss: float | None
    moved: Sequence[tuple[str, int | None, int | None]]
    kinds: Sequence[tuple[str, str, int]]


def _ledger_figures(folder: Path) -> _LedgerFigures:
    file = folder / "ledger.sqlite"
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as db:
        [totals] = db.execute(
            "select count(*), coalesce(max(at), 0), coalesce(sum(seconds), 0), coalesce(sum(lost), 0) from rounds"
        ).fetchall()
        loss = db.execute("select loss from rounds order by round desc limit 1").fetchall()
        moved = db.execute("select node, sum(sent), sum(received) from traffic group by node").fetchall()
        kinds = db.execute("select node, kind, count(*) from events group by node, kind").fetchall()
    return _LedgerFigures(totals, loss[0][0] if loss else None, moved, kinds)


def _nodes(folder: Path) -> Iterator[Metric]:
    connected = GaugeMetricFamily("hansa_node_connected", "1 if a heartbeat came lately", labels=["node"])
    skew = GaugeMetricFamily("hansa_node_clock_skew_seconds", "Its clock minus this machine's", labels=["node"])
    awaited = GaugeMetricFamily("hansa_node_awaited", "1 if a reply of the node is awaited", labels=["node"])
    until = GaugeMetricFamily("hansa_node_deadline_timestamp_seconds", "Until when it is awaited", labels=["node"])
    for node in read_status(folder, time()):
        connected.add_metric([node.node], float(node.connected))
        awaited.add_metric([node.node], float(bool(node.awaited)))
        if node.skew is not None:
            skew.add_metric([node.node], node.skew)
        if node.deadline is not None:
            until.add_metric([node.node], node.deadline)
    yield from (connected, skew, awaited, until)


def _refused(journals: Mapping[str, Path]) -> Metric:
    """What was refused, by run; that at the port of a queue, which belongs to no run, has an empty label."""
    refused = CounterMetricFamily("hansa_refused", "Messages and connections that were refused", labels=["run", "node"])
    for run, folder in journals.items():
        counts: dict[str, int] = {}
        for one in read_refusals(folder):
            counts[one.node] = counts.get(one.node, 0) + one.times
        for name, times in counts.items():
            refused.add_metric([run, name], times)
    return refused


def silo_figures(kit: Kit, home: Path, policy: Path, not_ready: Callable[[], str]) -> Families:
    """The figures of a silo's agent; ``not_ready``: why it cannot work, empty if it can."""

    def families() -> Iterator[Metric]:
        """The families of the node, its agent's state, pending approvals, the audit log and the privacy budget."""
        yield from _common(kit, home)
        yield GaugeMetricFamily("hansa_agent_ready", "1 if the agent is connected and can work", float(not not_ready()))
        yield GaugeMetricFamily("hansa_agent_paused", "1 if an administrator paused it", float(bool(paused(home))))
        state = AgentState.read(home)
        if state is not None:
            asked = float(bool(state.asked))
            yield GaugeMetricFamily("hansa_agent_asked", "1 if a request is being worked on", asked)
            yield GaugeMetricFamily("hansa_agent_alarm", "1 if another process uses its name", float(bool(state.alarm)))
            rejected = sum(state.rejected.values())
            yield CounterMetricFamily("hansa_agent_rejected_envelopes", "Envelopes that were rejected", rejected)
        waiting = len(Approvals(kit.folder, home).pending())
        yield GaugeMetricFamily("hansa_approvals_pending", "Runs that wait for an administrator", waiting)
        yield from _audited(home)
        yield from _budget(home, policy)

    return families


def _audited(home: Path) -> Iterator[Metric]:
    counts: dict[tuple[str, str], int] = {}
    sent = 0
    for entry in entries(home / AUDIT_LOG):
        key = str(entry.get("event", "")), str(entry.get("message", ""))
        counts[key] = counts.get(key, 0) + 1
        sent += int(entry.get("bytes", 0)) if key[0] == "release" else 0
    audited = CounterMetricFamily("hansa_audit_entries", "Entries of the audit log", labels=["event", "message"])
    for (event, message), times in counts.items():
        audited.add_metric([event, message], times)
    yield audited
    yield CounterMetricFamily("hansa_released_bytes", "Bytes that left the silo, by the audit log", sent)


def _budget(home: Path, policy: Path) -> Iterator[Metric]:
    limit = Policy.read(policy).budget
    if limit is None:
        return
    held = charges(home / BUDGET_FILE)
    spent = total((one.event for one in held), limit.delta) if held else 0.0
    yield GaugeMetricFamily("hansa_privacy_spent_epsilon", "ε of all charges together", spent)
    yield GaugeMetricFamily("hansa_privacy_budget_epsilon", "ε that the policy allows", limit.epsilon)
