"""Key requests and responses: who gets a certificate, and which response a kit accepts."""

import json
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.config.nodes import Node
from hansa.core.errors import UserError
from hansa.deploy import authority, certificates, key_request
from hansa.deploy.key_request import install, make_request, parse_request, signed_request
from hansa.deploy.kit import COORDINATOR, Kit
from tests.cli.test_cli import ok
from tests.conftest import Build


class Office:
    """An authority, and members who make their own keys."""

    def __init__(self, settings: Any, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.authority = authority.found(settings, folder / "office" / "authority", {}, 30)

    def request(self, name: str, **more: Any) -> Any:
        return make_request(self.folder / name, name, self.settings.name, **more)

    def sign(self, *names: str, **more: Any) -> dict[str, str]:
        requests = [parse_request((self.folder / n / "request.json").read_bytes(), n) for n in names]
        return {one.node: one.text for one in self.authority.sign(requests, **({"days": 30} | more))}

    def admit(self, *names: str) -> None:
        for name in names:
            self.request(name)
        for name, text in self.sign(*names).items():
            install(self.folder / name, text, name)


@pytest.fixture
def office(federation: Build, tmp_path: Path) -> Office:
    return Office(federation(), tmp_path)


def test_every_member_makes_its_own_key(office: Office) -> None:
    office.admit(COORDINATOR, "north", "south", "east")
    assert not list((office.folder / "office").glob("**/key.pem")), "no member's key is at the authority"
    for name in (COORDINATOR, "north"):
        kit = Kit(office.folder / name)
        assert stat.S_IMODE((kit.folder / "key.pem").stat().st_mode) == 0o600
        assert kit.members()[name].key == certificates.public_hex(kit.key.public_key())
        assert kit.serial == 1, "requests that are signed together give one list"
        assert not (kit.folder / "request.json").exists()
    assert (office.folder / "north" / "policy.yaml").exists()
    assert not (office.folder / COORDINATOR / "policy.yaml").exists()
    assert Kit(office.folder / COORDINATOR).children == ("north", "south", "east")


def test_a_late_member_changes_only_the_list_of_the_others(office: Office) -> None:
    office.admit(COORDINATOR, "north", "south", "east")
    others = {n: {f: f.read_bytes() for f in (office.folder / n).glob("*.*")} for n in (COORDINATOR, "north")}
    with pytest.raises(UserError, match=r"has no node 'late'.*'hansa kit add' adds a node"):
        office.admit("late")
    silos = office.settings.silos
    wider = office.settings.model_copy(update={"silos": {**silos, "late": silos["north"]}})
    assert office.authority.add(wider, {}) == ["late"]
    office.admit("late")
    assert Kit(office.folder / "late").serial == 2
    for files in others.values():
        assert all(file.read_bytes() == content for file, content in files.items())
    kit = Kit(office.folder / COORDINATOR)
    assert kit.list.offer(office.authority.current().text)
    assert kit.children == ("north", "south", "east", "late")
    moved = Node(silos={"north": silos["north"]})
    tree = {"west": moved, "south": silos["south"], "east": silos["east"]}
    elsewhere = office.settings.model_copy(update={"silos": tree})
    with pytest.raises(UserError, match="a member keeps its place"):
        office.authority.add(elsewhere, {})


def test_a_new_certificate_keeps_the_key_and_a_new_key_needs_a_confirmation(office: Office) -> None:
    office.admit(COORDINATOR, "north")
    kit = Kit(office.folder / "north")
    before = kit.members()["north"].key
    office.request("north")
    install(kit.folder, office.sign("north")["north"], "north")
    assert kit.members()["north"].generations == (1, 2)
    assert kit.members()["north"].key == before
    (kit.folder / "policy.yaml").write_text("rules: {}\n")
    office.request("north", new_key=True)
    assert certificates.public_hex(kit.key.public_key()) == before, "the key in use stays until the response is there"
    with pytest.raises(UserError, match="use --replace if the member confirms"):
        office.sign("north")
    install(kit.folder, office.sign("north", replace=True)["north"], "north")
    assert kit.members()["north"].generations == (3,), "the certificates of the old key are revoked"
    assert certificates.public_hex(kit.key.public_key()) == kit.members()["north"].key != before
    assert not (kit.folder / "key.next.pem").exists()
    assert (kit.folder / "policy.yaml").read_text() == "rules: {}\n", "a policy belongs to its silo"
    authority.revoke(office.authority.folder, "north")
    office.request("north")
    with pytest.raises(UserError, match="its key does not come back"):
        office.sign("north", replace=True)


def test_a_key_belongs_to_one_member(office: Office) -> None:
    office.admit("north")
    key = key_request.read_private_key(office.folder / "north" / "key.pem")
    twice = parse_request(signed_request(key, "south", "small"), "south")
    with pytest.raises(UserError, match="every member needs a key of its own"):
        office.authority.sign([twice], 30)
    fresh = Ed25519PrivateKey.generate()
    together = [parse_request(signed_request(fresh, name, "small"), name) for name in ("south", "east")]
    with pytest.raises(UserError, match="every member needs a key of its own"):
        office.authority.sign(together, 30)
    assert set(office.authority.members()) == {"north"}, "nothing is signed if one request is refused"
    with pytest.raises(UserError, match="asks for federation 'other'"):
        office.authority.sign([parse_request(signed_request(fresh, "south", "other"), "south")], 30)


@pytest.mark.parametrize("defended", [True, False])
def test_a_request_with_a_forged_proof_of_possession_is_refused(
    office: Office, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mallory puts a public key under her name that another member holds, or her own under another's request."""
    mallory = Ed25519PrivateKey.generate()
    office.request("north")
    forged = json.loads((office.folder / "north" / "request.json").read_text())
    forged["key"] = certificates.public_hex(mallory.public_key())
    if defended:
        with pytest.raises(UserError, match="is not signed with the private key of its public key"):
            parse_request(json.dumps(forged), "north")
        return

    class Blind:
        def verify(self, signature: bytes, data: bytes) -> None:
            pass

    monkeypatch.setattr("hansa.deploy.key_request.Ed25519PublicKey.from_public_bytes", lambda raw: Blind())
    found = parse_request(json.dumps(forged), "north")
    monkeypatch.undo()
    office.authority.sign([found], 30)
    assert office.authority.members()["north"].key == forged["key"], "without the check the attack succeeds"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (b"", "is not a key request"),
        (b"[]", "is not a key request"),
        (b'{"signature": "00"}', "is not a key request"),
        (b'{"signature": 7}', "is not a key request"),
        (b"[" * 100_000, "is not a key request"),
    ],
)
def test_malformed_requests_are_refused(damage: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_request(damage, "x.json")
    with pytest.raises(UserError, match="is not a response"):
        install(Path("nowhere"), damage, "x.json")


@pytest.mark.parametrize(("days", "valid"), [(-40, False), (-29, True), (0, True), (1, False)])
def test_a_request_is_valid_for_a_month(days: int, valid: bool) -> None:
    text = signed_request(Ed25519PrivateKey.generate(), "north", "small", datetime.now(UTC) + timedelta(days=days))
    if valid:
        assert parse_request(text, "x").node == "north"
        return
    with pytest.raises(UserError, match="a request is valid for 30 days from its date"):
        parse_request(text, "x")


@pytest.mark.parametrize("defended", [True, False])
def test_a_response_for_another_key_is_refused(office: Office, defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone else requested a certificate under north's name first; north must notice."""
    impostor = office.folder / "impostor"
    make_request(impostor, "north", "small")
    [response] = office.authority.sign([parse_request((impostor / "request.json").read_bytes(), "x")], 30)
    office.request("north")
    if defended:
        with pytest.raises(UserError, match="certifies another key of 'north'"):
            install(office.folder / "north", response.text, "north.json")
        assert not (office.folder / "north" / "kit.json").exists()
        return
    monkeypatch.setattr(key_request, "_matching_key", lambda folder, *_: folder / "key.pem")
    install(office.folder / "north", response.text, "north.json")
    stolen = key_request.read_private_key(impostor / "key.pem").public_key()
    assert Kit(office.folder / "north").members()["north"].key == certificates.public_hex(stolen), "the attack succeeds"


def test_responses_that_do_not_belong_to_the_kit_are_refused(office: Office, federation: Build) -> None:
    office.admit(COORDINATOR, "north")
    office.request("south")
    response = office.sign("south")["south"]
    changed = json.loads(response)
    changed["kit"]["parent"]["addresses"] = ["mallory.example.org:443"]
    with pytest.raises(UserError, match="is not signed by the authority that it names"):
        install(office.folder / "south", json.dumps(changed), "south.json")
    with pytest.raises(UserError, match="and not from 0000"):
        install(office.folder / "south", response, "south.json", authority="0000 0000")
    done = install(office.folder / "south", response, "south.json", office.authority.fingerprint.upper())
    assert (done.node, done.first) == ("south", True)
    other = Office(federation(), office.folder / "other")
    shutil.copytree(office.folder / "south", other.folder / "south")
    other.request("south")
    with pytest.raises(UserError, match="comes from another authority"):
        install(other.folder / "south", other.sign("south")["south"], "south.json")
    key = key_request.read_private_key(office.folder / "north" / "key.pem")
    office.authority.publish({})  # north's key becomes free
    [for_east] = office.authority.sign([parse_request(signed_request(key, "east", "small"), "x")], 30)
    with pytest.raises(UserError, match=r"is for 'east' in 'small', and .*kit.json for 'north'"):
        install(office.folder / "north", for_east.text, "east.json")


@pytest.mark.parametrize(("days", "sentence"), [(-1 / 1440, "the certificate is valid from"), (30.0, "")])
def test_an_expired_certificate_is_not_installed(office: Office, days: float, sentence: str) -> None:
    office.request("north")
    response = office.sign("north", days=days)["north"]
    if not sentence:
        assert install(office.folder / "north", response, "x").node == "north"
        return
    with pytest.raises(UserError, match=sentence):
        install(office.folder / "north", response, "x")


def test_a_certificate_that_is_not_valid_yet_is_not_installed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.request("north")
    ahead = datetime.now(UTC) + timedelta(days=2)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return ahead

    monkeypatch.setattr(certificates, "datetime", Ahead)  # the authority's clock is two days ahead
    response = office.sign("north")["north"]
    with pytest.raises(UserError, match="check the clock"):
        install(office.folder / "north", response, "x")


def test_an_old_response_does_not_bring_back_an_old_list(office: Office) -> None:
    office.admit(COORDINATOR, "north")
    office.request("north")
    old = office.sign("north")["north"]
    install(office.folder / "north", old, "x")
    authority.revoke(office.authority.folder, COORDINATOR)
    kit = Kit(office.folder / "north")
    assert kit.list.offer(office.authority.current().text)
    with pytest.raises(UserError, match="its list of members is refused: it has serial number 2"):
        install(office.folder / "north", old, "x")
    assert not kit.trusts(COORDINATOR)


def test_the_commands(office: Office, tmp_path: Path) -> None:
    place = tmp_path / "kit"
    made = json.loads(
        ok("kit", "request", "--name", "north", "--federation", "small", "--out", str(place), "--format", "json")
    )
    folder, out = str(office.authority.folder), str(tmp_path / "signed")
    signed = ok("kit", "sign", folder, made["request"], "--out", out, "--yes")
    assert made["fingerprint"] in signed
    assert "serial number 1" in signed
    shown = ok("kit", "install", str(place), f"{out}/north.json")
    assert office.authority.fingerprint in shown, "the member compares it"
    table = ok("kit", "show", folder)
    assert "list 1 of 20" in table
    assert made["fingerprint"] in table
    assert "not a member yet" in table
    assert "hansa approve FED.yaml --kit" in shown, "what to do next"
    assert made["fingerprint"] in (own := ok("kit", "show", str(place)))
    assert "is valid until 20" in own
