"""Units, image and chart use existing commands and options; helm itself renders the chart."""

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
Document = dict[str, Any]


def commands() -> Mapping[str, Any]:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group.commands


def parse_command(words: list[str]) -> None:
    """Parse a command line; raises if the command or an option does not exist."""
    commands()[words[0]].make_context("hansa", list(words[1:]))


def render(*arguments: str) -> list[Document]:
    done = subprocess.run([HELM, "template", "x", str(PACKAGING / "helm"), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def kinds(documents: list[Document]) -> dict[str, Document]:
    return {document["kind"]: document for document in documents}


def pod(documents: list[Document]) -> Document:
    found = kinds(documents)
    template: Document = (found.get("Job") or found["StatefulSet"])["spec"]["template"]
    return template


def container(documents: list[Document]) -> Document:
    """The container; checks that every volume it mounts exists."""
    spec = pod(documents)["spec"]
    found: Document
    [found] = spec["containers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert {mount["name"] for mount in found["volumeMounts"]} == set(volumes)
    claim = kinds(documents)["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim
    return found


@pytest.fixture
def federation_text(tmp_path: Path) -> str:
    (tmp_path / "fed.yaml").write_text("name: clinics\nsilos: {a: a.jsonl}\n")
    return f"coordinator.federation={tmp_path / 'fed.yaml'}"


def test_the_chart_of_a_coordinator(federation_text: Any) -> None:
    documents = render("--set", "role=coordinator", "--set-file", federation_text)
    parse_command(container(documents)["args"])
    found = kinds(documents)
    assert yaml.safe_load(found["ConfigMap"]["data"]["federation.yaml"])["name"] == "clinics"
    assert [(port["port"], port["targetPort"]) for port in found["Service"]["spec"]["ports"]] == [(443, "https")]
    assert {"name": "https", "containerPort": 8443} in container(documents)["ports"]
    assert "--listen=8443" in container(documents)["args"]
    assert found["Service"]["spec"]["selector"] == pod(documents)["metadata"]["labels"]
    assert pod(documents)["spec"]["restartPolicy"] == "OnFailure", "the job ends with the run"


def test_the_chart_of_a_coordinator_with_an_existing_nats(federation_text: Any) -> None:
    nats = "nats.url=wss://nats.example:443"
    documents = render("--set", "role=coordinator", "--set", nats, "--set-file", federation_text)
    assert "--nats=wss://nats.example:443" in container(documents)["args"]
    parse_command(container(documents)["args"])
    assert [port["name"] for port in kinds(documents)["Service"]["spec"]["ports"]] == ["https"]
    assert [port["name"] for port in container(documents)["ports"]] == ["health", "https"]


def test_the_chart_of_a_silo(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: {}\n")
    documents = render("--set-file", f"silo.policy={tmp_path / 'policy.yaml'}")
    parse_command(container(documents)["args"])
    assert "Service" not in kinds(documents), "a silo accepts no connections"
    mounts = {mount["name"]: mount for mount in container(documents)["volumeMounts"]}
    assert mounts["data"]["readOnly"]
    assert mounts["kit"]["readOnly"]
    assert kinds(documents)["ConfigMap"]["data"] == {"policy.yaml": "rules: {}\n"}
    assert "env" not in container(documents)
    proxied = container(render("--set", "silo.proxy=http://proxy.example:3128"))
    assert proxied["env"] == [{"name": "HANSA_PROXY", "value": "http://proxy.example:3128"}]
    assert "HANSA_PROXY" in [option.envvar for option in commands()["join"].params]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--set", "role=king"], "it must be coordinator or silo"),
        (["--set", "role=coordinator"], "federation is empty"),
    ],
)
def test_the_chart_refuses_invalid_values(arguments: Any, reason: Any) -> None:
    done = subprocess.run([HELM, "template", "x", str(PACKAGING / "helm"), *arguments], capture_output=True, text=True)
    assert done.returncode != 0
    assert reason in done.stderr


UNITS = ["hansa-coordinator", "hansa-region", "hansa-silo"]


@pytest.mark.parametrize("unit", UNITS)
def test_the_units_start_existing_commands(unit: Any) -> None:
    text = (PACKAGING / "systemd" / f"{unit}.service").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.M)
    program, *words = shlex.split(line)
    assert Path(program).name == "hansa"
    parse_command(words)


def test_the_unit_takes_a_stopped_coordinator_for_success() -> None:
    text = (PACKAGING / "systemd" / "hansa-coordinator.service").read_text()
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


def test_the_image_copies_existing_files_and_installs_existing_extras() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    for names in re.findall(r"^COPY (.*) \./\S*$", text, re.M):
        assert all((ROOT / name).exists() for name in names.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    version = yaml.safe_load((PACKAGING / "helm" / "Chart.yaml").read_text())["appVersion"]
    assert version == project["version"]


def test_the_base_install_has_what_transformers_asks_for_when_check_loads_no_values() -> None:
    """`device_map` needs accelerate, which other extras bring along: a base install must have it by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(one.startswith("accelerate") for one in project["dependencies"])
