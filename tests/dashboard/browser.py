"""Chromium, driven by Selenium, and pages that are served in a thread."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import pytest
import uvicorn
from fastapi import FastAPI
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

FOUND = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    None in FOUND, reason="Chromium and chromedriver are not installed (apt-get install chromium chromium-driver)"
)
SCREENSHOTS = os.environ.get("HANSA_SCREENSHOTS")  # a folder for screenshots, to look at


@contextmanager
def served(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve an application on a port of this machine, by default a free one; yields its address."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until = monotonic() + 60
    while not server.started:
        assert monotonic() < until
        sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextmanager
def browser(*options: str) -> Iterator[Chrome]:
    """A browser without a window. It has its own profile, and no network but this machine."""
    with TemporaryDirectory() as profile:
        chosen = ChromeOptions()
        chosen.binary_location = str(FOUND[0])
        for option in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1200,1500",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            *options,
        ):
            chosen.add_argument(option)
        chosen.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(chosen, ChromeService(str(FOUND[1])))
        driver.set_page_load_timeout(120)
        try:
            yield driver
        finally:
            driver.quit()


def shoot(driver: Chrome, name: str) -> None:
    """Keep a screenshot of the whole page, if a folder for them is named."""
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        height = int(driver.execute_script("return document.documentElement.scrollHeight"))
        width = driver.get_window_size()["width"]
        driver.set_window_size(width, min(4000, max(700, height + 160)))
        driver.save_screenshot(str(Path(SCREENSHOTS) / f"{name}.png"))
        driver.set_window_size(width, 700)


def complaints(driver: Chrome) -> list[str]:
    """Errors of the page's console: a violated policy, a failed script."""
    entries = driver.get_log("browser")  # type: ignore[no-untyped-call]
    found = [str(entry["message"]) for entry in entries if entry["level"] == "SEVERE"]
    return [message for message in found if "status of 40" not in message]
