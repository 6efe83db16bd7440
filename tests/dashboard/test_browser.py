"""The pages in a real browser: live updates, keyboard, dark mode, right-to-left, forms, and nothing from outside."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep, time

import pytest
from fastapi import FastAPI
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from hansa.config.federation import Federation
from hansa.config.shared import canonical
from hansa.dashboard.accounts import TokenAccount
from hansa.dashboard.silo_app import create as create_silo
from hansa.dashboard.silo_view import SiloView
from hansa.dashboard.submissions import Submissions
from hansa.deploy.agent_state import AgentState, OpenRequest
from hansa.deploy.approval import Approval, NotApproved
from hansa.deploy.kit import Kit
from hansa.deploy.lock_file import lock_folder
from hansa.deploy.run_queue import RunQueue
from hansa.privacy.policy.rules import Policy
from tests.conftest import Build
from tests.dashboard.browser import browser, complaints, needs_browser, served, shoot
from tests.dashboard.conftest import EVIL, PASSWORD, add_queued, add_round, write_run
from tests.dashboard.test_access import FEDERATION
from tests.deploy.conftest import make_kits

pytestmark = [pytest.mark.slow_fault, needs_browser]
SECONDS = 60
HEBREW = "בית חולים"
# What each page must have for a screen reader; returns the problems.
AUDIT = """
const bad = [];
for (const e of document.querySelectorAll('input:not([type=hidden]), textarea, select'))
  if (!(e.labels && e.labels.length) && !e.getAttribute('aria-label')) bad.push('no label: ' + e.outerHTML);
for (const e of document.querySelectorAll('button, a')) {
  if (!e.textContent.trim() && !e.getAttribute('aria-label')) bad.push('no name: ' + e.outerHTML);
}
for (const e of document.querySelectorAll('svg')) if (!e.getAttribute('aria-label')) bad.push('chart without a name');
for (const e of document.querySelectorAll('figure')) if (!e.querySelector('table')) bad.push('chart without values');
for (const e of document.querySelectorAll('table')) {
  if (!e.querySelector('caption')) bad.push('table without a caption');
  if (!e.querySelector('th[scope=col]')) bad.push('table without headings');
}
for (const name of ['main', 'header']) if (document.querySelectorAll(name).length !== 1) bad.push('landmark ' + name);
if (document.querySelectorAll('h1').length !== 1) bad.push('h1');
if (!document.documentElement.lang) bad.push('lang');
if (document.documentElement.scrollWidth > window.innerWidth + 1) bad.push('wider than the window');
const ids = Array.from(document.querySelectorAll('[id]'), e => e.id);
if (new Set(ids).size !== ids.length) bad.push('an id twice');
return bad;
"""
# The contrast of text with the page, by WCAG; returns what is below 4.5.
CONTRAST = """
function light(c) {
  const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255);
  const w = v.map(x => x <= 0.03928 ? x / 12.92 : Math.pow((x + 0.055) / 1.055, 2.4));
  return .2126 * w[0] + .7152 * w[1] + .0722 * w[2];
}
function behind(e) { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (!c.endsWith(', 0)') && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; }
const bad = [];
for (const e of document.querySelectorAll('p, td, th, a, button, dt, dd, li, label, caption, h1, h2, summary')) {
  if (!e.textContent.trim()) continue;
  const a = light(getComputedStyle(e).color), b = light(behind(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) bad.push(e.tagName + ' ' + ratio.toFixed(2) + ' ' + e.textContent.trim().slice(0, 40));
}
return bad;
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def wait(driver: Chrome, condition: str) -> None:
    """Wait until a JavaScript expression is true."""
    WebDriverWait(driver, SECONDS).until(lambda d: d.execute_script(f"return {condition}"), condition)


def log_in(driver: Chrome, address: str, name: str, password: str = PASSWORD) -> None:
    """Log in with the keyboard alone."""
    driver.get(f"{address}/login")
    keys = driver.switch_to.active_element  # the first field has the focus
    keys.send_keys(name, Keys.TAB, password, Keys.ENTER) if name else keys.send_keys(password, Keys.ENTER)
    wait(driver, "document.querySelector('header form') !== null")


def examine(driver: Chrome, name: str) -> None:
    """A page is accessible, has contrast, and its console is empty."""
    shoot(driver, name)
    assert driver.execute_script(AUDIT) == []
    assert driver.execute_script(CONTRAST) == []
    assert complaints(driver) == []


def test_the_dashboard_in_a_browser(app: FastAPI, runs: Path, stack: ExitStack) -> None:
    """Light: log in by keyboard, watch a round arrive, compare, approve a submission, log out."""
    live = write_run(runs / "clinics-live", (EVIL, HEBREW, "turin"))
    Submissions(runs).add(FEDERATION, "submitter")
    address, driver = stack.enter_context(served(app)), stack.enter_context(browser())
    log_in(driver, address, "approver")
    examine(driver, "runs")
    driver.get(f"{address}/runs/clinics-live")
    wait(driver, "document.getElementById('connection').textContent === 'live'")
    assert "2 of 3" in driver.find_element(By.ID, "live-state").text
    driver.execute_script("document.querySelector('#live-curves details').open = true")
    with sqlite3.connect(live / "ledger.sqlite") as db:
        add_round(db, 3, (EVIL, HEBREW, "turin"))
    db.close()
    wait(driver, "document.getElementById('live-state').textContent.includes('3 of 3')")
    assert driver.execute_script("return document.querySelector('#live-curves details').open")  # it stays as it was
    examine(driver, "run")
    assert driver.execute_script("return document.querySelectorAll('main script').length") == 0
    hebrew = driver.execute_script(
        "return Array.from(document.querySelectorAll('#live-nodes bdi')).filter(e => e.textContent === arguments[0])"
        ".map(e => getComputedStyle(e).direction)",
        HEBREW,
    )
    assert hebrew == ["rtl"]
    driver.execute_script("document.documentElement.dir = 'rtl'")  # the layout follows the direction of the page
    title = "document.querySelector('.site .title').getBoundingClientRect()"
    assert driver.execute_script(f"return {title}.left > window.innerWidth / 2")
    shoot(driver, "run-rtl")
    driver.get(f"{address}/compare?run=clinics-live&run=clinics")
    examine(driver, "compare")
    driver.get(f"{address}/submissions")
    examine(driver, "submissions")
    driver.find_element(By.XPATH, "//button[text()='Approve']").click()
    wait(driver, "document.querySelector('.state.approved') !== null")
    driver.find_element(By.XPATH, "//button[text()='Log out']").click()
    wait(driver, "location.pathname === '/login'")
    driver.get(f"{address}/runs/clinics-live")
    assert driver.current_url == f"{address}/login"


def test_the_queue_in_a_browser(app: FastAPI, runs: Path, stack: ExitStack) -> None:
    """Without JavaScript, by keyboard: an approver stops a run that waits, and puts it back."""
    running, name = add_queued(runs, "clinics", "running", by=HEBREW), "מרפאה"
    write_run(runs / f"clinics-{running.id}")
    waits, later = add_queued(runs, "clinics", "queued", by=EVIL), add_queued(runs, f"clinics-{name}", "queued")
    add_queued(runs, "clinics", "failed", reason="round 2: 1 of 3 sent a valid update, 2 needed; " + 30 * "more ")
    add_queued(runs, "clinics", "finished")
    address = stack.enter_context(served(app))
    options = ("--blink-settings=scriptEnabled=false", "--window-size=420,900")
    wide, narrow = stack.enter_context(browser()), stack.enter_context(browser(*options))
    log_in(wide, address, "approver")
    wide.find_element(By.LINK_TEXT, "Queue").click()
    wait(wide, "location.pathname === '/queue'")
    examine(wide, "queue")
    direction = "return getComputedStyle(document.evaluate(arguments[0], document, null, 9).singleNodeValue).direction"
    assert wide.execute_script(direction, f"//bdi[text()='{HEBREW}']") == "rtl"
    wide.set_window_size(420, 900)
    examine(wide, "queue-narrow")
    narrow.get(f"{address}/login")
    narrow.switch_to.active_element.send_keys("approver", Keys.TAB, PASSWORD, Keys.ENTER)
    WebDriverWait(narrow, SECONDS).until(lambda driver: driver.find_elements(By.LINK_TEXT, "Queue"))
    narrow.get(f"{address}/runs/clinics")
    assert narrow.find_element(By.ID, "connection").text == "as of the last reload"  # no script of the page has run
    for button, label, state in (("Stop", "Stop run", "stopped"), ("Retry", "Retry run", "queued")):
        narrow.get(f"{address}/queue")
        found = narrow.find_element(By.CSS_SELECTOR, f"button[aria-label='{label} {waits.id}']")
        assert (found.accessible_name, found.text) == (f"{label} {waits.id}", button)
        found.send_keys(Keys.ENTER)
        until = monotonic() + SECONDS
        while RunQueue(runs).find(waits.id).state != state:
            assert monotonic() < until, label
            sleep(0.05)
    assert RunQueue(runs).find(later.id) == later


def test_the_keyboard_reaches_the_content_first(app: FastAPI, stack: ExitStack) -> None:
    """Dark, and as narrow as a telephone: the first key goes to the link that skips the menu; the focus is visible."""
    address = stack.enter_context(served(app))
    driver = stack.enter_context(browser("--blink-settings=preferredColorScheme=0", "--window-size=420,900"))
    log_in(driver, address, "reader")
    driver.get(f"{address}/runs/clinics")
    assert driver.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 27)"
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    first = driver.switch_to.active_element
    assert first.text == "Skip to the content"
    assert first.value_of_css_property("outline-style") == "solid"
    first.send_keys(Keys.ENTER)
    assert driver.execute_script("return document.activeElement.id") == "main"
    examine(driver, "run-dark")


def test_a_silos_page_in_a_browser(federation: Build, tmp_path: Path, stack: ExitStack) -> None:
    """An administrator reads the difference, approves by keyboard, pauses, and reads what was noted."""
    settings: Federation = federation(rounds=2)
    kits = make_kits(settings, tmp_path / "kits")
    home = kits / "north" / "home"
    view = SiloView(Kit(kits / "north"), home, None, (), None)
    changed = settings.model_copy(update={"rounds": 7})
    with pytest.raises(NotApproved):
        view.approvals.check(changed, {}, "a-run", Policy.read(view.policy_file))
    held = TokenAccount(home / "page-token", "admin")
    address = stack.enter_context(served(create_silo(view, held, True, False, ("127.0.0.1",))))
    driver = stack.enter_context(browser())
    log_in(driver, address, "", held.file.read_text().strip())
    examine(driver, "silo-now")
    driver.find_element(By.PARTIAL_LINK_TEXT, "waits for your decision").click()
    wait(driver, "document.querySelector('.difference') !== null")
    assert "rounds: 2 → 7" in driver.find_element(By.CLASS_NAME, "difference").text
    examine(driver, "silo-approvals")
    driver.find_element(By.XPATH, "//button[text()='Approve']").send_keys(Keys.ENTER)
    wait(driver, "document.body.textContent.includes('No run waits for a decision')")
    digest = Approval(changed.name, canonical(changed)).digest
    assert digest in {one.digest for one in view.approvals.all()}
    state = AgentState("north", "coordinator", "localhost:1", "working", "0", time(), 1, asked="Train of round 3")
    more = OpenRequest("Train of round 1", HEBREW, time(), time() + 600, True)
    state = replace(state, run="5f2c", since=time(), others=(more, replace(more, run=EVIL, working=False)))
    with lock_folder(home, "hansa join"):
        state.write(home)
        driver.get(f"{address}/")
        wait(driver, "document.getElementById('connection').textContent === 'live'")
        assert len(driver.find_elements(By.CSS_SELECTOR, "#live-now li")) == 2
        examine(driver, "silo-requests")
    driver.get(f"{address}/")
    driver.find_element(By.XPATH, "//button[text()='Pause the agent']").click()
    wait(driver, "document.querySelector('#live-now .problem') !== null")
    for page in ("log", "budget", "policy"):
        driver.get(f"{address}/{page}")
        examine(driver, f"silo-{page}")
    driver.get(f"{address}/log")
    assert "admin paused the agent" in driver.find_element(By.TAG_NAME, "main").text
