"""Attacks on the cohort of secure aggregation: invented, doubled and revoked members."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.deploy import authority
from hansa.deploy.certificates import public_hex
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.membership import Member, sign_members
from hansa.deploy.signatures import KitSigner
from hansa.privacy.secure_aggregation.announcement import Announcement
from hansa.privacy.secure_aggregation.protocol import Refused, Secrets


class Cohort:
    """Announcements of north, south, east and others, as a coordinator puts them on a roster for north."""

    def __init__(self, kits: Path, folder: Path) -> None:
        self.kits, self.folder = kits, folder
        (folder / "run" / "start").mkdir(parents=True)

    def signer(self, name: str) -> KitSigner:
        return KitSigner(Kit(self.kits / name), self.folder / "run", b"{}")

    def announce(self, name: str, key: Ed25519PrivateKey | None = None) -> Announcement:
        signer = self.signer("north")
        blank = Announcement(Secrets.fresh().keys, 10, "model", "")
        statement = signer._statement(1, name, blank)
        return replace(blank, signature=(key or Kit(self.kits / name).key).sign(statement).hex())

    def check(self, **more: Announcement) -> None:
        roster: Mapping[str, Announcement] = {n: self.announce(n) for n in ("north", "south", "east")} | more
        self.signer("north").check(1, roster)


@pytest.fixture
def cohort(kits: Path, tmp_path: Path) -> Cohort:
    return Cohort(kits, tmp_path)


def listed(cohort: Cohort, name: str, key: Ed25519PrivateKey) -> None:
    """The authority lists a silo with a key."""
    office = authority.Authority(cohort.kits)
    member = Member(key=public_hex(key.public_key()), kind="silo", parent=COORDINATOR, generations=(1,))
    office.publish({**office.members(), name: member})


def test_an_invented_member_does_not_count(cohort: Cohort) -> None:
    """The coordinator invents 'mallory' and signs for it; with the authority's signature the same roster is valid."""
    mallory = Ed25519PrivateKey.generate()
    with pytest.raises(Refused, match="'mallory', which is not a silo or region of the same parent"):
        cohort.check(mallory=cohort.announce("mallory", mallory))
    forged = {**Kit(cohort.kits / "north").members(), "mallory": Member(
        key=public_hex(mallory.public_key()), kind="silo", parent=COORDINATOR, generations=(1,))}  # fmt: skip
    file = cohort.kits / "north" / "members.json"
    before = file.read_bytes()
    file.write_text(sign_members("small", 9, forged, Kit(cohort.kits / COORDINATOR).key))
    with pytest.raises(Refused, match="'mallory', which is not a silo"):
        cohort.check(mallory=cohort.announce("mallory", mallory))
    file.write_bytes(before)
    listed(cohort, "mallory", mallory)
    cohort.check(mallory=cohort.announce("mallory", mallory))


def test_one_key_under_two_names_counts_once(cohort: Cohort) -> None:
    south = Kit(cohort.kits / "south").key
    listed(cohort, "shadow", south)  # an authority that does not look; 'hansa kit sign' refuses it
    with pytest.raises(Refused, match="have the same key"):
        cohort.check(shadow=cohort.announce("shadow", south))
    other = Ed25519PrivateKey.generate()
    listed(cohort, "shadow", other)
    cohort.check(shadow=cohort.announce("shadow", other))


def test_a_revoked_member_does_not_count_at_silo_and_coordinator(cohort: Cohort) -> None:
    coordinator = cohort.signer(COORDINATOR)
    announced = cohort.announce("east")
    cohort.check()
    coordinator.verify(1, "east", announced)
    authority.revoke(cohort.kits, "east")
    with pytest.raises(Refused, match="'east', which was revoked"):
        cohort.check()
    with pytest.raises(Refused, match="'east', which was revoked"):
        coordinator.verify(1, "east", announced)
    with pytest.raises(Refused, match="not a silo"):
        coordinator.verify(1, "mallory", announced)
