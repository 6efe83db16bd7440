"""TODO docstring."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from hansa.core.messages import (
    AdvertisedKeys,
    NodeId,
)
from hansa.core.method import Weighting
from hansa.core.tensors import Tensors
from hansa.methods.fedavg import BySamples
from hansa.privacy.secure_aggregation.protocol import Keys, Refused

FILE = "veil.json"
MOST_SAMPLES = 10**12
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
            raise Refused("a silo's keys are no keys")
        if not re.fullmatch("[0-9]{1,13}", words[2]) or not 0 < int(words[2]) <= MOST_SAMPLES:
            raise Refused("a silo claims a number of samples that none has")
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
    assert isinstance(weighting, BySamples), "checked when the method was built"
    weights = {name: weighting.of(said.samples) for name, said in sorted(read(roster).items())}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def digest_of(model: Tensors) -> str:
    values: Any = model.flat.contiguous().numpy()
    found = sha256(model.layout.text.encode())
    found.update(values)
    return found.hexdigest()
