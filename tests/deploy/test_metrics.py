"""Figures for Prometheus on both sides, read by Prometheus's own parser."""

import json
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from hansa.config.federation import Federation
from hansa.deploy.agent_state import AgentState, pause
from hansa.deploy.health import HealthServer
from hansa.deploy.kit import Kit
from hansa.deploy.metrics import coordinator_figures, exposition, silo_figures
from hansa.privacy.policy.audit_log import AUDIT_LOG, AuditLog
from tests.conftest import Build
from tests.dashboard.conftest import EVIL, write_run
from tests.deploy.conftest import make_kits


def read(text: str) -> dict[tuple[str, str], float]:
    """(name, value of the label ``node`` or ``event``) → figure."""
    return {
        (sample.name, sample.labels.get("node") or sample.labels.get("event", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_coordinators_figures(federation: Build, tmp_path: Path) -> None:
    settings: Federation = federation(rounds=2)
    kits = make_kits(settings, tmp_path / "kits")
    folder = write_run(tmp_path / "run", (EVIL, "turin"))
    figures = exposition(coordinator_figures(lambda: [folder], Kit(kits / "coordinator"), folder))
    server = HealthServer("0", lambda: "", figures)
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            found = read(reply.read().decode())
    finally:
        server.close()
    assert found["hansa_rounds_total", ""] == 2
    assert found["hansa_sent_bytes_total", "turin"] == 8_000_000
    assert found["hansa_node_connected", EVIL] == 1
    assert found["hansa_node_connected", "turin"] == 0
    assert found["hansa_node_awaited", EVIL] == 1
    assert found["hansa_refused_total", EVIL] == 1
    assert found["hansa_figures_unreadable", ""] == 0
    (folder / "ledger.sqlite").write_bytes(b"damaged" * 100)
    assert read(figures()[1].decode())["hansa_figures_unreadable", ""] == 1


def test_several_runs_at_once_have_a_label_each(federation: Build, tmp_path: Path) -> None:
    kits, runs, under_way = make_kits(federation(rounds=2), tmp_path / "kits"), tmp_path / "runs", list[Path]()
    write_run(runs, ("lyon", "turin"))  # the folder of the queue, whose journal has the nodes; its ledger is not read
    figures = exposition(coordinator_figures(lambda: under_way, Kit(kits / "coordinator"), runs))

    def by_run() -> dict[tuple[str, str, str], float]:
        return {
            (sample.name, sample.labels.get("run", ""), sample.labels.get("node", "")): sample.value
            for family in text_string_to_metric_families(figures()[1].decode())
            for sample in family.samples
        }

    idle = by_run()
    assert not any(run for _, run, _ in idle)
    assert ("hansa_rounds_total", "", "") not in idle
    assert idle["hansa_node_connected", "", "lyon"] == 1
    assert idle["hansa_refused_total", "", "lyon"] == 1
    under_way += [write_run(runs / "a-0001", done=2), write_run(runs / "b-0002", ("lyon", "bern"), done=1)]
    found = by_run()
    assert [found["hansa_rounds_total", run, ""] for run in ("a-0001", "b-0002")] == [2, 1]
    assert [found["hansa_training_loss", run, ""] for run in ("a-0001", "b-0002")] == [2.5, 5]
    assert [found["hansa_sent_bytes_total", run, "lyon"] for run in ("a-0001", "b-0002")] == [8_000_000, 4_000_000]
    assert [found["hansa_refused_total", run, "lyon"] for run in ("", "a-0001", "b-0002")] == [1, 1, 1]
    assert {node for name, _, node in found if name == "hansa_node_connected"} == {"lyon", "turin"}
    (under_way[0] / "ledger.sqlite").write_bytes(b"damaged" * 100)
    rest = by_run()
    assert rest["hansa_figures_unreadable", "", ""] == 1
    assert ("hansa_rounds_total", "a-0001", "") not in rest
    assert rest["hansa_rounds_total", "b-0002", ""] == 1  # one damaged ledger does not hide the others
    assert figures()[1].decode().count("# TYPE hansa_rounds_total ") == 1


def test_a_silos_figures(federation: Build, tmp_path: Path) -> None:
    settings: Federation = federation(rounds=2)
    kits = make_kits(settings, tmp_path / "kits")
    home, kit = tmp_path / "home", Kit(kits / "north")
    log = AuditLog(home / AUDIT_LOG, "north")
    log.add("release", message="Update", bytes=1000)
    log.add("release", message="Update", bytes=500)
    log.add("refusal", message="Evaluate", reason="x")
    AgentState("north", "coordinator", "x:1", "idle", "0", 0.0, 1, rejected={"old": 3}).write(home)
    pause(home, "admin")
    text = exposition(silo_figures(kit, home, kit.folder / "policy.yaml", lambda: "no connection"))()[1].decode()
    found = read(text)
    assert found["hansa_agent_ready", ""] == 0
    assert found["hansa_agent_paused", ""] == 1
    assert found["hansa_released_bytes_total", ""] == 1500
    assert found["hansa_audit_entries_total", "release"] == 2
    assert found["hansa_agent_rejected_envelopes_total", ""] == 3
    assert found["hansa_certificate_seconds_left", ""] > 0
    assert json.dumps(text).isascii()
