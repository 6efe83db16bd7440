"""The pages, figures and alerts of a federation of real processes, while it runs and after it."""

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from time import sleep, time
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.deploy.agent_state import AgentState
from hansa.deploy.alerts import LOOK_SECONDS
from hansa.deploy.kit import COORDINATOR
from hansa.deploy.run_queue import RunQueue
from hansa.deploy.status import JOURNAL, SERVER_FOLDER, read_status
from tests.dashboard.conftest import CSRF, PASSWORD
from tests.deploy.conftest import free_ports
from tests.deploy.test_alerts import Receiver
from tests.faults.processes import Deployment, run_command
from tests.policies import admit_everywhere

pytestmark = pytest.mark.slow_fault


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def start(deployment: Deployment, name: str, *command: str) -> None:
    """Start a command as a process of the deployment."""
    environment = {key: value for key, value in os.environ.items() if key.startswith("HANSA_")}
    arguments = (list(command), str(deployment.folder / f"{name}.log"), "", "", None, environment)
    process = deployment._context.Process(target=run_command, args=arguments, name=name)
    process.start()
    deployment.processes[name] = process


def log_in(client: httpx.Client, address: str, name: str, password: str) -> None:
    client.base_url, client.follow_redirects = httpx.URL(address), True
    found = CSRF.search(client.get("/login").text)
    assert found is not None
    assert client.post("/login", data={"csrf": found[1], "name": name, "password": password}).status_code == 200


def test_a_queue_tells_of_members_once_and_of_all_runs(
    gated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """A member is lost while no run is under way, and is back; then two runs at once have their figures each."""
    monkeypatch.setenv("HANSA_WEBHOOK_SECRET", "a secret of the test")
    sizes = {"north": 120, "south": 60, "east": 30}
    studies = [gated(rounds=2, sizes={one: sizes[one] for one in ("north", other)}) for other in ("south", "east")]
    [health] = (f"127.0.0.1:{port}" for port in free_ports(1))
    with Deployment(gated(sizes=sizes), tmp_path / "deployment") as deployment:
        runs = deployment.folder / "runs"
        start(
            deployment, COORDINATOR, "serve", "--queue", str(runs), "--kit", str(deployment.kits / COORDINATOR),
            "--at-once", "2", "--health", health, "--webhook", receiver.url,
        )  # fmt: skip
        for name in sizes:
            deployment.start(name, at_once=2)

        def connected() -> set[str]:
            journal = runs / SERVER_FOLDER / JOURNAL
            return {one.node for one in read_status(runs, time()) if one.connected} if journal.is_file() else set()

        deployment.wait("all members", lambda: connected() == set(sizes))
        deployment.kill("east")
        deployment.wait("the alert", lambda: receiver.events == ["member missing"])
        deployment.start("east", at_once=2)
        deployment.wait("the second alert", lambda: receiver.events == ["member missing", "member back"])
        for name in sizes:
            (tmp_path / "marks" / f"hold-{name}").touch()
        queued = []
        for study in studies:
            admit_everywhere(study, deployment.kits)
            queued.append(RunQueue(runs).add(study, "ada"))
        ids = [f"{one.name}-{one.id}" for one in queued]
        home = deployment.folder / "homes" / "north"

        def both_at_north() -> bool:
            state = AgentState.read(home)
            return state is not None and state.asked[:5] == "Train" and [o.working for o in state.others] == [True]

        deployment.wait("north at work on both", both_at_north)
        figures = httpx.get(f"http://{health}/metrics", timeout=60).text
        assert all(f'hansa_rounds_total{{run="{id}"}} 0.0' in figures for id in ids)
        assert 'hansa_node_awaited{node="north"} 1.0' in figures
        deployment.kill("south")
        deployment.wait("the third alert", lambda: len(receiver.events) > 2)
        sleep(3 * LOOK_SECONDS)
        assert receiver.events == ["member missing", "member back", "member missing"]  # once, not for each run
        nodes = [json.loads(body)["node"] for _, body in receiver.got]
        assert nodes == ["east", "east", "south"]


def test_pages_of_a_running_federation(gated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One silo is held in the middle of its training: both pages say so; then the run ends, and its model is there."""
    monkeypatch.setenv("HANSA_WEBHOOK_SECRET", "a secret of the test")
    hold = tmp_path / "marks" / "hold-north"
    hold.touch()
    dashboard, page, health = (f"127.0.0.1:{port}" for port in free_ports(3))
    accounts = tmp_path / "accounts.json"
    added = CliRunner().invoke(
        app,
        ["dashboard", "user", "add", "anna", "--role", "submitter", "--accounts", str(accounts), "--password-stdin"],
        input=PASSWORD + "\n",
    )
    assert added.exit_code == 0
    with Deployment(gated(rounds=2), tmp_path / "runs") as deployment:
        kit, home = deployment.kits / "north", deployment.folder / "homes" / "north"
        start(
            deployment, COORDINATOR, "serve", str(deployment.file), "--kit", str(deployment.kits / COORDINATOR),
            "--out", str(deployment.run), "--format", "json", "--health", health,
            "--webhook", "http://127.0.0.1:9/hook", "--log-file", str(tmp_path / "serve.jsonl"),
        )  # fmt: skip
        for name in deployment.federation.silos:
            deployment.start(name)
        start(
            deployment,
            "dashboard",
            "dashboard",
            str(deployment.folder),
            "--listen",
            dashboard,
            "--accounts",
            str(accounts),
            "--kit",
            str(deployment.kits / COORDINATOR),
        )
        start(
            deployment, "page", "silo-page", str(kit), "--home", str(home), "--listen", page,
            "--plugins", deployment.federation.plugins[0],
        )  # fmt: skip
        deployment.wait(
            "the pages", lambda: "http://" in deployment.log("dashboard") and "http://" in deployment.log("page")
        )
        deployment.wait("north in its training", (tmp_path / "marks" / "held-north").exists)
        token = (home / "page-token").read_text().strip()
        with httpx.Client(timeout=120) as client, httpx.Client(timeout=120) as admin:
            log_in(client, f"http://{dashboard}", "anna", PASSWORD)
            form = {
                "csrf": CSRF.findall(client.get("/submissions").text)[0],
                "text": "name: other\nsilos: {a: {train: b}}",
            }
            refused = client.post("/submissions", data=form)
            assert refused.status_code == 400
            assert "the kit is for federation" in refused.text
            log_in(admin, f"http://{page}", "", token)
            deployment.wait("the awaited silo", lambda: "Train of round 1" in client.get("/runs/run").text)
            deployment.wait("the request at the silo", lambda: "<strong>Train of round 1" in admin.get("/").text)
            assert "The silo sent sample counts" in admin.get("/log").text
            with client.stream("GET", "/runs/run/events") as events:
                lines = events.iter_lines()
                first = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
                assert "Awaited:" in first["live-nodes"]
                awaited = {"north": 1.0, "south": 0.0, "east": 0.0}
                lines_awaited = [f'hansa_node_awaited{{node="{node}"}} {value}' for node, value in awaited.items()]

                def only_north_is_awaited() -> bool:
                    figures = httpx.get(f"http://{health}/metrics", timeout=60).text
                    return all(line in figures for line in lines_awaited)

                deployment.wait("the figures", only_north_is_awaited)
                found = CliRunner().invoke(app, ["status", str(kit), "--home", str(home), "--format", "json"])
                assert json.loads(found.stdout)["asked"] == "Train of round 1"
                second = tmp_path / "marks" / "hold-south"  # south has answered round 1: this holds it in round 2
                second.touch()
                hold.unlink()
                changed = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
                state = next(parts["live-state"] for parts in changed if "1 of 2" in parts.get("live-state", ""))
                assert "running" in state
                second.unlink()
            deployment.finished()
            assert "finished" in client.get("/runs/run").text
            archive = zipfile.ZipFile(io.BytesIO(client.get("/runs/run/model.zip").content))
            assert "model/config.json" in archive.namelist()
            assert archive.testzip() is None
            assert "The silo sent a model update of round 2" in admin.get("/log").text
    assert "the run is done" in (deployment.run / "log.jsonl").read_text()
    assert "hansa" in (tmp_path / "serve.jsonl").read_text()
