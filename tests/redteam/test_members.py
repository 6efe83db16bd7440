"""Attacks on lists of members: old lists, withheld lists, two authorities.

Sockets, certificates and broker are real; the attacks with real processes are in test_member_processes.py.
"""

import shutil
import zlib
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from time import sleep, time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hansa.deploy import authority, membership
from hansa.deploy.agent import Agent
from hansa.deploy.certificates import authority_certificate
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.membership import ListRefused, Member, MemberStore, parse_members, sign_members
from hansa.deploy.network.address import ConnectionLost
from hansa.deploy.network.connection import Connection
from hansa.deploy.network.note import Note, list_in, open_note, pack_list, sign_note
from hansa.deploy.server_session import server_session
from tests.redteam.members import FailingService, no_log, wait

KEY = Ed25519PrivateKey.generate()
CA = authority_certificate(KEY, "small")


def members(*revoked: str) -> dict[str, Member]:
    names = ["coordinator", "north", "south"]
    return {n: Member(key="00" * 32, kind="silo", parent=None, generations=() if n in revoked else (1,)) for n in names}


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.booleans()), max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_lists_arrive_in_whatever_order_the_serial_number_never_falls(
    tmp_path_factory: pytest.TempPathFactory, arriving: list[tuple[int, bool, bool]]
) -> None:
    """Oracle: of each serial number the first list counts, and the highest number so far. Files, offers, restarts."""
    kit, home = tmp_path_factory.mktemp("kit"), tmp_path_factory.mktemp("home")
    (kit / "ca.pem").write_bytes(CA)
    texts = {
        (serial, other): sign_members("small", serial, members("north") if other else members(), KEY)
        for serial in range(7)
        for other in (False, True)
    }
    (kit / "members.json").write_text(texts[0, False])
    expected, store = (0, False), MemberStore(kit, [home])
    assert store.current().serial == 0
    for serial, other, restart in arriving:
        if restart:
            (kit / "members.json").write_text(texts[serial, other])
            store = MemberStore(kit, [home])
        else:
            try:
                store.offer(texts[serial, other])
            except ListRefused:
                assert serial <= expected[0]
        if serial > expected[0]:
            expected = serial, other
        assert store.current().text == texts[expected]


def replayed(kits: Path, name: str, defended: bool, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An old list of members; without the defence, nodes accept any list that the authority has signed."""
    if not defended:
        monkeypatch.setattr(membership, "check_successor", lambda newer, known: None)
        monkeypatch.setattr(membership, "NEWEST", "no-such-file")
        monkeypatch.setattr(MemberStore, "_remember", lambda self, newest: True)
    return (kits / name / "members.json").read_bytes()


def connects(kit: Kit) -> bool:
    try:
        connection = Connection(kit.route(), kit.key, kit.parent_subjects.inbox(kit.name))
    except ConnectionLost:
        return False
    connection.close()
    return True


@pytest.mark.parametrize("defended", [True, False])
def test_a_replayed_list_does_not_bring_a_revoked_silo_back(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the coordinator, while it runs and after a restart with the files of the kit put back from a backup."""
    old = replayed(kits, COORDINATOR, defended, monkeypatch)
    backup = shutil.copytree(kits / COORDINATOR, tmp_path / "backup")
    lines: list[str] = []
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lines.append):
        assert connects(Kit(kits / "north"))
        authority.revoke(kits, "north")
        wait("the revocation", lambda: not connects(Kit(kits / "north")))
        (kits / COORDINATOR / "members.json").write_bytes(old)
        if defended:
            sleep(1.0)
            assert not connects(Kit(kits / "north"))
        else:
            wait("the attack succeeds", lambda: connects(Kit(kits / "north")))
    for file in backup.glob("members*.json"):
        shutil.copy(file, kits / COORDINATOR)
    with server_session(Kit(kits / COORDINATOR), tmp_path / "server", None, lines.append):
        assert connects(Kit(kits / "north")) != defended, "also after a restart"


@pytest.mark.parametrize("defended", [True, False])
def test_a_replayed_list_does_not_bring_a_revoked_coordinator_back(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At a silo: while it runs, after a restart, and when all files of its kit are put back from a backup."""
    old = replayed(kits, "north", defended, monkeypatch)
    home = tmp_path / "home"
    kit = Kit(kits / "north", home)
    backup = shutil.copytree(kits / "north", tmp_path / "backup")
    authority.revoke(kits, COORDINATOR)
    assert not kit.trusts(COORDINATOR)
    (kits / "north" / "members.json").write_bytes(old)
    assert kit.trusts(COORDINATOR) != defended
    assert Kit(kits / "north", home).trusts(COORDINATOR) != defended
    shutil.rmtree(kits / "north")
    shutil.copytree(backup, kits / "north")
    assert Kit(kits / "north", home).trusts(COORDINATOR) != defended
    if defended:
        assert "an old list was put back" in caplog.text


def test_a_coordinator_that_withholds_or_replays_a_list_cannot_lower_the_silos_list(kits: Path, tmp_path: Path) -> None:
    """Notes carry lists: a newer one is used without a restart, an older one is refused, a forged one as well."""
    copies = shutil.copytree(kits, tmp_path / "copies")  # the authority does not reach these kits
    warned: list[str] = []
    agent = Agent(Kit(copies / "north"), tmp_path / "home", FailingService(), no_log, warn=warned.append)
    old = (kits / COORDINATOR / "members.json").read_text()
    authority.revoke(kits, "east")
    newest = (kits / COORDINATOR / "members.json").read_text()
    key = Kit(kits / COORDINATOR).key

    def note(text: str) -> bytes:
        return sign_note(Note(COORDINATOR, "north", time(), "", pack_list(text)), key)

    agent._receive_note(note(newest))
    assert agent._kit.serial == 2
    assert not agent._kit.trusts("east")
    agent._receive_note(note(old))
    forged = sign_members("small", 9, dict(agent._kit.members()), key)  # signed by the coordinator
    agent._receive_note(note(forged))
    assert agent._kit.serial == 2
    assert not agent._kit.trusts("east")
    assert any("an old list was put back" in line for line in warned)
    assert any("it is not signed by the federation's authority" in line for line in warned)
    assert Kit(copies / "north").serial == 2, "also after a restart"


def test_notes_that_the_parent_did_not_sign_and_bombs_are_refused() -> None:
    note = Note(COORDINATOR, "north", 5.0, "", pack_list("{}"))
    whole = sign_note(note, KEY)
    assert open_note(whole, COORDINATOR, "north", KEY.public_key()) == note
    assert list_in(whole) == b"{}"
    bomb = sign_note(replace(note, members=pack_list_of(50 << 20)), KEY)
    for data in (
        whole[:-1],
        sign_note(note, Ed25519PrivateKey.generate()),
        sign_note(replace(note, receiver="x"), KEY),
    ):
        with pytest.raises(ValueError, match="note"):
            open_note(data, COORDINATOR, "north", KEY.public_key())
    with pytest.raises(ValueError, match="too long"):
        list_in(bomb)


def pack_list_of(size: int) -> str:
    return b64encode(zlib.compress(b" " * size, 9)).decode()[: 40 << 10]


@pytest.mark.parametrize("defended", [True, False])
def test_two_copies_of_an_authority_are_noticed(
    kits: Path, tmp_path: Path, defended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of the authority's folder revokes another member under the same serial number."""
    if not defended:
        monkeypatch.setattr(membership, "check_successor", lambda newer, known: None)
    twin = shutil.copytree(kits / "authority", tmp_path / "twin" / "authority")
    authority.revoke(kits, "east")
    kit = Kit(kits / "north")
    assert not kit.trusts("east")
    authority.revoke(twin, "south")
    shutil.copy(twin / "members.json", kits / "north" / "members.json")
    assert kit.trusts("south") == defended
    assert (kits / "north" / "members.conflict.json").exists() == defended, "the second list is kept as evidence"
    if defended:
        assert "two copies of the authority sign lists" in caplog.text
        ca = (kits / "authority" / "ca.pem").read_bytes()
        assert parse_members((kits / "north" / "members.conflict.json").read_bytes(), ca).serial == kit.serial
