"""Versions of Hansa that are one apart work together, as real processes; a new setting that is used is refused."""

import shutil
from pathlib import Path

import pytest

import hansa
from hansa.deploy.kit import COORDINATOR
from hansa.runs.run import run
from tests.conftest import Build, same, weights
from tests.faults.processes import Deployment

pytestmark = pytest.mark.slow_fault

MARK = "this is the next version"
# What the next version changes: (file, text, text in the next version).
NEXT = (
    ("__main__.py", '"""\n', f'"""\nprint("{MARK}", flush=True)\n'),
    ("deploy/network/envelope.py", "PROTOCOL = 6 ", "PROTOCOL = 7 "),
    ("deploy/network/envelope.py", '    audit: str = ""', '    route: str = ""\n    audit: str = ""'),
    ("deploy/network/envelope.py", '    "audit": (str,),', '    "route": (str,),\n    "audit": (str,),'),
    # a heartbeat that says more in every case
    ("deploy/network/heartbeat.py", "    alarm: bool\n", "    alarm: bool\n    load: float = 0.5\n"),
    ("deploy/network/heartbeat.py", '    "alarm": (bool,),', '    "alarm": (bool,),\n    "load": (float,),'),
    # a new field of a message, and a new setting
    ("core/messages.py", "    labels: int = 0\n", '    labels: int = 0\n    hint: str = ""\n'),
    ("config/sections.py", "    micro_batch: Count", "    newest: bool = False\n    micro_batch: Count"),
)


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as its next version might be."""
    folder = tmp_path_factory.mktemp("next")
    without = shutil.ignore_patterns("__pycache__")
    package = shutil.copytree(Path(hansa.__file__).parent, folder / "hansa", ignore=without)
    for name, before, after in NEXT:
        file = Path(package) / name
        text = file.read_text(encoding="utf-8")
        assert before in text, (name, before)
        file.write_text(text.replace(before, after, 1), encoding="utf-8")
    return folder


@pytest.mark.parametrize("newer", ["north", COORDINATOR])
def test_one_node_is_upgraded_before_the_others(
    newer: str, federation: Build, next_version: Path, tmp_path: Path
) -> None:
    settings = federation(rounds=2)
    with Deployment(settings, tmp_path / "deployment") as deployment:
        for name in (COORDINATOR, *settings.silos):
            deployment.start(name, package=next_version if name == newer else None)
        deployment.finished()
        assert {n for n in deployment.processes if MARK in deployment.log(n)} == {newer}
        whole = run(settings, tmp_path / "whole", workers=0).folder
        assert same(weights(whole / "model"), weights(deployment.run / "model"))


def test_a_new_setting_that_is_used_is_refused_by_name(federation: Build, next_version: Path, tmp_path: Path) -> None:
    """The negative control: the older silo does not train as if the setting were not there."""
    settings = federation(rounds=1, participation={"enrolment": 5})
    with Deployment(settings, tmp_path / "deployment") as deployment:
        text = deployment.file.read_text(encoding="utf-8")
        assert "train:\n" in text
        deployment.file.write_text(text.replace("train:\n", "train:\n  newest: true\n", 1), encoding="utf-8")
        for name in (COORDINATOR, *settings.silos):
            deployment.start(name, package=next_version if name == COORDINATOR else None)
        deployment.wait("a refusal", lambda: "'train.newest', which this version of Hansa" in deployment.log("north"))
        assert not (deployment.run / "model").exists()
