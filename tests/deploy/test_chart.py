"""The chart: helm renders and lints it for every role, and what it starts exists. No cluster is used."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hansa.core.errors import UserError
from hansa.deploy.approval import APPROVALS, Approvals, approval_of
from hansa.deploy.kit import Kit
from tests.conftest import Build
from tests.deploy.chart import CHART, STANDING, containers, environment, helm, kinds, node, pod, render
from tests.deploy.conftest import make_kits
from tests.deploy.test_packaging import PACKAGING, commands, parse_command


@pytest.fixture
def federation_text(tmp_path: Path) -> str:
    (tmp_path / "fed.yaml").write_text("name: clinics\nsilos: {a: a.jsonl}\n")
    return f"coordinator.federation={tmp_path / 'fed.yaml'}"


def test_a_coordinator_of_one_run(federation_text: str) -> None:
    documents = render("--set", "role=coordinator", "--set-file", federation_text)
    args = node(documents)["args"]
    assert args[:2] == ["serve", "/etc/hansa/config/federation.yaml"]
    assert not any(one.startswith("--queue") for one in args)
    found = kinds(documents)
    assert yaml.safe_load(found["ConfigMap"]["data"]["federation.yaml"])["name"] == "clinics"
    assert pod(documents)["spec"]["restartPolicy"] == "OnFailure", "the job ends with the run"
    assert "env" not in node(documents)


def test_a_standing_coordinator() -> None:
    documents = render(*STANDING, "--set", "coordinator.atOnce=3")
    found = kinds(documents)
    assert "Job" not in found
    assert found["StatefulSet"]["spec"]["replicas"] == 1
    assert pod(documents)["spec"]["restartPolicy"] == "Always"
    args = node(documents)["args"]
    assert {"--queue=/var/lib/hansa/runs", "--at-once=3", "--listen=8443"} <= set(args)
    assert not any(one.startswith("--out") for one in args)
    assert "sysctls" not in pod(documents)["spec"]["securityContext"]
    assert "CronJob" not in found, "nothing is deleted unless it is asked for"


def test_a_standing_coordinator_with_accounts_certificate_and_alerts() -> None:
    secrets = "coordinator.accounts.secret=people,coordinator.tls.secret=web,coordinator.webhook.secret=hook"
    documents = render(*STANDING, "--set", secrets)
    one = node(documents)
    assert {
        "--accounts=/etc/hansa/accounts/accounts.json",
        "--certificate=/etc/hansa/tls/tls.crt",
        "--key=/etc/hansa/tls/tls.key",
        "--webhook=$(HANSA_WEBHOOK_URL)",
    } <= set(one["args"])
    assert environment(one)["HANSA_WEBHOOK_SECRET"] == {"secretKeyRef": {"name": "hook", "key": "secret"}}
    volumes = {volume["name"]: volume for volume in pod(documents)["spec"]["volumes"]}
    assert volumes["accounts"]["secret"]["secretName"] == "people"
    assert volumes["tls"]["secret"]["secretName"] == "web"


def test_the_user_is_that_of_the_image_or_the_platforms_choice() -> None:
    security = pod(render())["spec"]["securityContext"]
    [user] = re.findall(r"^USER (\d+)$", (PACKAGING / "Containerfile").read_text(), re.M)
    assert (security["runAsUser"], security["fsGroup"]) == (int(user), int(user))
    assert pod(render("--set", "user=0"))["spec"]["securityContext"] == {"runAsNonRoot": True}


def test_a_port_below_1024_needs_no_privilege() -> None:
    documents = render(*STANDING, "--set", "coordinator.listen=443")
    assert "--listen=443" in node(documents)["args"]
    sysctls = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "443"}]
    assert pod(documents)["spec"]["securityContext"]["sysctls"] == sysctls


def test_retention_of_a_standing_coordinator() -> None:
    documents = render(*STANDING, "--set", "coordinator.prune.days=90,coordinator.prune.whole=true")
    job = kinds(documents)["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
    [one] = job["spec"]["containers"]
    parse_command(one["args"])
    queue = next(arg for arg in node(documents)["args"] if arg.startswith("--queue="))
    assert one["args"][:3] == ["prune", queue.removeprefix("--queue="), "--days=90"]
    assert "--whole" in one["args"]
    assert job["spec"]["securityContext"] == pod(documents)["spec"]["securityContext"]
    assert job["metadata"]["labels"] != pod(documents)["metadata"]["labels"], "the Service would lead to the job"
    [near] = job["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["labelSelector"]["matchLabels"] == pod(documents)["metadata"]["labels"]


def test_outside_of_the_cluster_the_addresses_of_members_are_kept() -> None:
    inside = kinds(render(*STANDING))["Service"]["spec"]
    assert "externalTrafficPolicy" not in inside
    outside = kinds(render(*STANDING, "--set", "coordinator.service.type=LoadBalancer"))["Service"]["spec"]
    assert (outside["type"], outside["externalTrafficPolicy"]) == ("LoadBalancer", "Local")


def test_an_existing_nats(federation_text: str) -> None:
    nats = ["--set", "nats.url=wss://nats.example:443"]
    for role in ([*STANDING], ["--set", "role=coordinator", "--set-file", federation_text], ["--set", "role=region"]):
        assert "--nats=wss://nats.example:443" in node(render(*role, *nats))["args"]


def test_a_region(tmp_path: Path) -> None:
    documents = render("--set", "role=region")
    args = node(documents)["args"]
    assert args[0] == "serve"
    assert not [one for one in args if re.match("--(data|policy|queue|accounts|webhook)", one)]
    assert "StatefulSet" in kinds(documents)
    (tmp_path / "policy.yaml").write_text("rules: {}\n")
    held = ["--set", "region.data.claim=notes,region.proxy=http://proxy.example:3128", "--set", "model.claim=base"]
    documents = render("--set", "role=region", *held, "--set-file", f"region.policy={tmp_path / 'policy.yaml'}")
    one = node(documents)
    assert {"--data=/data", "--policy=/etc/hansa/config/policy.yaml", "--model=/model"} <= set(one["args"])
    assert environment(one) == {"HANSA_PROXY": "http://proxy.example:3128"}


def test_a_silo(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("rules: {}\n")
    documents = render("--set-file", f"silo.policy={tmp_path / 'policy.yaml'}")
    one = node(documents)
    assert "Service" not in kinds(documents), "a silo accepts no connections"
    assert kinds(documents)["ConfigMap"]["data"]["policy.yaml"].strip() == "rules: {}"
    assert "env" not in one
    assert one["args"][:4] == [
        "join",
        "/var/lib/hansa/kit",
        "--data=/data",
        "--policy=/etc/hansa/config/policy.yaml",
    ]


def test_the_options_of_a_silo(tmp_path: Path) -> None:
    (tmp_path / "tagger.py").write_text("'''A plug-in.'''\n\nNAME = 'tagger'\n")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    documents = render(
        *("--set", "silo.atOnce=2,silo.threads=4,silo.processes=2,model.claim=base,model.path=/base"),
        *("--set", "silo.data.files={a.jsonl,b}"),
        *("--set-file", f"plugins.tagger={tmp_path / 'tagger.py'}", "--set-file", f"silo.trust={tmp_path / 'ca.pem'}"),
    )
    one = node(documents)
    assert {
        *("--data=/data/a.jsonl", "--data=/data/b", "--model=/base", "--at-once=2", "--threads=4", "--processes=2"),
        *("--plugins=/etc/hansa/config/tagger.py", "--trust=/etc/hansa/config/trust.pem"),
    } <= set(one["args"])
    assert kinds(documents)["ConfigMap"]["data"]["tagger.py"].strip() == (tmp_path / "tagger.py").read_text().strip()


def test_environment_values() -> None:
    values = ["--set", "silo.proxy=http://proxy.example:3128,env.NO_PROXY=.local,env.OMP_NUM_THREADS=4"]
    one = node(render(*values, "--set", "envSecrets={proxy-login}"))
    assert environment(one) == {
        "HANSA_PROXY": "http://proxy.example:3128",
        "NO_PROXY": ".local",
        "OMP_NUM_THREADS": "4",
    }
    assert one["envFrom"] == [{"secretRef": {"name": "proxy-login"}}]
    assert "HANSA_PROXY" in [option.envvar for option in commands()["join"].params]
    plain = node(render("--set", "env.HTTPS_PROXY=http://proxy.example:3128"))
    assert environment(plain) == {"HTTPS_PROXY": "http://proxy.example:3128"}


def test_the_page_of_a_silo_is_reached_from_its_pod_alone() -> None:
    documents = render("--set", "model.claim=base,silo.page.port=9000")
    page = containers(documents)["page"]
    assert page["args"][:2] == ["silo-page", "/var/lib/hansa/kit"]
    listen = next(one for one in page["args"] if one.startswith("--listen="))
    assert listen == "--listen=127.0.0.1:9000"
    assert "ports" not in page
    shared = {one for one in node(documents)["args"] if one.startswith(("--policy", "--model", "--plugins"))}
    assert shared <= set(page["args"]), "what the page judges is what the agent does"
    assert set(containers(render("--set", "silo.page.enabled=false"))) == {"hansa"}


def test_accelerators(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        "gpu: {count: 2, runtimeClass: nvidia}\n"
        "resources: {requests: {cpu: 4}, limits: {memory: 64Gi}}\n"
        "nodeSelector: {accelerator: a100}\n"
        "tolerations: [{key: nvidia.com/gpu, operator: Exists}]\n"
    )
    documents = render("--values", str(tmp_path / "values.yaml"))
    assert node(documents)["resources"] == {
        "requests": {"cpu": 4, "memory": "2Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": 2},
    }
    spec = pod(documents)["spec"]
    assert (spec["nodeSelector"], spec["runtimeClassName"]) == ({"accelerator": "a100"}, "nvidia")
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert "limits" not in containers(documents)["page"]["resources"], "the page needs no accelerator"
    assert "limits" not in node(render())["resources"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--set", "role=king"], "it must be coordinator, region or silo"),
        (["--set", "role=coordinator"], "the coordinator has nothing to run"),
        ([*STANDING, "--set", "coordinator.federation=x"], "exclude each other"),
        (["--set", "role=coordinator,coordinator.federation=x,coordinator.prune.days=9"], "needs coordinator.queue"),
        (["--set", "role=region,region.data.claim=notes"], "the region has data and no policy"),
        (["--set", "silo.atonce=2"], "atonce is not allowed"),
        (["--set", "silo.atOnce=17"], "less than or equal to 16"),
        (["--set", "nats.url=nats://nats.example:4222"], "nats.url"),
        (["--set", "log.level=loud"], "log.level"),
    ],
)
def test_the_chart_refuses_invalid_values(arguments: list[str], reason: str) -> None:
    done = helm("template", "x", CHART, *arguments)
    assert done.returncode != 0
    assert reason in done.stderr


def test_every_value_is_in_the_schema() -> None:
    """Helm checks given values against the schema; this checks that the schema knows all values that there are."""

    def names(values: Any, at: str = "") -> set[str]:
        free = at in {"env", "plugins", "resources", "nodeSelector", "affinity"} or at.endswith("annotations")
        if not isinstance(values, dict) or free:
            return {at}
        return set().union(*(names(value, f"{at}.{name}".lstrip(".")) for name, value in values.items()))

    def known(schema: Any, at: str = "") -> set[str]:
        inside = schema.get("properties")
        if inside is None:
            return {at}
        assert schema["additionalProperties"] is False, at
        return set().union(*(known(value, f"{at}.{name}".lstrip(".")) for name, value in inside.items()))

    schema = yaml.safe_load((PACKAGING / "helm" / "values.schema.json").read_text())
    values = yaml.safe_load((PACKAGING / "helm" / "values.yaml").read_text())
    assert names(values) == known(schema) - {"global"}


def test_helm_lints_the_chart(federation_text: str) -> None:
    once = ["--set", "role=coordinator", "--set-file", federation_text]
    for values in (["--set", "role=silo"], ["--set", "role=region"], once, STANDING):
        done = helm("lint", "--strict", CHART, *values)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_kit_is_a_folder_of_links_that_can_be_written(federation: Build, tmp_path: Path) -> None:
    """The init container's own script, with folders of this test: approvals beside the files of a Secret."""
    settings = federation(sizes={"north": 30})
    secret, state, config = tmp_path / "secret", tmp_path / "state", tmp_path / "config"
    shutil.copytree(make_kits(settings, tmp_path / "kits") / "north", secret)
    config.mkdir()
    (config / "policy.yaml").write_text("rules: {}\n")
    [init] = pod(render())["spec"]["initContainers"]
    [script] = init["args"]
    for place, folder in (("/var/lib/hansa", state), ("/etc/hansa/kit", secret), ("/etc/hansa/config", config)):
        script = script.replace(place, str(folder))
    assert "/hansa/" not in script.replace(str(tmp_path), "")
    before = sorted(file.name for file in secret.iterdir())
    for _ in range(2):  # the pod is started, and started again
        subprocess.run([*init["command"], script], check=True)
    kit = Kit(state / "kit")
    approvals = Approvals(state / "kit", state / "kit" / "home")
    approvals.add(approval_of(settings))
    assert (state / "kit" / "policy.yaml").read_text() == "rules: {}\n", "the policy of the values"
    assert len(list((state / "kit" / APPROVALS).iterdir())) == 1
    assert sorted(file.name for file in secret.iterdir()) == before, "nothing is written into the Secret"
    info = (secret / "kit.json").read_text()
    (secret / "kit.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be used"):
        Kit(state / "kit")  # what changes in the Secret is seen
    (secret / "kit.json").write_text(info)
    assert Kit(state / "kit").name == kit.name == "north"
