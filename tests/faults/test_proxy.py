"""Two hospitals in a network namespace, which reaches only a proxy that allows CONNECT to port 443 alone."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from hansa.deploy.kit import COORDINATOR
from hansa.deploy.network.address import Proxy, open_connection
from tests.deploy.tunnel import Tunnel
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import assert_uninterrupted, may_make_namespaces

pytestmark = pytest.mark.slow_fault

CLINIC = "hansa-clinic"
GATEWAY, COORDINATOR_HOST = "10.213.9.1", "10.213.10.1"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def clinic() -> Iterator[str]:
    """The namespace; the coordinator's address exists on this machine, and the namespace has no route to it."""
    if not may_make_namespaces():
        pytest.skip("this machine does not permit network namespaces")
    with (Path(gettempdir()) / f"{CLINIC}.lock").open("w") as lock:
        flock(lock, LOCK_EX)  # another test process may use the same addresses
        yield from namespace()


def namespace() -> Iterator[str]:
    """Make the namespace and its link, and take both away at the end."""
    remove()  # what a test left that was killed
    try:
        ip("addr", "add", f"{COORDINATOR_HOST}/32", "dev", "lo")
        ip("netns", "add", CLINIC)
        ip("link", "add", "hansa-c0", "type", "veth", "peer", "name", "hansa-c1", "netns", CLINIC)
        ip("addr", "add", f"{GATEWAY}/30", "dev", "hansa-c0")
        ip("link", "set", "hansa-c0", "up")
        ip("-n", CLINIC, "addr", "add", "10.213.9.2/30", "dev", "hansa-c1")
        ip("-n", CLINIC, "link", "set", "hansa-c1", "up")
        ip("-n", CLINIC, "link", "set", "lo", "up")
        yield CLINIC
    finally:
        remove()


def remove() -> None:
    address = ("addr", "del", f"{COORDINATOR_HOST}/32", "dev", "lo")
    for what in (("link", "del", "hansa-c0"), ("netns", "del", CLINIC), address):
        with suppress(subprocess.CalledProcessError):
            ip(*what)


def test_hospitals_behind_a_proxy_that_allows_port_443_alone(
    gated: Any, clinic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = gated(rounds=2)
    with (
        Tunnel(host=GATEWAY, allowed=443) as tunnel,
        Deployment(settings, tmp_path / "deployment", {COORDINATOR: COORDINATOR_HOST}) as deployment,
    ):
        deployment.start(COORDINATOR)
        deployment.start("east")
        monkeypatch.setenv("HANSA_PROXY", f"http://{GATEWAY}:{tunnel.port}")
        for name in ("north", "south"):
            deployment.start(name, namespace=clinic)
        direct = f"import socket; socket.create_connection(('{COORDINATOR_HOST}', 443), 3)"
        tried = subprocess.run(["ip", "netns", "exec", clinic, "python3", "-c", direct], capture_output=True)
        assert tried.returncode != 0, "without the proxy there is no way"
        with pytest.raises(OSError, match="refused the connection: 403"):
            open_connection((COORDINATOR_HOST, 4222), Proxy(GATEWAY, tunnel.port))
        deployment.finished()
        assert set(tunnel.passed) == {f"{COORDINATOR_HOST}:443"}
        assert_uninterrupted(settings, deployment, tmp_path)
