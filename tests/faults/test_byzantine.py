"""Processes that lie, strangers at the gate, a silo without a policy, one whose disk is full, one whose data is broken:
real processes on loopback. Whoever is honest goes on, and nothing gets in or out that should not."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import time

import pytest
import torch

from hansa.deploy import authority
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.network.blob_server import read_line, write_line
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.envelope import sign_envelope, open_envelope
from hansa.privacy.policy.audit_log import entries, verify
from hansa.privacy.policy.proposal import POLICY_FILE
from tests.conftest import weights
from tests.deploy.test_authentication import refusals, shut_out
from tests.faults.processes import Deployment, read_only
from tests.faults.test_network_faults import Gate, as_uninterrupted, contributions_of, lost

pytestmark = pytest.mark.slow_fault

BOUNDED = 3 << 30  # bytes: three times what a coordinator of a small model needs with all its libraries


def test_silos_that_send_pickles_nonsense_and_ten_gigabytes(federation, tmp_path, monkeypatch):
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=2, sizes=sizes, evaluate={"every": 9, "share": 1.0})
    monkeypatch.setenv("HANSA_BOMB", str(tmp_path / "bomb"))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        deployment.start_all(lies={"east": "pickles", "north-2": "nonsense", "south-2": "greedy"})
        deployment.finished()
        assert deployment.peak() < BOUNDED
        said = {(round, node): text for round, node, text in lost(deployment)}
        assert said.keys() == {(round, node) for round in (1, 2) for node in ("east", "north-2")}
        assert all("its reply cannot be used" in said[round, "east"] for round in (1, 2))
        assert "not finite" in said[1, "north-2"]
        assert "which the model does not have" in said[2, "north-2"]
        assert sorted(contributions_of(deployment)) == [(r, n) for r in (1, 2) for n in ("north", "south", "south-2")]
        refused = {(node, reason.split(":")[0]) for node, reason in refusals(deployment.run)}
        assert ("south-2", "the depot refused") in refused, "counted"
        assert not (tmp_path / "bomb").exists(), "nothing was executed"
        assert all(torch.isfinite(tensor).all() for tensor in weights(deployment.run / "model").values())
        assert verify(deployment.run / "audit.jsonl").sound


# ── at the gate ───────────────────────────────────────────────────────────────────────────────────────────────────


def disguised(deployment: Deployment, folder: Path, days: float | None) -> Kit:
    """North's kit with a certificate that is expired, or, without ``days``, another authority's."""
    shutil.copytree(deployment.kits / "north", folder)
    if days is None:
        foreign = authority.Authority.found(folder.parent / "foreign", "small")
        kit = Kit(folder)
        foreign.certify(folder, kit.key.public_key(), kit.info, 1, 30)
        shutil.copyfile(deployment.kits / "north" / "ca.pem", folder / "ca.pem")
    else:
        kit = Kit(folder)
        authority.Authority(deployment.kits / "authority").certify(folder, kit.key.public_key(), kit.info, 1, days)
    return Kit(folder)


def as_coordinator(deployment: Deployment) -> Connection:
    kit = Kit(deployment.kits / COORDINATOR)
    assert kit.endpoint is not None
    return Connection((kit.endpoint.host, kit.endpoint.port), kit.client_tls(), kit.child_subjects.inbox(kit.name))


def replay(deployment: Deployment) -> set[str]:
    """Whoever holds the broker puts letters into north's box: forged, from the future, old, without a number, not for
    it. Returns why each must be refused; in the end the true one lies there again."""
    kit, key = Kit(deployment.kits / "north"), Kit(deployment.kits / COORDINATOR).key
    box, broker = kit.parent_subjects.request("north"), as_coordinator(deployment)
    true = broker.request(kit.parent_subjects.latest(box)).payload
    letter = open_envelope(true, COORDINATOR, "north", kit.public_key(COORDINATOR))
    unnumbered = json.dumps({k: v for k, v in asdict(letter).items() if k != "sequence"}).encode()
    forgeries = {
        "its signature is not the sender's": sign_envelope(letter, Kit(deployment.kits / "south").key),
        "in the future: set the clocks": sign_envelope(replace(letter, at=time() + 3600), key),
        "it is older than what was seen before": sign_envelope(replace(letter, sequence=letter.sequence - 1), key),
        "it belongs to an older run": sign_envelope(replace(letter, run="0" * 16, begun=5.0), key),
        "it has fields": key.sign(unnumbered) + unnumbered,
        "to 'south'": sign_envelope(replace(letter, receiver="south"), key),
        "its field 'run' is not a name": sign_envelope(replace(letter, run="../../../tmp"), key),
        "a letter of 3 bytes": b"abc",
    }
    for forged in (*forgeries.values(), true, true):
        broker.checked(broker.request(box, forged))
    broker.close()
    return set(forgeries)


def besiege(deployment: Deployment) -> None:
    """East's own key in other hands: ten gigabytes, a line without an end, many connections, bytes drop by drop."""
    kit = Kit(deployment.kits / "east")
    place = kit.parent
    assert place is not None
    import socket

    with ExitStack() as stack:
        for said in ({"put": "0" * 32, "size": 10 << 30, "for": "0" * 32}, {"get": "0" * 32, "from": 0}, {"x": "y"}):
            plain = stack.enter_context(socket.create_connection((place.host, place.blob_port), timeout=120))
            connection = stack.enter_context(kit.client_tls().wrap_socket(plain, server_hostname=place.host))
            write_line(connection, said)
            try:
                answer = read_line(connection)
            except (OSError, ValueError):
                continue  # one too many
            assert answer is None or "error" in answer
        dawdling = stack.enter_context(socket.create_connection((place.host, place.blob_port), timeout=120))
        dawdling.sendall(b"\x16")  # the first byte of a handshake that never comes


def test_strangers_replays_and_a_siege_while_silos_work(gated, tmp_path):
    """Cases 2, 3, 23: all refused and said once; the run ends in the bits of an undisturbed one."""
    settings, gate = gated(rounds=2), Gate(tmp_path / "marks", "north")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("north at work", gate.reached)
        shut_out(disguised(deployment, tmp_path / "expired", days=-0.02))
        shut_out(disguised(deployment, tmp_path / "another's", days=None))
        reasons = replay(deployment)
        deployment.wait("every refusal in north's log", lambda: all(reason in deployment.log("north") for reason in reasons))
        besiege(deployment)
        gate.open()
        deployment.finished()
        assert deployment.peak() < BOUNDED
        for reason in reasons:
            assert deployment.log("north").count(reason) == 1, reason
        as_uninterrupted(settings, deployment, tmp_path)


# ── too few in a sum ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_coordinator_that_wants_few_in_a_sum_gets_nothing(federation, tmp_path, monkeypatch):
    """Case 9: lists of one and of two, the same round with one silo less; and a silo that wants more beside itself
    than there are. The others' rounds go on, and what the coordinator may know is what it knows without lies."""
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    participation = {"quorum": 0.6}
    settings = federation(
        rounds=3, sizes=sizes, secure_aggregation=True, participation=participation, evaluate={"every": 9}
    )
    heard = tmp_path / "heard.json"
    monkeypatch.setenv("HANSA_HEARD", str(heard))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        policy = deployment.kits / "south-2" / POLICY_FILE
        policy.write_text(policy.read_text().replace("secure_aggregation: true", "cohort: 6"))
        deployment.start_all(lies={COORDINATOR: "curious"})
        deployment.finished()
        said = {(round, node): text for round, node, text in lost(deployment)}
        assert "requires a cohort of 6, and a round may count with 3" in said[0, "south-2"], "it is never asked again"
        assert "1 silos are on the list, and at least 3 must hide in the sum" in said[1, "east"]
        assert "2 silos are on the list, and at least 3 must hide in the sum" in said[2, "east"]
        assert (3, "east") not in said
        replies = json.loads(heard.read_text())
        assert "sends no other under the same masks" in replies["update"]["east"], replies
        assert set(replies["unmask"]) == {"north", "south", "east", "north-2"}
        assert all("both lists together would unmask a silo" in reply for reply in replies["unmask"].values()), replies
        counted = {(1, n) for n in ("north", "south", "north-2")} | {(2, n) for n in ("north", "south", "north-2")}
        assert set(contributions_of(deployment)) == counted | {(3, n) for n in ("north", "south", "east", "north-2")}
        assert all(torch.isfinite(tensor).all() for tensor in weights(deployment.run / "model").values())


# ── silos in trouble ──────────────────────────────────────────────────────────────────────────────────────────────

CANARY = "quartzibelle"


def hansa(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hansa", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_silos_in_trouble_are_left_out_and_no_word_of_theirs_gets_out(federation, tmp_path):
    """Cases 13, 14, 16, 25: no policy, a full disk, broken data, and a word that is nowhere but in the data."""
    sizes = {"north": 40, "south": 30, "east": 20, "north-2": 30, "south-2": 40}
    settings = federation(rounds=2, sizes=sizes, participation={"quorum": 0.4})
    data = {name: Path(node.sources[0].train) for name, node in settings.silos.items()}
    data["north"].write_text(f'{{"text": "{CANARY} fever"}}\n' + data["north"].read_text())
    data["south-2"].write_text(f'{{"text": "{CANARY} broken\n' * 40)
    with Deployment(settings, tmp_path / "deployment") as deployment:
        (deployment.kits / "east" / POLICY_FILE).write_text("rules: {training: {federations: any}}")
        for name in (COORDINATOR, "north", "south", "east", "south-2"):
            deployment.start(name)
        deployment.start("north-2", room=50_000)
        deployment.finished()
        said = {node: text for _, node, text in lost(deployment)}
        assert "the policy allows nothing" in said["east"]
        assert "it failed 3 times: RunFailed (what it says stays there)" in said["north-2"]
        assert "south-2" in said
        assert {node for _, node in contributions_of(deployment)} == {"north", "south"}
        shown = hansa("status", deployment.run)
        assert shown.returncode == 0, shown.stderr
        places = [file for file in (tmp_path / "deployment").rglob("*") if file.is_file()]
        assert len(places) > 60
        assert [file for file in places if CANARY.encode() in file.read_bytes()] == []
        assert CANARY not in shown.stdout + shown.stderr + json.dumps(said)
        assert "Traceback" not in "".join(deployment.log(name) for name in (*settings.silos, COORDINATOR))
        assert (deployment.run / "report.html").is_file()
        assert {e["event"] for e in entries(tmp_path / "deployment" / "homes" / "east" / "audit.jsonl")} >= {"refusal"}
    # 16: the log of a silo that worked, then edited
    log = tmp_path / "deployment" / "homes" / "north" / "audit.jsonl"
    assert hansa("audit", "verify", log).returncode == 0
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], lines[1].replace('"coordinator"', '"nobody"'), *lines[2:]]))
    found = hansa("audit", "verify", log)
    assert found.returncode == 1
    assert "line 2" in found.stdout + found.stderr
    again = hansa("join", tmp_path / "deployment" / "kits" / "north", "--data", data["north"], "--home", log.parent)
    assert again.returncode == 2, "nothing leaves under a log that is not as it was left"
    assert "line 2" in again.stderr


def test_a_silo_whose_disk_becomes_read_only_is_left_out_until_it_is_mended(gated, tmp_path):
    """Case 25: what its audit log cannot take does not leave; the others go on, and so does it, later."""
    settings = gated(rounds=2, participation={"quorum": 0.6}, evaluate={"every": 9})
    south, north = (Gate(tmp_path / "marks", name) for name in ("south", "north"))
    with Deployment(settings, tmp_path / "deployment") as deployment:
        south.shut()
        deployment.start_all()
        deployment.wait("south at work", south.reached)
        deployment.wait("north's answer", lambda: "Train of round 1 is answered" in deployment.log("north"))
        north.shut()  # it holds the second round open until south's disk is mended
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
