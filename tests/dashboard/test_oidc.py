"""Logging in with a real OpenID Connect provider: npm's oidc-provider, started with node."""

import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from hansa.core.errors import UserError
from hansa.dashboard.accounts import Accounts
from hansa.dashboard.app import create
from hansa.dashboard.oidc import DONE, OidcSettings
from hansa.deploy.kit import COORDINATOR, Kit
from tests.conftest import Build
from tests.dashboard.browser import served
from tests.dashboard.conftest import CSRF, PASSWORD
from tests.deploy.conftest import free_ports, make_kits

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("HANSA_OIDC_PROVIDER", ROOT / "build" / "oidc"))
pytestmark = [
    pytest.mark.slow_fault,
    pytest.mark.skipif(
        shutil.which("node") is None or not (FOLDER / "node_modules" / "oidc-provider").is_dir(),
        reason="node or npm's oidc-provider is not installed (make browser)",
    ),
]


def settings_file(tmp_path: Path, issuer: str, address: str) -> Path:
    (tmp_path / "secret").write_text("a secret of the test\n")
    file = tmp_path / "oidc.yaml"
    file.write_text(
        f"issuer: {issuer}\naddress: {address}\nclient_id: hansa\nclient_secret_file: {tmp_path / 'secret'}\n"
        "roles: {leads: approver, readers: reader}\nruns: {readers: [clinics*]}\n"
    )
    return file


def settings(tmp_path: Path, issuer: str, address: str) -> OidcSettings:
    return OidcSettings.read(settings_file(tmp_path, issuer, address))


@contextmanager
def provider(port: int, address: str) -> Iterator[str]:
    """The provider on a port of this machine, for a site at an address; yields the issuer."""
    command = ["node", str(Path(__file__).parent / "oidc" / "provider.js"), str(FOLDER), str(port), address + DONE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "ready"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def walk(client: httpx.Client, url: str, name: str) -> httpx.Response:
    """Follow the login like a browser: redirects, the provider's form for the name, its form for the consent."""
    answer = client.get(url)
    for _ in range(20):
        if answer.is_redirect:
            answer = client.get(answer.url.join(answer.headers["location"]))
        elif "/interaction/" in str(answer.url):
            action = re.search(r'action="([^"]+)"', answer.text)
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert action is not None
            assert prompt is not None
            form = {"prompt": prompt[1]} | ({"login": name, "password": "x"} if prompt[1] == "login" else {})
            answer = client.post(str(answer.url.join(action[1])), data=form)
        else:
            return answer
    raise AssertionError("the login does not end")


def check_logins(address: str, **options: Any) -> None:
    """People log in at an address: a reader, a lead, one without a role, and one with a forged answer."""
    with httpx.Client(timeout=60, **options) as client:
        assert "/login/oidc" in client.get(f"{address}/login").text
        page = walk(client, f"{address}/login/oidc", "readers@lyon")
        assert page.status_code == 200
        assert "oidc:readers@lyon" in page.text
        assert "clinics" in page.text
        assert "secret" not in page.text  # another study's run
        assert client.get(f"{address}/submissions").status_code == 403
    with httpx.Client(timeout=60, **options) as lead:
        assert "oidc:leads@x" in walk(lead, f"{address}/login/oidc", "leads@x").text
        assert lead.get(f"{address}/submissions").status_code == 200
    with httpx.Client(timeout=60, **options) as stranger:
        refused = walk(stranger, f"{address}/login/oidc", "cleaners@x")
        assert refused.status_code == 403
        assert "no role in this dashboard" in refused.text
        assert stranger.get(f"{address}/").is_redirect
    with httpx.Client(timeout=60, **options) as forger:  # an answer that this browser did not ask for
        assert forger.get(f"{address}{DONE}?code=x&state=y").status_code == 403
        begun = forger.get(f"{address}/login/oidc")
        state = dict(part.split("=") for part in urlsplit(begun.headers["location"]).query.split("&"))["state"]
        assert forger.get(f"{address}{DONE}?code=forged&state={state}").status_code == 403
        assert forger.get(f"{address}/").is_redirect


def test_log_in_with_a_real_provider(runs: Path, accounts: Accounts, tmp_path: Path) -> None:
    issuer_port, own_port = free_ports(2)
    address = f"http://127.0.0.1:{own_port}"
    with provider(issuer_port, address) as issuer:
        app = create(runs, accounts, secure=False, oidc=settings(tmp_path, issuer, address))
        with served(app, own_port):
            check_logins(address)
    with served(create(runs, accounts, False, settings(tmp_path, issuer, address)), own_port):
        answer = httpx.get(f"{address}/login/oidc", timeout=60)
        assert answer.status_code == 502  # the provider is gone: one sentence
        assert "cannot be reached" in answer.text


@pytest.mark.parametrize("local", [False, True])
def test_log_in_over_the_coordinators_port(
    runs: Path, accounts: Accounts, federation: Build, tmp_path: Path, local: bool
) -> None:
    """`hansa serve --oidc` as a process, alone and with local accounts, on the port that members use."""
    [issuer_port] = free_ports(1)
    kit = Kit(make_kits(federation(), tmp_path / "kits") / COORDINATOR)
    address, log = f"https://localhost:{kit.endpoint.port}", tmp_path / "serve.log"
    trusted = ssl.create_default_context(cafile=kit.folder / "ca.pem")
    with provider(issuer_port, address) as issuer:
        file = settings_file(tmp_path, issuer, address)
        command = [sys.executable, "-m", "hansa", "serve", "--queue", str(runs), "--kit", str(kit.folder)]
        command += ["--oidc", str(file)] + (["--accounts", str(accounts.file)] if local else [])
        with log.open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
            try:
                until = monotonic() + 120
                while not answers(address, trusted):
                    assert process.poll() is None, log.read_text()
                    assert monotonic() < until, log.read_text()
                    sleep(0.2)
                check_logins(address, verify=trusted)
                with httpx.Client(timeout=60, verify=trusted) as client:
                    page = client.get(f"{address}/login").text
                    assert ('name="password"' in page) is local
                    if local:
                        form = {"csrf": CSRF.findall(page)[0], "name": "reader", "password": PASSWORD}
                        assert client.post(f"{address}/login", data=form).status_code == 303
            finally:
                process.terminate()
                process.wait(60)


def answers(address: str, trusted: ssl.SSLContext) -> bool:
    """Whether the pages are served."""
    try:
        return httpx.get(f"{address}/login", verify=trusted, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_a_provider_without_encryption_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="https"):
        settings(tmp_path, "http://login.example.org", "https://hansa.example.org")
