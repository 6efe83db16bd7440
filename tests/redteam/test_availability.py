"""Attacks on availability: each succeeds with its defence switched off, and fails with it on.

The attackers are a stranger with network access, a member silo, and misfortune: a wrong clock, a stopped silo, a
backup, a full disk. Servers are real processes or real sockets.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.client.silo import Silo
from hansa.core.messages import DataCard, Train, Update
from hansa.deploy.kit import COORDINATOR
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from tests.conftest import Build
from tests.deploy.conftest import over_the_network
from tests.faults.processes import Deployment
from tests.faults.test_network_faults import Gate, assert_uninterrupted, contributions_of

# ── claims of samples ─────────────────────────────────────────────────────────────────────────────────────────────────

LIE = 10**12


def lie(patch: pytest.MonkeyPatch, card: bool) -> None:
    """Let east claim 1e12 samples in its updates, and in its data card."""
    honest = Silo.answer

    def answer(self: Silo, request: Any) -> Any:
        reply = honest(self, request)
        if self.name == "east" and card and isinstance(reply, DataCard):
            return replace(reply, groups=reply.groups | {"train": {"east": LIE}})
        if self.name == "east" and isinstance(reply, Update):
            return replace(reply, samples=LIE)
        return reply

    patch.setattr(Silo, "answer", answer)


def moved_by_east_alone(settings: Any, outcome: Path, tmp_path: Path) -> float:
    """How far the model is from the one that east alone would have made, over how far that one moved."""
    shutil.copytree(outcome / "start", tmp_path / "alone" / "start")
    runtime = Runtime(settings, tmp_path / "alone")
    model = runtime.start.only(runtime.shared.names)
    update = SiloHost(runtime).silo("east").answer(Train(1, model, 0))
    assert isinstance(update, Update)
    expected = model.flat - update.gradient.flat
    found = RunDirectory(outcome).restore(1, {}).model.flat
    return float((found - expected).norm() / update.gradient.flat.norm())


def events(folder: Path) -> dict[str, str]:
    ledger = Ledger(folder)
    try:
        return dict(ledger.select("select node, text from events where kind='lost'"))
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("card", "share", "defended"),
    [(False, None, False), (False, None, True), (True, None, False), (True, None, True), (True, 0.4, True)],
    ids=["update-off", "update-on", "card-off", "card-on", "card-capped"],
)
def test_a_claim_of_samples_does_not_dominate_the_mean(
    federation: Build, tmp_path: Path, log: Any, card: bool, share: float | None, defended: bool
) -> None:
    """East has a seventh of the texts and claims 1e12 samples: in its updates, or from the beginning on."""
    settings = federation(rounds=1, participation={"quorum": 0.5, "max_share": share})
    with pytest.MonkeyPatch.context() as patch:
        if not defended:
            patch.setattr("hansa.core.round.overclaim", lambda update, child: "")
            patch.setattr("hansa.runs.enrolment.outsized", lambda claims: {})
        lie(patch, card)
        outcome = over_the_network(settings, tmp_path / "network", log).folder
    distance = moved_by_east_alone(settings, outcome, tmp_path)
    print(f"distance from east's own model: {distance:.4f} of its update")
    assert (distance < 1e-3) is not defended
    if defended and not card:
        assert "it claims 1000000000000 samples, and it claimed" in events(outcome)["east"]
    if defended and card and share is None:
        assert any("east does not take part: it claims 1,000,000,000,000" in line for line in log.lines)


# ── real coordinators and silos ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
@pytest.mark.parametrize("behaviour", ["clock_ahead", "clock_behind"])
def test_a_wrong_clock_does_not_hold_the_first_round(
    federation: Build, tmp_path: Path, behaviour: str, defended: bool
) -> None:
    """Without a deadline, the silo whose clock is wrong is named and left out; the others go on."""
    with Deployment(federation(rounds=2), tmp_path / "deployment") as deployment:
        undefended = "" if defended else "waits_for_everybody"
        deployment.start_all(behaviours={"south": behaviour, COORDINATOR: undefended})
        process = deployment.processes[COORDINATOR]
        if not defended:
            for name in ("north", "east"):
                deployment.wait(name, lambda name=name: "reply sent" in deployment.log(name))  # type: ignore[misc]
            process.join(12)
            assert process.is_alive(), "it waits for south, which cannot answer"
            assert not (deployment.run / "start").exists()
            return
        deployment.finished()
        way = "ahead of" if behaviour == "clock_ahead" else "behind"
        assert f"south does not take part: its clock is 1200 s {way} this machine's" in deployment.log(COORDINATOR)
        assert (2, "north") in contributions_of(deployment)


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_an_absent_silo_does_not_hold_the_first_round(federation: Build, tmp_path: Path, defended: bool) -> None:
    waits = {"enrolment": 6.0} if defended else {}
    settings = federation(rounds=2, participation={"quorum": 0.6, **waits})
    with Deployment(settings, tmp_path / "deployment") as deployment:
        for name in (COORDINATOR, "north", "east"):
            deployment.start(name)
        process = deployment.processes[COORDINATOR]
        if not defended:
            for name in ("north", "east"):
                deployment.wait(name, lambda name=name: "reply sent" in deployment.log(name))  # type: ignore[misc]
            process.join(12)
            assert process.is_alive()
            assert not (deployment.run / "start").exists(), "it waits for south"
            return
        deployment.finished()
        assert "south does not take part: it did not answer before the deadline" in deployment.log(COORDINATOR)


def test_the_quorum_is_awaited_beyond_the_deadline(federation: Build, tmp_path: Path) -> None:
    """Silos are started when their operators find the time: a run that cannot begin yet goes on waiting."""
    settings = federation(rounds=1, participation={"quorum": 1.0, "enrolment": 3.0})
    with Deployment(settings, tmp_path / "deployment") as deployment:
        for name in (COORDINATOR, "north", "east"):
            deployment.start(name)
        deployment.wait("another request", lambda: "asking again south" in deployment.log(COORDINATOR))
        deployment.start("south")
        deployment.finished()
        assert len(contributions_of(deployment)) == 3


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_a_coordinator_restored_from_a_backup_finds_its_place(gated: Any, tmp_path: Path, defended: bool) -> None:
    """The backup is of round 1, and the silos have seen later rounds. The result is that of an undisturbed run."""
    settings, gate = gated(rounds=4), Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("south at work", gate.reached)
        deployment.kill(COORDINATOR)
        shutil.copytree(deployment.run, tmp_path / "backup")
        deployment.start(COORDINATOR)
        gate.open()
        deployment.wait("round 3", (deployment.run / "checkpoints" / "round-3").exists)
        deployment.kill(COORDINATOR)
        shutil.rmtree(deployment.run)
        shutil.copytree(tmp_path / "backup", deployment.run)
        deployment.start(COORDINATOR, behaviour="" if defended else "ignores_positions")
        process = deployment.processes[COORDINATOR]
        if not defended:
            deployment.wait("a refusal", lambda: "older than one that was accepted" in deployment.log("north"))
            process.join(15)
            assert process.is_alive()
            assert not any((deployment.run / "checkpoints").glob("round-*")), "no silo answers it"
            return
        deployment.finished()
        assert_uninterrupted(settings, deployment, tmp_path)


@pytest.mark.parametrize("defended", [False, True], ids=["off", "on"])
def test_fedbuff_does_not_wait_for_a_stopped_silo(gated: Any, tmp_path: Path, defended: bool) -> None:
    settings = gated(
        rounds=4,
        method={"name": "fedbuff", "buffer": 2},
        participation={"max_absence": 6.0 if defended else 3600.0, "quorum": 0.5},
        evaluate={"every": 99, "share": 1.0},
    )
    gate = Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment:
        gate.shut()
        deployment.start_all()
        deployment.wait("south at work", gate.reached)
        deployment.kill("south")
        process = deployment.processes[COORDINATOR]
        process.join(20 if defended else 12)
        if not defended:
            assert process.is_alive(), "it waits for south"
            return
        deployment.finished()
        ledger = Ledger(deployment.run)
        reasons = ledger.select("select text from events where node='south' and kind='not evaluated'")
        ledger.close()
        assert ("it has sent no heartbeat for 6 s",) in reasons, "rounds do not wait, and the last scores did so once"


@pytest.mark.parametrize("room", [4, 40, 120])
def test_a_disk_that_is_full_from_the_start_is_one_sentence(gated: Any, tmp_path: Path, room: int) -> None:
    """No file of the coordinator may grow beyond ``room`` kB. With room again, the same command runs to the end."""
    settings = gated(rounds=1)
    with Deployment(settings, tmp_path / "deployment") as deployment:
        for name in ("north", "south", "east"):
            deployment.start(name)
        deployment.start(COORDINATOR, max_file_bytes=room << 10)
        assert_one_sentence(deployment)
        deployment.start(COORDINATOR)
        deployment.finished()
        assert_uninterrupted(settings, deployment, tmp_path)


def test_a_disk_that_is_full_ended_in_a_traceback(gated: Any, tmp_path: Path) -> None:
    """The control: without the defence an operator reads Python."""
    with Deployment(gated(rounds=1), tmp_path / "deployment") as deployment:
        deployment.start(COORDINATOR, behaviour="ignores_full_disks", max_file_bytes=4 << 10)
        deployment.processes[COORDINATOR].join(120)
        assert "Traceback" in deployment.log(COORDINATOR)


def test_a_disk_that_becomes_full_loses_nothing(gated: Any, tmp_path: Path) -> None:
    """While the silos train, the disk becomes full: the coordinator says so, and waits or ends in one sentence.

    With room again, the run goes on, after a restart if it has ended, and ends in the same bits.
    """
    settings, gate = gated(rounds=3), Gate(tmp_path / "marks", "south")
    with Deployment(settings, tmp_path / "deployment") as deployment, small_disk(deployment.run, 60 << 20):
        gate.shut()
        deployment.start_all()
        deployment.wait("south at work", gate.reached)
        fill = deployment.run / "fill"
        with suppress(OSError), fill.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(1 << 12))
        gate.open()
        process, told = deployment.processes[COORDINATOR], ("the disk cannot take its upload", "failed:")
        deployment.wait("a word about the disk", lambda: any(one in deployment.log(COORDINATOR) for one in told))
        process.join(5)
        if not process.is_alive():
            assert_one_sentence(deployment)
        fill.unlink()
        if COORDINATOR not in deployment.processes:
            deployment.start(COORDINATOR)
        deployment.finished()
        assert "Traceback" not in deployment.log(COORDINATOR)
        assert_uninterrupted(settings, deployment, tmp_path)
        deployment.kill(COORDINATOR)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of its own in memory, where this user may mount one."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("without the right to mount there is no small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def assert_one_sentence(deployment: Deployment) -> None:
    """The coordinator ends by itself, with exit code 1, one sentence and no traceback."""
    process = deployment.processes[COORDINATOR]
    process.join(120)
    said = deployment.log(COORDINATOR)
    assert not process.is_alive(), said
    assert process.exitcode == 1, said
    assert "Traceback" not in said
    assert "failed:" in said.splitlines()[-1], said
    deployment.kill(COORDINATOR)
