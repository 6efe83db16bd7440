"""What a silo announces before a round of secure aggregation, and what all silos compute from the list of
announcements.

A silo announces its keys, its number of samples and the digest of the model it was told. Every silo on the list reads
all of it and computes its own weight: no server chooses weights, nor sends two silos different models.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from hansa.core.messages import (
    AdvertisedKeys,
    NodeId,
    Update,
)
from hansa.core.method import Weighting
from hansa.core.tensors import NOTHING, Tensors
from hansa.privacy.secure_aggregation.protocol import Keys, Refused

FILE = "secure_aggregation.json"
MAX_SAMPLES = 10**12
Roster = Mapping[NodeId, tuple[str, ...]]  # as messages carry it: what every silo said, see `Announcement`


@dataclass(frozen=True)
class Announcement:
    """What a silo says of itself before a round: its keys, its samples, the digest of the model it was told of."""

    keys: Keys
    samples: int
    model: str
    signature: str = ""  # its signature, between organisations

    @staticmethod
    def read(words: tuple[str, ...]) -> "Announcement":
        if len(words) != 5 or not all(re.fullmatch("[0-9a-f]{64}", key) for key in (words[0], words[1], words[3])):
            raise Refused("an announcement has malformed keys")
        if not re.fullmatch("[0-9]{1,13}", words[2]) or not 0 < int(words[2]) <= MAX_SAMPLES:
            raise Refused(f"a silo announces a number of samples that is not between 1 and {MAX_SAMPLES:g}")
        return Announcement(Keys(words[0], words[1]), int(words[2]), words[3], words[4])

    @staticmethod
    def heard(reply: AdvertisedKeys) -> "Announcement":
        return Announcement.read((reply.seal, reply.mask, str(reply.samples), reply.model, reply.signature))

    @property
    def words(self) -> tuple[str, ...]:
        return self.keys.seal, self.keys.mask, str(self.samples), self.model, self.signature


class AnnouncementSigner(Protocol):
    """Between organisations: a silo stands for what it says, and knows whom to believe."""

    def sign(self, round: int, said: Announcement) -> str: ...

    def check(self, round: int, roster: Mapping[NodeId, Announcement]) -> None:
        """`Refused` if somebody on the list is not who it seems."""


def read(roster: Roster) -> dict[NodeId, Announcement]:
    return {name: Announcement.read(tuple(words)) for name, words in roster.items()}


def keys_of(roster: Roster) -> dict[NodeId, Keys]:
    return {name: said.keys for name, said in read(roster).items()}


def label_of(federation: str, round: int, roster: Roster, threshold: int) -> str:
    """What masks and seals are made for: they fit together among silos that were shown the very same list."""
    shown = [federation, round, threshold, sorted((name, *words) for name, words in roster.items())]
    return f"{federation} {round} {sha256(json.dumps(shown).encode()).hexdigest()}"


def weights_of(roster: Roster, weighting: Weighting) -> dict[NodeId, float]:
    """Every silo's share of the sum, as anybody who has the list can tell."""
    assert weighting.known_before_training, "checked when the method was built"
    announced = sorted(read(roster).items())
    weights = {name: weighting.weight(Update(NOTHING, one.samples, 0, 0, 0.0, 0.0)) for name, one in announced}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def digest_of(model: Tensors) -> str:
    values: Any = model.flat.contiguous().numpy()
    found = sha256(model.layout.text.encode())
    found.update(values)
    return found.hexdigest()
