"""Startup kits: what is in them, who may do what with them, how they end."""

import json
import os
import stat

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
from hansa.deploy.network.subjects import Subjects, token
from tests.deploy.conftest import make_kits


def test_every_node_of_a_tree_gets_a_kit_of_its_own(federation, tmp_path):
    flat = federation()
    region = Node(silos={n: flat.silos[n] for n in ("north", "south")}, rounds=2)
    tree = flat.model_copy(update={"silos": {"west": region, "east": flat.silos["east"]}})
    kits = make_kits(tree, tmp_path / "kits")
    kinds = {folder.name: Kit(folder).card.kind for folder in kits.iterdir() if folder.name != "authority"}
    assert kinds == {"coordinator": "coordinator", "west": "region", "north": "silo", "south": "silo", "east": "silo"}
    west, north = Kit(kits / "west").card, Kit(kits / "north").card
    assert (west.parent.node, west.children, west.rounds) == (COORDINATOR, ("north", "south"), 2)
    assert north.parent == west.serves
    assert [source.train for source in north.sources] == [""], "where its data lies is a silo's own affair"
    for name in kinds:
        assert stat.S_IMODE((kits / name / "key.pem").stat().st_mode) == 0o600
    keys = {name: Kit(kits / name).members()[name].key for name in kinds}
    assert len(set(keys.values())) == len(keys), "every member is pinned in every kit, each with its own key"


def test_a_child_may_use_its_own_letter_boxes_and_nothing_else(federation, tmp_path):
    kits = make_kits(federation(), tmp_path / "kits")
    rules = json.loads(authorization(Kit(kits / COORDINATOR)).removeprefix("authorization "))
    [north] = [user["permissions"] for user in rules["users"] if user["user"].startswith("north.")]
    for words in (*north["publish"]["allow"], *north["subscribe"]["allow"]):
        assert "north" in words.split(".")[-1] or words.endswith(".north.>")
    assert not any("south" in words for words in (*north["publish"]["allow"], *north["subscribe"]["allow"]))


def test_names_become_words_of_subjects_without_clashes():
    names = ["north", "São Paulo", "S-o Paulo", "a b", "a-b", "a.b", "東京", "大阪"]
    words = [token(name) for name in names]
    assert len(set(words)) == len(names)
    assert all(set(word) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") for word in words)
    assert "*" not in Subjects("f", "p").request("*")


def test_renewing_keeps_the_key_and_revoking_ends_it(federation, tmp_path):
    kits = make_kits(federation(), tmp_path / "kits")
    key = Kit(kits / "north").members()["north"].key
    assert authority.renew(kits, "north", 30) == 2
    assert Kit(kits / COORDINATOR).members()["north"].generations == (1, 2)
    assert Kit(kits / "north").members()["north"].key == key
    authority.revoke(kits, "north")
    assert Kit(kits / COORDINATOR).members()["north"].generations == ()
    assert "north." not in (kits / COORDINATOR / "authorization.conf").read_text()
    assert [line["state"] for line in authority.show(kits) if line["node"] == "north"] == ["revoked"]
    assert authority.renew(kits, "north", 30) == 3
    assert Kit(kits / COORDINATOR).members()["north"].generations == (3,)
    assert Kit(kits / COORDINATOR).members()["north"].key != key, "a revoked key does not come back"


def test_certificates_say_who_and_are_signed_by_the_authority(federation, tmp_path):
    kits = make_kits(federation(), tmp_path / "kits")
    certificate = x509.load_pem_x509_certificate((kits / "north" / "cert.pem").read_bytes())
    certificate.verify_directly_issued_by(authority.Authority(kits / "authority").certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.RFC822Name) == ["north.1@small.hansa"]
    assert names.get_values_for_type(x509.DNSName) == [], "a silo's certificate is no server's"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"addresses": {"west": "a:1"}}, "--address names 'west', which serves nobody"),
        ({"addresses": {COORDINATOR: "nonsense"}}, "write it as HOST:PORT"),
        ({"name": "coordinator"}, "give it another name"),
        ({"taken": True}, "is not empty"),
    ],
)
def test_kits_that_make_no_sense_are_refused(federation, tmp_path, change, sentence):
    settings = federation()
    if "name" in change:
        settings = settings.model_copy(update={"silos": {change["name"]: settings.silos["north"]}})
    if "taken" in change:
        (tmp_path / "kits").mkdir()
        (tmp_path / "kits" / "something").touch()
    with pytest.raises(UserError, match=sentence):
        authority.create(settings, tmp_path / "kits", change.get("addresses", {}), 30)


def test_a_folder_that_is_no_kit_is_refused(federation, tmp_path):
    with pytest.raises(UserError, match="is no startup kit"):
        Kit(tmp_path)
    kits = make_kits(federation(), tmp_path / "kits")
    file = kits / "north" / "kit.json"
    file.write_text(file.read_text().replace(f'"version": {VERSION}', '"version": 9'))
    with pytest.raises(UserError, match="kit of version 9"):
        Kit(kits / "north")


def test_the_list_of_members_is_the_authoritys_alone(federation, tmp_path):
    """Whoever coordinates hands it on; a name, a key or a generation that the authority did not write is refused."""
    kits, foreign = make_kits(federation(), tmp_path / "kits"), make_kits(federation(), tmp_path / "foreign")
    file = kits / "north" / "members.json"
    good = json.loads(file.read_text())
    stranger = {**good["members"], "stranger": good["members"]["south"]}
    again = {**good["members"], "east": {**good["members"]["east"], "generations": [1, 2]}}
    for forged in ({**good, "members": stranger}, {**good, "members": again}, good["members"], []):
        file.write_text(json.dumps(forged))
        with pytest.raises(
            UserError, match=r"members.json cannot be used \((the federation's authority has not|it is no)"
        ):
            Kit(kits / "north")
    file.write_text((foreign / "north" / "members.json").read_text())
    with pytest.raises(UserError, match="has not signed it"):
        Kit(kits / "north")
    file.write_text(json.dumps(good))
    assert set(Kit(kits / "north").members()) == {COORDINATOR, *federation().silos}


def test_a_list_of_members_that_is_damaged_meanwhile_leaves_the_one_before(federation, tmp_path, caplog):
    kits = make_kits(federation(), tmp_path / "kits")
    kit, file = Kit(kits / "north"), kits / "north" / "members.json"
    before, whole = kit.members(), file.read_bytes()
    for damage in (whole[:100], b"", b"\xff\xfe"):
        file.write_bytes(damage)
        os.utime(file, ns=(0, len(damage)))
        assert kit.members() == before
    file.unlink()
    assert kit.members() == before
    assert "whoever was a member before is one" in caplog.text
    with pytest.raises(UserError, match=r"members.json cannot be used"):
        Kit(kits / "north")
    authority.revoke(kits, "south")
    assert kit.members()["south"].generations == (), "a whole one counts again"


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff"])
def test_a_key_that_is_damaged_is_said_so(federation, tmp_path, damage):
    kits = make_kits(federation(), tmp_path / "kits")
    (kits / "north" / "key.pem").write_bytes(damage)
    with pytest.raises(UserError, match=r"key.pem cannot be used \(.*; ask for a new kit"):
        Agent(Kit(kits / "north"), tmp_path / "home", None, lambda text: None)


def test_the_command_line_makes_kits(federation, tmp_path, monkeypatch, capsys):
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
