"""A NATS cluster of three servers behind the coordinator's port: one is killed in the middle of a run."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hansa.deploy import authority
from hansa.deploy.broker import binary
from hansa.deploy.coordinator import serve
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.deploy.conftest import Log, free_ports, joined
from tests.deploy.network.test_address import _listens, wait_until
from tests.policies import admit_everywhere

pytestmark = pytest.mark.slow_fault


@contextmanager
def cluster(folder: Path, ports: list[int], routes: list[int]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Three servers, each with the files that came with the kits, and with its own name and ``cluster`` section."""
    started = []
    for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
        own = shutil.copytree(folder, folder.parent / f"nats-{number}")
        text = (own / "nats.conf").read_text().replace(f'"port": {ports[0]}', f'"port": {port}')
        text = re.sub(r'server_name: ".*"', f'server_name: "n{number}"', text)
        section = {"name": "c", "listen": f"127.0.0.1:{route}", "routes": [f"nats://127.0.0.1:{r}" for r in routes]}
        (own / "nats.conf").write_text(text + f"cluster: {json.dumps(section)}\n")
        with (own / "nats.log").open("wb") as log:
            started.append(subprocess.Popen([binary(), "-c", "nats.conf"], cwd=own, stdout=log, stderr=log))
    try:
        wait_until(lambda: all(map(_listens, ports)), "three listening servers")
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


class KillOne(Log):
    """Kills a server of the cluster after the first round."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__()
        self._process = process

    def on_round_end(self, run: Any, record: Any) -> None:
        self._process.kill()


def test_one_of_three_servers_is_killed_during_a_run(federation: Build, tmp_path: Path) -> None:
    """The one that the coordinator and its silos use; the next one takes over, and the bits are the same."""
    settings = federation(rounds=3)
    *ports, own = free_ports(4)
    kits, nats = tmp_path / "kits", ",".join(f"localhost:{port}" for port in ports)
    authority.create(settings, kits, {COORDINATOR: f"localhost:{own}"}, 30, nats)
    admit_everywhere(settings, kits)
    with (
        cluster(kits / "nats", ports, free_ports(3)) as servers,
        joined(settings, kits, tmp_path / "silos", Log().say),
    ):
        killer = KillOne(servers[0])
        outcome = serve(settings, Kit(kits / COORDINATOR), tmp_path / "run", None, [killer])
        assert servers[0].poll() is not None
    here = run(settings, tmp_path / "here", workers=0)
    assert same(weights(here.folder / "model"), weights(outcome.folder / "model"))
