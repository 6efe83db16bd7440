"""Secure aggregation between organisations: silos stand for what they say, and believe members of the federation alone.

A server that makes up silos, or keys for real ones, could hide one silo's update among updates that it knows. So each
silo signs what it says before a round (veil.py: `Announcement`) with the key of its kit, together with everything that
its work depends on: the run, the settings, the common start, the round, the model. Whoever is shown a list checks every
name on it against its own members.json, which the federation's authority has signed: a list with a stranger, a forged
or borrowed key, or a silo that was told something else, is refused as a whole, with the reason. So an honest server
checks what silos say before it puts them on a list (`VerifiedLink`): one that signs nonsense costs itself its place,
and no more.
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
from hansa.deploy.kit import Kit
from hansa.privacy.secure_aggregation.announcement import Announcement
from hansa.privacy.secure_aggregation.protocol import Refused

PURPOSE = "hansa secure aggregation 1"  # a signature for this is good for nothing else


@dataclass
class KitSigner:
    """Implements `veil.Vouching` for a kit, in the run whose ``folder`` this is, under these ``settings``."""

    kit: Kit
    folder: Path
    settings: bytes
    run: str = ""  # its number, where the folder is not named after it

    def sign(self, round: int, said: Announcement) -> str:
        return self.kit.key.sign(self._statement(round, self.kit.name, said)).hex()

    def check(self, round: int, roster: Mapping[NodeId, Announcement]) -> None:
        if len(roster) < MIN_MASKED_COHORT:
            raise Refused(f"{len(roster)} silos are on the list, and at least {MIN_MASKED_COHORT} must hide in the sum")
        for node, said in roster.items():
            self._check(round, node, said)

    def _check(self, round: int, node: NodeId, said: Announcement) -> None:
        members = self.kit.members()
        member = members.get(node)
        if member is None or member.kind != "silo" or member.parent != members[self.kit.name].parent:
            raise Refused(f"'{node}' is on the list, and is no silo beside this one")
        if not member.generations:
            raise Refused(f"'{node}' is on the list, and was revoked")
        self.verify(round, node, said)

    def verify(self, round: int, node: NodeId, said: Announcement) -> None:
        """That a member has signed what it is said to have said."""
        try:
            self.kit.public(node).verify(bytes.fromhex(said.signature), self._statement(round, node, said))
        except (InvalidSignature, ValueError):
            raise Refused(
                f"what '{node}' is said to have said is not signed by it for this round, with the settings and the "
                "common start that this silo was given"
            ) from None

    def _statement(self, round: int, node: NodeId, said: Announcement) -> bytes:
        words = [PURPOSE, self._premises, round, node, said.keys.seal, said.keys.mask, said.samples, said.model]
        return json.dumps(words).encode()

    @cached_property
    def _premises(self) -> str:
        """Federation, run, settings and common start: a silo that was given others works on something else."""
        files = sorted(file for file in (self.folder / "start").iterdir() if file.is_file())
        start = [[file.name, sha256(file.read_bytes()).hexdigest()] for file in files]
        given = [self.kit.card.federation, self.run or self.folder.name, sha256(self.settings).hexdigest(), start]
        return sha256(json.dumps(given).encode()).hexdigest()


class VerifiedLink:
    """A server's link: a silo that does not stand for what it says of itself before a round is lost there and then. The
    others would refuse every list that it is on."""

    def __init__(self, link: Link, signer: KitSigner) -> None:
        self._link, self._signer, self.size, self.remote = link, signer, link.size, link.remote

    def ask(self, asks: Mapping[NodeId, Request], until: float | None) -> Iterator[Answer]:
        for answer in self._link.ask(asks, until):
            request, reply = asks[answer.node], answer.reply
            if isinstance(request, AdvertiseKeys) and isinstance(reply, AdvertisedKeys):
                try:
                    self._signer.verify(request.round, answer.node, Announcement.heard(reply))
                except Refused as why:
                    answer = replace(answer, reply=Failure(str(why)))
            yield answer
