"""Announcements: what each silo states before a round of secure aggregation, and what all silos derive from them.

A silo announces its public keys, its number of samples and the digest of the model that the round starts from. The
roster lists the announcements of all silos. Every silo on it reads the whole roster and computes its own weight from
it: the server can neither choose weights nor send two silos different models.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any, Protocol

from hansa.config.sections import MAX_MASKED_SHARE
from hansa.core.errors import printable
from hansa.core.messages import AdvertisedKeys, Evaluate, NodeId, Update
from hansa.core.method import Weighting
from hansa.core.tensors import NOTHING, Tensors
from hansa.privacy.secure_aggregation.limits import capped
from hansa.privacy.secure_aggregation.protocol import Keys, Refused

SECRETS_FILE = "secure_aggregation.json"
MAX_SAMPLES = 10**12
Roster = Mapping[NodeId, tuple[str, ...]]  # silo → its announcement as messages carry it: `Announcement.words`


@dataclass(frozen=True)
class Announcement:
    """What a silo states before a round: its keys, its number of samples and the digest of the round's model."""

    keys: Keys
    samples: int
    model: str
    signature: str = ""  # between organisations: the silo's signature of the above

    @staticmethod
    def parse(words: tuple[str, ...]) -> "Announcement":
        """Return the announcement that a roster carries as ``words``; raises `Refused` if they are malformed."""
        if len(words) != 5 or not all(re.fullmatch("[0-9a-f]{64}", key) for key in (words[0], words[1], words[3])):
            raise Refused("an announcement has malformed keys")
        if not re.fullmatch("[0-9]{1,13}", words[2]) or not 0 < int(words[2]) <= MAX_SAMPLES:
            raise Refused(
                f"an announcement has {printable(words[2], 20)} samples; the number must lie between 1 and "
                f"{MAX_SAMPLES:g}"
            )
        return Announcement(Keys(words[0], words[1]), int(words[2]), words[3], words[4])

    @staticmethod
    def from_reply(reply: AdvertisedKeys) -> "Announcement":
        """Return the announcement in a silo's reply; raises `Refused` if it is malformed."""
        return Announcement.parse((reply.seal, reply.mask, str(reply.samples), reply.model, reply.signature))

    @property
    def words(self) -> tuple[str, ...]:
        """The announcement as messages carry it."""
        return self.keys.seal, self.keys.mask, str(self.samples), self.model, self.signature


class AnnouncementSigner(Protocol):
    """Between organisations: signs a silo's own announcements and verifies those of the other silos."""

    def sign(self, round: int, announcement: Announcement, /) -> str:
        """The silo's signature of its announcement."""

    def check(self, round: int, roster: Mapping[NodeId, Announcement], /) -> None:
        """Raise `Refused` unless every announcement on the roster is signed by the silo that it names."""


def read_roster(roster: Roster) -> dict[NodeId, Announcement]:
    """Silo → its announcement; raises `Refused` if one is malformed."""
    return {name: Announcement.parse(tuple(words)) for name, words in roster.items()}


def roster_keys(roster: Roster) -> dict[NodeId, Keys]:
    """Silo → its public keys."""
    return {name: announcement.keys for name, announcement in read_roster(roster).items()}


def mask_label(federation: str, round: int, roster: Roster, threshold: int) -> str:
    """The label that masks and encrypted shares are derived with.

    It contains a digest of the roster: masks cancel only among silos that received the same roster.
    """
    shown = [federation, round, threshold, sorted((name, *words) for name, words in roster.items())]
    return f"{federation} {round} {sha256(json.dumps(shown).encode()).hexdigest()}"


def roster_weights(roster: Roster, weighting: Weighting, cap: float = MAX_MASKED_SHARE) -> dict[NodeId, float]:
    """Silo → its weight in the sum, at most ``cap``; every holder of the roster computes the same weights.

    Raises `Refused` for weights that are no positive numbers, such as those of a huge temperature.
    """
    assert weighting.known_before_training, "checked when the method was built"
    announced = sorted(read_roster(roster).items())
    try:
        weights = {name: weighting.weight(Update(NOTHING, one.samples, 0, 0, 0.0, 0.0)) for name, one in announced}
    except OverflowError:
        weights = {}
    if not weights or not isfinite(sum(weights.values())) or min(weights.values()) < 0.0 or not any(weights.values()):
        raise Refused("the weights of the silos on the roster are no finite positive numbers; lower the temperature")
    return capped(weights, cap)


def evaluation_digest(request: Evaluate) -> str:
    """SHA-256 of what an evaluation asks for, its model included: silos with another question are not summed."""
    asked = [model_digest(request.model), request.split, request.share, request.parts, request.decode]
    return sha256(json.dumps(asked).encode()).hexdigest()


def scores_digest(request: Evaluate) -> str:
    """SHA-256 of what a silo's scores follow from, under which it remembers their sums.

    Another share of the data, or parts of it, is no other question: the sums are almost the same.
    """
    return sha256(json.dumps(["scores", model_digest(request.model), request.split]).encode()).hexdigest()


def model_digest(model: Tensors) -> str:
    """SHA-256 of a model's layout and values, in hexadecimal."""
    values: Any = model.flat.contiguous().numpy()
    found = sha256(model.layout.text.encode())
    found.update(values)
    return found.hexdigest()
