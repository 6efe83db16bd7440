"""Byzantine processes, unauthenticated peers, invalid policies, full disks, unreadable data, on loopback.

Honest silos go on; nothing invalid is accepted, and nothing private is released.
"""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import time
from typing import Any

import pytest
import torch

from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import open_envelope, sign_envelope
from hansa.deploy.network.route import Route
from hansa.privacy.policy.audit_log import entries, verify
from hansa.privacy.policy.proposal import POLICY_FILE
from tests.conftest import Build, weights
from tests.deploy.stage import ask, content
from tests.deploy.test_authentication import assert_refused, refusals
from tests.faults.processes import Deployment, read_only
from tests.faults.test_network_faults import Gate, assert_uninterrupted, contributions_of, lost

pytestmark = pytest.mark.slow_fault

MAX_MEMORY = 3 << 30  # bytes: three times what a coordinator of a small model needs with all its libraries


def test_silos_that_send_pickles_invalid_updates_and_ten_gigabytes(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=2, sizes=sizes, evaluate={"every": 9, "share": 1.0})
    monkeypatch.setenv("HANSA_BOMB", str(tmp_path / "bomb"))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all(
            behaviours={"east": "pickles", "north-2": "invalid_updates", "south-2": "oversized_uploads"}
        )
        deployment.finished()
        assert deployment.peak() < MAX_MEMORY
        reasons = {(round, node): text for round, node, text in lost(deployment)}
        assert reasons.keys() == {(round, node) for round in (1, 2) for node in ("east", "north-2")}
        assert all("its reply cannot be used" in reasons[round, "east"] for round in (1, 2))
        assert "not finite" in reasons[1, "north-2"]
        assert "which the model does not have" in reasons[2, "north-2"]
        assert sorted(contributions_of(deployment)) == [(r, n) for r in (1, 2) for n in ("north", "south", "south-2")]
        refused = {(node, reason.split(":")[0]) for node, reason in refusals(deployment.run)}
        assert ("south-2", "the blob server refused") in refused, "counted"
        assert not (tmp_path / "bomb").exists(), "nothing was executed"
        assert all(torch.isfinite(tensor).all() for tensor in weights(deployment.run / "model").values())
        assert verify(deployment.run / "audit.jsonl").sound


# ── unauthenticated peers and replays ─────────────────────────────────────────────────────────────────────────────────


def copied_kit(deployment: Deployment, folder: Path, days: float | None) -> Kit:
    """A copy of north's kit with a certificate that is expired, or, without ``days``, of another authority."""
    shutil.copytree(deployment.kits / "north", folder)
    if days is None:
        signer = authority.found(deployment.federation, folder.parent / "foreign", {}, 30)
    else:
        signer = authority.Authority(deployment.kits / "authority")
    kit = Kit(folder)
    (folder / "cert.pem").write_bytes(signer.certify(kit.key.public_key(), kit.info, 1, days or 30))
    return Kit(folder)


def as_coordinator(deployment: Deployment) -> Connection:
    kit = Kit(deployment.kits / COORDINATOR)
    return Connection(Route(kit.endpoint.all, kit.client_tls()), kit.key, kit.child_subjects.inbox(kit.name))


def replay(deployment: Deployment) -> set[str]:
    """Publish invalid requests for north as the owner of the broker could: forged, future, replayed, malformed.

    Returns the reasons with which they must be rejected. The last message is the original one.
    """
    kit, key = Kit(deployment.kits / "north"), Kit(deployment.kits / COORDINATOR).key
    [accepted] = (deployment.folder / "homes" / "north" / "runs").iterdir()
    subject, broker = kit.parent_subjects.of_run(accepted.name).request("north"), as_coordinator(deployment)
    original = broker.request(kit.parent_subjects.latest(subject)).payload
    envelope = open_envelope(original, COORDINATOR, "north", kit.public_key(COORDINATOR))
    unnumbered = json.dumps({k: v for k, v in asdict(envelope).items() if k != "sequence"}).encode()
    forgeries = {
        "the signature is not the sender's": sign_envelope(envelope, Kit(deployment.kits / "south").key),
        "in the future: synchronise the clocks": sign_envelope(replace(envelope, sent_at=time() + 3600), key),
        "the envelope is older than one that was accepted before": sign_envelope(
            replace(envelope, sequence=envelope.sequence - 1), key
        ),
        "another run than the subject": sign_envelope(replace(envelope, run="0" * 16, run_started=5.0), key),
        "does not have the fields": key.sign(unnumbered) + unnumbered,
        "to 'south'": sign_envelope(replace(envelope, receiver="south"), key),
        "the field 'run' is not a valid name": sign_envelope(replace(envelope, run="../../../tmp"), key),
        "the envelope has 3 bytes": b"abc",
    }
    older = sign_envelope(replace(envelope, run="0" * 16, run_started=5.0), key)
    broker.checked(broker.request(kit.parent_subjects.of_run("0" * 16).request("north"), older))
    for forged in (*forgeries.values(), original, original):
        broker.checked(broker.request(subject, forged))
    broker.close()
    return {*forgeries, "the envelope belongs to an older run"}


def flood(deployment: Deployment) -> None:
    """With the key of east: ten gigabytes, invalid requests, too many connections, an incomplete handshake."""
    kit = Kit(deployment.kits / "east")
    endpoint = kit.parent
    import socket

    with ExitStack() as stack:
        for line, headers in (
            (f"PUT /replies/{'0' * 32}/{'0' * 32}", {"Content-Range": f"bytes 0-1/{10 << 30}"}),
            (f"GET /blobs/{'0' * 32}", {}),
            ("GET /blobs/x", {}),
            ("POST /nats", {}),
            ("GET /" + "x" * 100_000, {}),
        ):
            plain = stack.enter_context(socket.create_connection((endpoint.host, endpoint.port), timeout=120))
            connection = stack.enter_context(kit.client_tls().wrap_socket(plain, server_hostname=endpoint.host))
            try:
                found = ask(connection, line, headers)
            except (OSError, AssertionError):
                continue  # too many connections, or a head that is too long
            assert "error" in content(found)
        incomplete = stack.enter_context(socket.create_connection((endpoint.host, endpoint.port), timeout=120))
        incomplete.sendall(b"\x16")  # the first byte of a TLS handshake


def test_unauthenticated_peers_replays_and_floods_during_training(gated: Any, tmp_path: Path) -> None:
    """Cases 2, 3, 23: all are refused and logged once; the bits are those of an undisturbed run."""
    settings, gate = gated(rounds=2), Gate(tmp_path / "marks", "north")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("north at work", gate.reached)
        assert_refused(copied_kit(deployment, tmp_path / "expired", days=-0.02))
        assert_refused(copied_kit(deployment, tmp_path / "another's", days=None))
        reasons = replay(deployment)
        deployment.wait(
            "every rejection in the log of north", lambda: all(reason in deployment.log("north") for reason in reasons)
        )
        flood(deployment)
        gate.open()
        deployment.finished()
        assert deployment.peak() < MAX_MEMORY
        for reason in reasons:
            assert deployment.log("north").count(reason) == 1, reason
        assert_uninterrupted(settings, deployment, tmp_path)


# ── too few silos in a sum ────────────────────────────────────────────────────────────────────────────────────────────


def test_silos_refuse_rosters_that_are_too_short_or_change(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 9: rosters of one and of two silos, and the same round with one silo less.

    The policy of one silo requires a larger cohort than there is; the other silos go on.
    """
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    participation = {"quorum": 0.6}
    settings = federation(
        rounds=3, sizes=sizes, secure_aggregation=True, participation=participation, evaluate={"every": 9}
    )
    written = tmp_path / "replies.json"
    monkeypatch.setenv("HANSA_REPLIES", str(written))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        policy = deployment.kits / "south-2" / POLICY_FILE
        policy.write_text(policy.read_text().replace("secure_aggregation: true", "cohort: 6"))
        deployment.start_all(behaviours={COORDINATOR: "curious_server"})
        deployment.finished()
        reasons = {(round, node): text for round, node, text in lost(deployment)}
        assert "its policy refuses this request" in reasons[0, "south-2"], "the coordinator learns no more"
        own = " ".join(deployment.log("south-2").split())
        assert "requires a cohort of 6, and a round may consist of 3" in own, "the silo's operator does"
        assert "the roster has 1 silos; secure aggregation needs at least 3" in reasons[1, "east"]
        assert "the roster has 2 silos; secure aggregation needs at least 3" in reasons[2, "east"]
        assert (3, "east") not in reasons
        replies = json.loads(written.read_text())
        assert "sends no other under the same masks" in replies["update"]["east"], replies
        assert set(replies["unmask"]) == {"north", "south", "east", "north-2"}
        assert all("both lists together would unmask" in reply for reply in replies["unmask"].values()), replies
        counted = {(1, n) for n in ("north", "south", "north-2")} | {(2, n) for n in ("north", "south", "north-2")}
        assert set(contributions_of(deployment)) == counted | {(3, n) for n in ("north", "south", "east", "north-2")}
        assert all(torch.isfinite(tensor).all() for tensor in weights(deployment.run / "model").values())


# ── silos with faults of their own ────────────────────────────────────────────────────────────────────────────────────

CANARY = "quartzibelle"


def hansa(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hansa", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_faulty_silos_are_left_out_and_their_data_is_not_released(federation: Build, tmp_path: Path) -> None:
    """Cases 13, 14, 16, 25: an invalid policy, a full disk, unreadable data, and a canary in the data."""
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=2, sizes=sizes, participation={"quorum": 0.4})
    data = {name: Path(node.sources[0].train) for name, node in settings.silos.items()}
    data["north"].write_text(f'{{"text": "{CANARY} fever"}}\n' + data["north"].read_text())
    data["south-2"].write_text(f'{{"text": "{CANARY} broken\n' * 40)
    with Deployment(settings, tmp_path / "deployment") as deployment:
        (deployment.kits / "east" / POLICY_FILE).write_text("rules: {training: {federations: any}}")
        for name in (COORDINATOR, "north", "south", "east", "south-2"):
            deployment.start(name)
        deployment.start("north-2", max_file_bytes=50_000)
        deployment.finished()
        reasons = {node: text for _, node, text in lost(deployment)}
        assert "its policy refuses this request" in reasons["east"]
        assert "the policy allows nothing" in " ".join(deployment.log("east").split())
        assert "it failed 3 times: RunFailed (its message stays at the node)" in reasons["north-2"]
        assert "south-2" in reasons
        assert {node for _, node in contributions_of(deployment)} == {"north", "south"}
        shown = hansa("status", deployment.run)
        assert shown.returncode == 0, shown.stderr
        files = [file for file in (tmp_path / "deployment").rglob("*") if file.is_file()]
        assert len(files) > 60
        assert [file for file in files if CANARY.encode() in file.read_bytes()] == []
        assert CANARY not in shown.stdout + shown.stderr + json.dumps(reasons)
        assert "Traceback" not in "".join(deployment.log(name) for name in (*settings.silos, COORDINATOR))
        assert (deployment.run / "report.html").is_file()
        assert {e["event"] for e in entries(tmp_path / "deployment" / "homes" / "east" / "audit.jsonl")} >= {"refusal"}
    # 16: the audit log of a silo, edited
    log = tmp_path / "deployment" / "homes" / "north" / "audit.jsonl"
    assert hansa("audit", "verify", log).returncode == 0
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], lines[1].replace('"coordinator"', '"nobody"'), *lines[2:]]))
    found = hansa("audit", "verify", log)
    assert found.returncode == 1
    assert "line 2" in found.stdout + found.stderr
    again = hansa("join", tmp_path / "deployment" / "kits" / "north", "--data", data["north"], "--home", log.parent)
    assert again.returncode == 2, "the agent does not start with a damaged audit log"
    assert "line 2" in again.stderr


def test_a_silo_with_a_read_only_disk_is_left_out_until_it_is_writable(gated: Any, tmp_path: Path) -> None:
    """Case 25: nothing is released that the audit log cannot record; the other silos go on, and later the silo."""
    settings = gated(rounds=2, participation={"quorum": 0.6}, evaluate={"every": 9})
    south, north = (Gate(tmp_path / "marks", name) for name in ("south", "north"))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        south.shut()
        deployment.start_all()
        deployment.wait("south at work", south.reached)
        deployment.wait("the reply of north", lambda: "Train of round 1: reply sent" in deployment.log("north"))
        north.shut()  # the second round stays open until the disk of south is writable
        with read_only(tmp_path / "deployment" / "homes" / "south"):
            south.open()
            deployment.wait("north in the second round", north.reached)
        north.open()
        deployment.finished()
        [(round, node, _)] = lost(deployment)
        assert (round, node) == (1, "south")
        assert set(contributions_of(deployment)) == {(r, n) for r in (1, 2) for n in settings.silos} - {(1, "south")}
        assert "Read-only file system" in deployment.log("south") or "Permission denied" in deployment.log("south")
        assert "Traceback" not in deployment.log("south")
        assert verify(tmp_path / "deployment" / "homes" / "south" / "audit.jsonl").sound
