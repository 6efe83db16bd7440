"""A consortium as its people use it: a standing coordinator, approval and pages in a browser, two runs at once.

Two hospitals reach the coordinator only through a proxy that allows CONNECT to port 443 alone; a third one joins while
a run waits for it. Everything goes over the one port: the runs of the hospitals, and the pages of the engineers.
"""

import ssl
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.file import dump
from hansa.deploy.approval import Approvals, approval_of
from hansa.deploy.kit import COORDINATOR
from hansa.deploy.run_queue import RunQueue
from hansa.runs.run import run
from tests.conftest import same, weights
from tests.dashboard.browser import browser, needs_browser, shoot
from tests.dashboard.conftest import PASSWORD
from tests.dashboard.test_browser import log_in, wait
from tests.deploy.conftest import free_ports
from tests.deploy.tunnel import Tunnel
from tests.faults.processes import Deployment
from tests.faults.test_pages import start
from tests.faults.test_proxy import COORDINATOR_HOST, GATEWAY, clinic
from tests.faults.test_queue import hansa
from tests.policies import relax

pytestmark = [pytest.mark.slow_fault, needs_browser]
__all__ = ["clinic"]  # the fixture
SITE = f"https://{COORDINATOR_HOST}"
TRUSTING = (
    "--ignore-certificate-errors",  # the authority of the federation is unknown to this browser
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE {COORDINATOR_HOST}",
)


def approve_in_the_browser(driver: Chrome, address: str, token: str) -> None:
    """Log in to a hospital's own page, read what waits for a decision, and approve it."""
    log_in(driver, address, "", token)
    wait(driver, "document.body.textContent.includes('waits for your decision')")
    driver.find_element(By.PARTIAL_LINK_TEXT, "waits for your decision").click()
    wait(driver, "document.querySelector('article.card') !== null")
    assert "seed: 0 → 5" in driver.find_element(By.CLASS_NAME, "difference").text
    shoot(driver, "consortium-approval")
    driver.find_element(By.XPATH, "//button[text()='Approve']").send_keys(Keys.ENTER)
    wait(driver, "document.body.textContent.includes('No run waits for a decision')")


def test_two_runs_approved_in_the_browser_and_watched(
    gated: Any, clinic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gated(rounds=2, sizes={"north": 120, "south": 60}), gated(rounds=2, seed=5)
    accounts, other, page = tmp_path / "accounts.json", tmp_path / "second.yaml", f"127.0.0.1:{free_ports(1)[0]}"
    other.write_text(dump(second), encoding="utf-8")
    added = ["dashboard", "user", "add", "anna", "--role", "reader", "--accounts", str(accounts), "--password-stdin"]
    assert CliRunner().invoke(app, added, input=PASSWORD + "\n").exit_code == 0
    with (
        Tunnel(host=GATEWAY, allowed=443) as tunnel,
        Deployment(gated(), tmp_path / "deployment", {COORDINATOR: COORDINATOR_HOST}) as deployment,
        browser(*TRUSTING) as driver,
    ):
        runs, kit = deployment.folder / "runs", str(deployment.kits / COORDINATOR)
        plugins = [Path(file) for file in first.plugins]
        for name in second.silos:
            relax(deployment.kits / name / "policy.yaml")
            own = Approvals(deployment.kits / name, deployment.folder / "homes" / name)
            own.add(approval_of(first, plugins))
            if name != "north":  # its administrator has not looked at the second run
                own.add(approval_of(second, plugins))
        hold = tmp_path / "marks" / "hold-south"
        hold.touch()
        start(
            deployment, COORDINATOR, "serve", "--kit", kit, "--queue", str(runs), "--at-once", "2",
            "--accounts", str(accounts),
        )  # fmt: skip
        monkeypatch.setenv("HANSA_PROXY", f"http://{GATEWAY}:{tunnel.port}")
        for name in ("north", "south"):
            deployment.start(name, namespace=clinic, at_once=2)
        monkeypatch.delenv("HANSA_PROXY")
        first_file = tmp_path / "first.yaml"
        first_file.write_text(dump(first), encoding="utf-8")
        for file in (first_file, other):
            hansa("submit", str(file), "--kit", kit, "--queue", str(runs))
        deployment.wait("south in the first run", (tmp_path / "marks" / "held-south").exists)

        log_in(driver, SITE, "anna")
        driver.get(f"{SITE}/runs/small-0001")
        wait(driver, "document.getElementById('connection').textContent === 'live'")
        wait(driver, "document.getElementById('live-nodes').textContent.includes('Train of round')")
        shoot(driver, "consortium-run")

        home = deployment.folder / "homes" / "north"
        kit_of_north = str(deployment.kits / "north")
        start(
            deployment, "page", "silo-page", kit_of_north, "--home", str(home), "--listen", page,
            "--plugins", second.plugins[0],
        )  # fmt: skip
        deployment.wait("the hospital's page", lambda: "http://" in deployment.log("page"))
        deployment.wait("the second run at north", lambda: list((home / "pending").glob("*.json")))
        with browser() as administrator:
            approve_in_the_browser(administrator, f"http://{page}", (home / "page-token").read_text().strip())
        deployment.start("east")  # it joins while the second run waits for it, and the first one trains

        def waits_for_round(id: str) -> bool:
            log = runs / f"small-{id}" / "log.jsonl"
            return log.exists() and "silos prepare their data" in log.read_text()

        deployment.wait("the second run has begun", lambda: waits_for_round("0002"))
        both = [one.state for one in RunQueue(runs).all()]
        assert both[0] == "running", "at the same time"
        assert both[1] in ("waiting", "running"), "it waits for the administrators, or for its silos' data"
        hold.unlink()
        deployment.wait("both runs", lambda: [one.state for one in RunQueue(runs).all()] == ["finished"] * 2)
        wait(driver, "document.getElementById('live-state').textContent.includes('finished')")
        driver.get(f"{SITE}/")
        assert driver.find_element(By.TAG_NAME, "main").text.count("finished") >= 2
        shoot(driver, "consortium-runs")
        assert set(tunnel.passed) == {f"{COORDINATOR_HOST}:443"}
        certificate = ssl.get_server_certificate((COORDINATOR_HOST, 443))
        assert "BEGIN CERTIFICATE" in certificate, "pages and hospitals share the port"
        for settings, id in ((first, "0001"), (second, "0002")):
            whole = run(settings, tmp_path / f"whole-{id}", workers=0).folder
            assert same(weights(whole / "model"), weights(runs / f"{settings.name}-{id}" / "model")), id
