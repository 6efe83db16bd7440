"""What the tests of the Helm chart share: rendering it, and looking at what it starts."""

import re
import subprocess
from itertools import chain
from typing import Any

import yaml

from tests.deploy.test_packaging import HELM, PACKAGING, ROOT, parse_command

Document = dict[str, Any]
CHART = str(PACKAGING / "helm")
SECONDS = 300.0  # a busy machine is slow, not wrong
DOCS = ROOT / "docs" / "clusters.md"
STANDING = ["--set", "role=coordinator,coordinator.queue=true"]


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([HELM, *arguments], capture_output=True, text=True)


def render(*arguments: str) -> list[Document]:
    done = helm("template", "x", CHART, *arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def kinds(documents: list[Document]) -> dict[str, Document]:
    return {document["kind"]: document for document in documents}


def pod(documents: list[Document]) -> Document:
    found = kinds(documents)
    template: Document = (found.get("Job") or found["StatefulSet"])["spec"]["template"]
    return template


def containers(documents: list[Document]) -> dict[str, Document]:
    """The containers by name; checks what holds for all of them, and that each starts an existing command."""
    spec = pod(documents)["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    claim = kinds(documents)["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim
    for one in chain(spec["initContainers"], spec["containers"]):
        assert {mount["name"] for mount in one["volumeMounts"]} == set(volumes)
        assert all(mount.get("readOnly") for mount in one["volumeMounts"] if mount["name"] != "state")
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert all(isinstance(value["value"], str) for value in one.get("env", ()) if "value" in value)
    for one in spec["containers"]:
        environment = {value["name"] for value in one.get("env", ())}
        assert set(re.findall(r"\$\((\w+)\)", " ".join(one["args"]))) <= environment
        parse_command(one["args"])
    return {one["name"]: one for one in spec["containers"]}


def node(documents: list[Document]) -> Document:
    """The container of the node itself; checks that probes and Service lead to ports that it opens."""
    found = containers(documents)["hansa"]
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert f"--health=0.0.0.0:{ports['health']}" in found["args"]
    if service := kinds(documents).get("Service"):
        assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(443, "https")]
        assert f"--listen={ports['https']}" in found["args"]
        assert service["spec"]["selector"] == pod(documents)["metadata"]["labels"]
    else:
        assert set(ports) == {"health"}
    return found


def environment(container: Document) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env", ())}
