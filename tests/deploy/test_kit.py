"""Startup kits: their content, their permissions, renewal and revocation."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from hansa.cli.main import main
from hansa.config.file import dump
from hansa.config.nodes import Node
from hansa.core.errors import UserError
from hansa.deploy import authority
from hansa.deploy.agent import Agent
from hansa.deploy.kit import COORDINATOR, VERSION, Kit
from hansa.deploy.nats_config import authorization
from hansa.deploy.network.nkey import nkey
from hansa.deploy.network.subjects import Subjects, token
from tests.conftest import Build
from tests.deploy.conftest import NoService, make_kits


def test_every_node_of_a_tree_gets_a_kit_of_its_own(federation: Build, tmp_path: Path) -> None:
    flat = federation()
    region = Node(silos={n: flat.silos[n] for n in ("north", "south")}, rounds=2)
    tree = flat.model_copy(update={"silos": {"west": region, "east": flat.silos["east"]}})
    kits = make_kits(tree, tmp_path / "kits")
    kinds = {folder.name: Kit(folder).info.kind for folder in kits.iterdir() if folder.name != "authority"}
    assert kinds == {"coordinator": "coordinator", "west": "region", "north": "silo", "south": "silo", "east": "silo"}
    west, north = Kit(kits / "west").info, Kit(kits / "north").info
    assert west.parent is not None
    assert (west.parent.node, Kit(kits / "west").children, west.rounds) == (COORDINATOR, ("north", "south"), 2)
    assert north.parent == west.serves
    assert [source.train for source in north.sources] == [""], "a kit holds no paths of the silo's data"
    for name in kinds:
        assert stat.S_IMODE((kits / name / "key.pem").stat().st_mode) == 0o600
    keys = {name: Kit(kits / name).members()[name].key for name in kinds}
    assert len(set(keys.values())) == len(keys), "every kit lists the key of every member"


def test_a_child_may_use_only_its_own_subjects(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    kit = Kit(kits / COORDINATOR)
    rules = json.loads(authorization("small", kit.members(), [COORDINATOR]).removeprefix("authorization "))
    [north] = [user["permissions"] for user in rules["users"] if user["nkey"] == nkey_of(kit, "north")]
    for words in (*north["publish"]["allow"], *north["subscribe"]["allow"]):
        *_, last, after = words.split(".")
        assert "north" in after or (last == "north" and after in ("*", ">")), "one's own name, below it any run"
    assert not any("south" in words for words in (*north["publish"]["allow"], *north["subscribe"]["allow"]))


def nkey_of(kit: Kit, name: str) -> str:
    return nkey(bytes.fromhex(kit.members()[name].key))


def test_addresses_have_port_443_unless_they_name_another(federation: Build, tmp_path: Path) -> None:
    place = "hansa.example.org,backup.example.org:8443"
    authority.create(federation(), tmp_path / "kits", {COORDINATOR: place}, 30, "nats.example:443")
    north = Kit(tmp_path / "kits" / "north")
    assert north.parent.all() == [("hansa.example.org", 443), ("backup.example.org", 8443)]
    pem = (tmp_path / "kits" / COORDINATOR / "cert.pem").read_bytes()
    names = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == ["hansa.example.org", "backup.example.org"]


def test_names_become_distinct_tokens_of_subjects() -> None:
    names = ["north", "São Paulo", "S-o Paulo", "a b", "a-b", "a.b", "東京", "大阪"]
    words = [token(name) for name in names]
    assert len(set(words)) == len(names)
    assert all(set(word) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") for word in words)
    assert "*" not in Subjects("f", "p").request("*")


def test_renewal_keeps_the_key_and_revocation_ends_it(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    key = Kit(kits / "north").members()["north"].key
    assert authority.renew(kits, "north", 30) == 2
    assert Kit(kits / COORDINATOR).members()["north"].generations == (1, 2)
    assert Kit(kits / "north").members()["north"].key == key
    assert nkey_of(Kit(kits / COORDINATOR), "north") in (kits / COORDINATOR / "authorization.conf").read_text()
    authority.revoke(kits, "north")
    assert Kit(kits / COORDINATOR).members()["north"].generations == ()
    assert nkey_of(Kit(kits / COORDINATOR), "north") not in (kits / COORDINATOR / "authorization.conf").read_text()
    assert [line["state"] for line in authority.show(kits) if line["node"] == "north"] == ["revoked"]
    assert authority.renew(kits, "north", 30) == 3
    assert Kit(kits / COORDINATOR).members()["north"].generations == (3,)
    assert Kit(kits / COORDINATOR).members()["north"].key != key, "a revoked key does not come back"


def test_certificates_name_the_member_and_are_signed_by_the_authority(federation: Build, tmp_path: Path) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    certificate = x509.load_pem_x509_certificate((kits / "north" / "cert.pem").read_bytes())
    certificate.verify_directly_issued_by(authority.Authority(kits / "authority").certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.RFC822Name) == ["north.1@small.hansa"]
    assert names.get_values_for_type(x509.DNSName) == [], "a silo's certificate is not for a server"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"addresses": {"west": "a:1"}}, "--address names 'west', which has no children"),
        ({"addresses": {COORDINATOR: "a:4222+4223"}}, "write it as HOST or HOST:PORT"),
        ({"name": "coordinator"}, "give it another name"),
        ({"taken": True}, "is not empty"),
    ],
)
def test_invalid_options_of_kit_create_are_refused(
    federation: Build, tmp_path: Path, change: Any, sentence: Any
) -> None:
    settings = federation()
    if "name" in change:
        settings = settings.model_copy(update={"silos": {change["name"]: settings.silos["north"]}})
    if "taken" in change:
        (tmp_path / "kits").mkdir()
        (tmp_path / "kits" / "something").touch()
    with pytest.raises(UserError, match=sentence):
        authority.create(settings, tmp_path / "kits", change.get("addresses", {}), 30)


def test_a_folder_that_is_not_a_kit_is_refused(federation: Build, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a startup kit"):
        Kit(tmp_path)
    kits = make_kits(federation(), tmp_path / "kits")
    file = kits / "north" / "kit.json"
    file.write_text(file.read_text().replace(f'"version": {VERSION}', '"version": 9'))
    with pytest.raises(UserError, match="kit of version 9"):
        Kit(kits / "north")


def test_a_list_of_members_must_be_signed_by_the_authority(federation: Build, tmp_path: Path) -> None:
    """A name, a key or a generation that the authority did not sign is refused."""
    kits, foreign = make_kits(federation(), tmp_path / "kits"), make_kits(federation(), tmp_path / "foreign")
    file = kits / "north" / "members.json"
    good = json.loads(file.read_text())
    unknown = {**good["members"], "unknown": good["members"]["south"]}
    again = {**good["members"], "east": {**good["members"]["east"], "generations": [1, 2]}}
    forgeries: list[Any] = [{**good, "members": unknown}, {**good, "members": again}, good["members"], []]
    for forged in forgeries:
        file.write_text(json.dumps(forged))
        with pytest.raises(
            UserError,
            match=r"members.json cannot be used \((it is not signed by the federation's authority|it is not a list)",
        ):
            Kit(kits / "north")
    file.write_text((foreign / "north" / "members.json").read_text())
    with pytest.raises(UserError, match="it is not signed by the federation's authority"):
        Kit(kits / "north")
    file.write_text(json.dumps(good))
    assert set(Kit(kits / "north").members()) == {COORDINATOR, *federation().silos}


def test_a_damaged_list_of_members_leaves_the_previous_one_in_use(
    federation: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    kit, file = Kit(kits / "north"), kits / "north" / "members.json"
    before, whole = kit.members(), file.read_bytes()
    for damage in (whole[:100], b"", b"\xff\xfe"):
        file.write_bytes(damage)
        os.utime(file, ns=(0, len(damage)))
        assert kit.members() == before
    file.unlink()
    assert kit.members() == before
    assert "the newest list of members stays in use" in caplog.text
    assert Kit(kits / "north").members() == before, "a restarted node uses the newest list that it has seen"
    (kits / "north" / "members.newest.json").unlink()
    with pytest.raises(UserError, match=r"members.json cannot be used"):
        Kit(kits / "north")
    authority.revoke(kits, "south")
    assert kit.members()["south"].generations == (), "a valid list is used again"


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff"])
def test_a_damaged_key_is_reported(federation: Build, tmp_path: Path, damage: Any) -> None:
    kits = make_kits(federation(), tmp_path / "kits")
    (kits / "north" / "key.pem").write_bytes(damage)
    with pytest.raises(UserError, match=r"key.pem cannot be used \(.*; ask for a new kit"):
        Agent(Kit(kits / "north"), tmp_path / "home", NoService(), lambda text: None)


def test_kit_create_on_the_command_line(
    federation: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fed.yaml").write_text(dump(federation()), encoding="utf-8")
    command = [
        "hansa",
        "kit",
        "create",
        str(tmp_path / "fed.yaml"),
        "--out",
        str(tmp_path / "kits"),
        "--format",
        "json",
    ]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
    assert len(json.loads(capsys.readouterr().out)["kits"]) == 4
    with pytest.raises(SystemExit) as again:
        main()
    assert again.value.code == 2
    assert "is not empty" in capsys.readouterr().err
