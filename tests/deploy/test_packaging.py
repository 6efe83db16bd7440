"""Units and the chart start existing commands with existing options; systemd accepts the units."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from hansa.cli.deploy import TERMINATED
from hansa.cli.main import app

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
HELM = Path(sys.executable).with_name("helm")


def commands() -> Mapping[str, Any]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group.commands


def parse_command(words: list[str]) -> None:
    """Parse a command line; raises if the command or an option does not exist."""
    commands()[words[0]].make_context("hansa", list(words[1:]))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["serv"], "serv"),
        (["join", "kit", "--data=x", "--at-onces=2"], "No such option: --at-onces"),
        (["join", "kit"], "Missing parameter: data"),
    ],
)
def test_a_renamed_command_or_option_would_be_noticed(words: list[str], reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        parse_command(words)


UNITS = ["hansa-coordinator", "hansa-region", "hansa-silo", "hansa-standing-coordinator"]


def start_line(unit: str) -> list[str]:
    """The words of the command that a unit starts."""
    text = (PACKAGING / "systemd" / f"{unit}.service").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.M)
    return shlex.split(line)


@pytest.mark.parametrize("unit", UNITS)
def test_the_units_start_existing_commands(unit: Any) -> None:
    program, *words = start_line(unit)
    assert Path(program).name == "hansa"
    parse_command([word for word in words if not word.startswith("$")])


def test_the_standing_coordinator_takes_the_options_that_its_unit_describes() -> None:
    text = (PACKAGING / "systemd" / "hansa-standing-coordinator.service").read_text()
    [options] = re.findall(r"^#\s+HANSA_OPTIONS=(.*)$", text, re.M)
    _, *words = start_line("hansa-standing-coordinator")
    assert words[-1] == "$HANSA_OPTIONS", "in braces, systemd would pass one word"
    described = shlex.split(options)
    assert {"--at-once", "--accounts", "--certificate", "--key", "--webhook"} <= set(described)
    parse_command([*words[:-1], *described])
    [submit] = re.findall(r"^#.* /opt/hansa/bin/hansa (submit .*)$", text, re.M)
    parse_command(shlex.split(submit))


@pytest.mark.parametrize("unit", ["hansa-coordinator", "hansa-standing-coordinator"])
def test_the_unit_takes_a_stopped_coordinator_for_success(unit: str) -> None:
    text = (PACKAGING / "systemd" / f"{unit}.service").read_text()
    assert f"SuccessExitStatus={TERMINATED}\n" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With another program, because the path in the units does not exist on this machine."""
    for unit in UNITS:
        text = (PACKAGING / "systemd" / f"{unit}.service").read_text()
        (tmp_path / f"{unit}.service").write_text(text.replace("/opt/hansa/bin/hansa", "/bin/true"))
    files = [str(tmp_path / f"{unit}.service") for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    messages = [line for line in done.stderr.splitlines() if "hansa-" in line]
    assert (done.returncode, messages) == (0, []), done.stderr


def test_the_chart_names_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((PACKAGING / "helm" / "Chart.yaml").read_text())["appVersion"] == project["version"]


def test_the_base_install_has_what_transformers_asks_for_when_check_loads_no_values() -> None:
    """`device_map` needs accelerate, which other extras bring along: a base install must have it by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(one.startswith("accelerate") for one in project["dependencies"])
