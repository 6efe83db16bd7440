"""Signed announcements for secure aggregation between organisations.

A server that invents silos, or keys for real silos, could hide one silo's update among updates that it knows. Each silo
therefore signs its announcement before a round (`hansa.privacy.secure_aggregation.announcement`) with the key of its
kit, together with everything that its work depends on: the run, the settings, the initial model, the round and the
model. A silo that receives a roster checks every name on it against its own members.json, which the federation's
authority has signed. It refuses a roster with an unknown node, a forged or foreign key, or a silo that was sent
something else. An honest server checks announcements before it puts silos on a roster (`VerifiedLink`), so a silo with
an invalid signature excludes only itself.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature

from hansa.config.sections import MIN_MASKED_COHORT
from hansa.core.link import Answer, Link
from hansa.core.messages import AdvertisedKeys, AdvertiseKeys, Failure, NodeId, Request
from hansa.deploy.kit import COORDINATOR, Kit
from hansa.deploy.membership import Member
from hansa.privacy.secure_aggregation.announcement import Announcement
from hansa.privacy.secure_aggregation.protocol import Refused

SURVEY = "hansa survey 1"
PURPOSE = "hansa secure aggregation 1"  # part of every signed statement, so that a signature fits no other purpose


@dataclass
class KitSigner:
    """Signs and checks announcements with a kit's key, for the run in ``folder`` under ``settings``.

    ``run``: the id of the run, if the folder does not have it as its name.
    """

    kit: Kit
    folder: Path
    settings: bytes
    run: str = ""

    def sign(self, round: int, announcement: Announcement) -> str:
        """The node's signature of its own announcement, in hexadecimal."""
        return self.kit.key.sign(self._statement(round, self.kit.name, announcement)).hex()

    def check(self, round: int, roster: Mapping[NodeId, Announcement]) -> None:
        """Raise `Refused` if the roster is too short, or a node on it is not a sibling that signed its announcement."""
        if len(roster) < MIN_MASKED_COHORT:
            raise Refused(f"the roster has {len(roster)} silos; secure aggregation needs at least {MIN_MASKED_COHORT}")
        members = self.kit.members()
        parent = members[self.kit.name].parent
        for node, announcement in roster.items():
            self._check_member(members, node, parent)
            self._verify(round, node, announcement)
        if len({members[node].key for node in roster}) < len(roster):
            raise Refused("two silos on the roster have the same key, so they count as one; nothing is sent")

    def verify(self, round: int, node: NodeId, announcement: Announcement) -> None:
        """Raise `Refused` if a silo below this node has not signed the announcement for this round."""
        self._check_member(self.kit.members(), node, self.kit.name)
        self._verify(round, node, announcement)

    @staticmethod
    def _check_member(members: Mapping[str, Member], node: NodeId, parent: str | None) -> None:
        """Only a silo or region that the authority lists, below the same parent, counts towards a cohort."""
        member = members.get(node)
        if member is None or member.kind == COORDINATOR or member.parent != parent:
            raise Refused(f"the roster has '{node}', which is not a silo or region of the same parent")
        if not member.generations:
            raise Refused(f"the roster has '{node}', which was revoked")

    def _verify(self, round: int, node: NodeId, announcement: Announcement) -> None:
        try:
            statement = self._statement(round, node, announcement)
            self.kit.public_key(node).verify(bytes.fromhex(announcement.signature), statement)
        except (InvalidSignature, ValueError):
            raise Refused(
                f"the announcement of '{node}' is not signed by it for this round, with the same settings and the same "
                "initial model"
            ) from None

    def _statement(self, round: int, node: NodeId, announcement: Announcement) -> bytes:
        """The bytes that are signed."""
        keys, samples, model = announcement.keys, announcement.samples, announcement.model
        return json.dumps([PURPOSE, self._context, round, node, keys.seal, keys.mask, samples, model]).encode()

    def sign_survey(self, public: str) -> str:
        """The node's signature of its public key for a survey, in hexadecimal."""
        return self.kit.key.sign(self._survey_statement(self.kit.name, public)).hex()

    def check_survey(self, roster: Mapping[NodeId, tuple[str, ...]]) -> None:
        """Raise `Refused` if a name on a survey's roster is not a silo of the federation that signed its key."""
        members = self.kit.members()
        for node, words in roster.items():
            member = members.get(node)
            if member is None or member.kind != "silo" or not member.generations:
                raise Refused(f"the roster has '{node}', which is not a silo of the federation")
            try:
                public, signature = words
                self.kit.public_key(node).verify(bytes.fromhex(signature), self._survey_statement(node, public))
            except (InvalidSignature, ValueError):
                raise Refused(f"the key of '{node}' is not signed by it for this survey") from None

    def _survey_statement(self, node: NodeId, public: str) -> bytes:
        """The bytes that are signed. A key of an earlier survey is of no use to a coordinator that repeats it."""
        settings = sha256(self.settings).hexdigest()
        return json.dumps([SURVEY, self.kit.info.federation, settings, node, public]).encode()

    @cached_property
    def _context(self) -> str:
        """A digest of the federation, the run, the settings and the initial model."""
        files = sorted(file for file in (self.folder / "start").iterdir() if file.is_file())
        start = [[file.name, sha256(file.read_bytes()).hexdigest()] for file in files]
        parts = [self.kit.info.federation, self.run or self.folder.name, sha256(self.settings).hexdigest(), start]
        return sha256(json.dumps(parts).encode()).hexdigest()


class VerifiedLink:
    """A server's link on which an announcement with an invalid signature becomes a `Failure`.

    The other silos would refuse every roster with that announcement.
    """

    def __init__(self, link: Link, signer: KitSigner) -> None:
        self._link, self._signer = link, signer
        self.size, self.remote, self.posting = link.size, link.remote, link.posting

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        """Ask as the link below does; check the signatures of announcements."""
        for answer in self._link.ask(asks, until):
            request, reply = asks[answer.node], answer.reply
            if isinstance(request, AdvertiseKeys) and isinstance(reply, AdvertisedKeys):
                try:
                    self._signer.verify(request.round, answer.node, Announcement.from_reply(reply))
                except Refused as error:
                    answer = replace(answer, reply=Failure(str(error)))
            yield answer
