"""The key of a survey's sketches: the silos agree on it through the coordinator, which does not learn it.

    1 offer   each silo makes an X25519 key pair for this survey and returns the public key, signed with its kit
    2 seal    one silo, the leader, draws the key and encrypts it for each silo on the roster (X25519, HKDF, ChaCha20)
    3 open    each silo decrypts the key and computes its sketches with it

Every silo checks the whole roster: a name that its list of members does not have, or a key that the named member has
not signed for this survey, is refused, so that a coordinator cannot put a key of its own onto the roster. A silo opens
one key in one survey. What this does not exclude: a member that gives the key to the coordinator. Then the coordinator
can test texts that it knows against the sketches of all silos.
"""

import json
import secrets as system_random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from hansa.core.seeds import stream
from hansa.core.survey_messages import (
    OfferSurveyKey,
    Roster,
    SealedSurveyKey,
    SealSurveyKey,
    SurveyKeys,
    TakeSurvey,
)
from hansa.data.survey.sketches import KEY_BYTES
from hansa.files import write_file
from hansa.privacy.secure_aggregation.protocol import Refused, agree_key, public_key

FILE = "survey.json"  # in the silo's folder of the run: its private key, and the key that it opened
MIN_SILOS = 2


class SurveySigner(Protocol):
    """Between organisations: signs a silo's own key and verifies those of the other silos."""

    def sign_survey(self, public: str, /) -> str:
        """The silo's signature of its public key."""

    def check_survey(self, roster: Mapping[str, tuple[str, ...]], /) -> None:
        """Raise `Refused` unless every key on the roster is signed by the member that it names."""


@dataclass(frozen=True)
class SurveyKey:
    """A silo's part of the agreement; ``home``: the folder of what is the silo's own in this survey."""

    name: str
    federation: str
    home: Path
    signer: SurveySigner | None = None
    seed: int | None = None  # of a simulation, whose results repeat; between organisations the key is drawn

    def offer(self, request: OfferSurveyKey) -> SurveyKeys:
        """The silo's public key. The private one is written to disk first: the silo may be restarted in between."""
        state = self._read()
        if not state:
            state = {"private": system_random.token_hex(KEY_BYTES)}
            self._write(state)
        public = public_key(state["private"])
        return SurveyKeys({self.name: (public, self.signer.sign_survey(public) if self.signer is not None else "")})

    def seal(self, request: SealSurveyKey) -> SealedSurveyKey:
        """At the leader: a new key, encrypted for every silo on the roster; at other silos nothing."""
        if request.leader != self.name:
            return SealedSurveyKey()
        private, label = self._checked(request.roster), _label(self.federation, request.roster, request.leader)
        key = system_random.token_bytes(KEY_BYTES)
        if self.seed is not None:
            key = stream(self.seed, "survey").bytes(KEY_BYTES)
        sealed = {}
        for name, (public, *_) in request.roster.items():
            cipher = ChaCha20Poly1305(agree_key(private, public, f"{label} {name}"))
            sealed[name] = cipher.encrypt(bytes(12), key, None).hex()  # the cipher's key is used for this message alone
        return SealedSurveyKey(sealed)

    def open(self, request: TakeSurvey) -> bytes:
        """The key of the sketches; raises `Refused` if it was not made for this roster, or another one was opened."""
        private = self._checked(request.roster)
        if request.leader not in request.roster or self.name not in request.sealed:
            raise Refused("the key of the sketches does not come from a silo on the roster")
        label = _label(self.federation, request.roster, request.leader)
        cipher = ChaCha20Poly1305(agree_key(private, request.roster[request.leader][0], f"{label} {self.name}"))
        try:
            key = cipher.decrypt(bytes(12), bytes.fromhex(request.sealed[self.name]), None)
        except (InvalidTag, ValueError):
            raise Refused("the key of the sketches was not encrypted for this silo and this survey") from None
        if len(key) != KEY_BYTES:
            raise Refused("the key of the sketches has another length")
        opened = sha256(key).hexdigest()
        if self._read().get("opened", opened) != opened:
            raise Refused("it has made sketches with another key in this survey")
        self._write(self._read() | {"opened": opened})
        return key

    def _checked(self, roster: Roster) -> str:
        """The silo's private key, once the roster was checked."""
        private = self._read().get("private")
        if private is None or roster.get(self.name, ("",))[0] != public_key(private):
            raise Refused("the roster does not contain this silo's own key")
        if len(roster) < MIN_SILOS or len({words[0] for words in roster.values()}) < len(roster):
            raise Refused(f"the roster has fewer than {MIN_SILOS} different keys")
        if self.signer is not None:
            self.signer.check_survey(roster)
        return private

    def _read(self) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self.home / FILE).read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise Refused(
                f"{FILE} is damaged, so it is not known which key the silo used; start a new survey"
            ) from None
        return found

    def _write(self, state: Mapping[str, str]) -> None:
        write_file(self.home / FILE, json.dumps(state).encode(), 0o600)


def _label(federation: str, roster: Roster, leader: str) -> str:
    """What the encryption is bound to: the federation, the leader and every key on the roster."""
    shown = [federation, leader, sorted((name, words[0]) for name, words in roster.items())]
    return f"hansa survey 1 {sha256(json.dumps(shown).encode()).hexdigest()}"
