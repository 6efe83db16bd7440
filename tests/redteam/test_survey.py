"""Surveys: a coordinator that holds the sketches of a survey tests whether a silo has a document that it knows.

The coordinator has the sketches that left, the roster, the encrypted key, all settings and Hansa's own code. Without
the key it does no better than guessing; the control has the key and finds every document. The coordinator also tries to
get the key: by a roster with a key of its own, by a key that it draws itself, and by lowering the floor.
"""

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.shared import for_members
from hansa.core.messages import Failure, Reply, Request
from hansa.core.survey_messages import (
    OfferSurveyKey,
    Roster,
    SealedSurveyKey,
    SealSurveyKey,
    SurveyKeys,
    SurveyReport,
    TakeSurvey,
)
from hansa.data.survey.sketches import (
    DOCUMENT,
    KEY_BYTES,
    DocumentSketches,
    near_duplicates,
    unpacked,
    vocabulary_sketch,
)
from hansa.deploy.join import SiloService
from hansa.deploy.kit import Kit
from hansa.deploy.policy_enforcer import PolicyEnforcer
from hansa.privacy.secure_aggregation.protocol import public_key
from hansa.privacy.survey.key import SurveyKey
from tests.deploy.conftest import make_kits
from tests.deploy.test_survey import approve

SILOS = ("north", "south", "east")
COMMON = ["fever", "and", "cough"]
KNOWN = 40  # documents that the coordinator knows; the silo holds half of them


def document(number: int) -> str:
    return "fever and cough " + " ".join(f"term{(number * 131 + j * j * 17 + j) % 3000}" for j in range(40))


class Deployed:
    """The silos as their agents open them, with policy and approvals."""

    def __init__(self, folder: Path) -> None:
        silos: dict[str, Any] = {}
        for at, name in enumerate(SILOS):
            numbers = range(KNOWN // 2) if name == "north" else range(1000 * at, 1000 * at + 60)
            rows = [{"text": document(n)} for n in (*numbers, *range(1000 * at + 100, 1000 * at + 140))]
            file = folder / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            silos[name] = {"train": str(file)}
        self.federation: Federation = parse({"name": "surveyed", "silos": silos, "survey": True})
        kits = make_kits(self.federation, folder / "kits")
        approve(self.federation, kits, folder / "homes", list(SILOS))
        settings = for_members(self.federation.as_survey())
        self.answers = {}
        for name in SILOS:
            kit = Kit(kits / name)
            enforcer = PolicyEnforcer.load(kit, None, folder / "homes" / name)
            service = SiloService(kit, self.federation.silos[name].sources, (), enforcer)
            self.answers[name] = service.open_run(folder / "homes" / name / "runs" / "run1", settings)

    def ask(self, name: str, request: Request) -> Reply:
        return self.answers[name](request)

    def roster(self) -> Roster:
        found: Roster = {}
        for name in SILOS:
            reply = self.ask(name, OfferSurveyKey())
            assert isinstance(reply, SurveyKeys)
            found |= reply.keys
        return found

    def agreed(self) -> TakeSurvey:
        roster = self.roster()
        sealed = self.ask("north", SealSurveyKey(roster, "north"))
        assert isinstance(sealed, SealedSurveyKey)
        return TakeSurvey(20, False, roster, "north", sealed.sealed)


def members_found(report: SurveyReport, key: bytes, documents: range) -> int:
    """The attack: how many known documents have a sketch, under a key, that is among those of the silo."""
    made = DocumentSketches(key)
    for number in documents:
        made.add(document(number), "")
    return near_duplicates(made.sketches(KNOWN)[0], unpacked(report.sketches["north"].documents, DOCUMENT), 0.5)


@pytest.fixture
def silos(tmp_path: Path) -> Deployed:
    return Deployed(tmp_path)


def test_the_coordinator_cannot_test_a_known_document(silos: Deployed, tmp_path: Path) -> None:
    request = silos.agreed()
    report = silos.ask("north", request)
    assert isinstance(report, SurveyReport)
    assert report.sketches["north"].count == 60
    words = unpacked(report.sketches["north"].vocabulary, "uint64")
    guesses = [b"", bytes(KEY_BYTES), *(secrets.token_bytes(KEY_BYTES) for _ in range(5))]
    guesses += [bytes.fromhex(request.sealed["north"])[:KEY_BYTES], bytes.fromhex(request.roster["north"][0])]
    for guess in guesses:
        assert members_found(report, guess, range(KNOWN // 2)) == 0, "held documents"
        assert not (vocabulary_sketch(guess, COMMON) == words).any(), "words that all documents have"
    # The control: a member that gives its key to the coordinator. It finds all that the silo holds, and no others.
    leaked = _leaked_key(silos, request, tmp_path)
    assert members_found(report, leaked, range(KNOWN // 2)) == KNOWN // 2
    assert members_found(report, leaked, range(KNOWN // 2, KNOWN)) == 0
    assert (vocabulary_sketch(leaked, COMMON) == words).all()


def _leaked_key(silos: Deployed, request: TakeSurvey, folder: Path) -> bytes:
    """The key as the silo `south` has it."""
    home = folder / "homes" / "south" / "runs" / "run1" / "silos" / "south"
    return SurveyKey("south", silos.federation.name, home).open(request)


def test_the_coordinator_cannot_put_a_key_of_its_own_onto_the_roster(silos: Deployed) -> None:
    roster, private = silos.roster(), secrets.token_hex(32)
    own = (public_key(private), roster["east"][1])
    for name, forged in (("east", own), ("west", own), ("coordinator", own)):
        reply = silos.ask("north", SealSurveyKey(roster | {name: forged}, "north"))
        assert isinstance(reply, Failure), name
    two = {name: words for name, words in roster.items() if name != "east"}
    assert isinstance(silos.ask("north", SealSurveyKey({"north": roster["north"]}, "north")), Failure)
    assert isinstance(silos.ask("north", SealSurveyKey(two, "north")), SealedSurveyKey), "members alone are accepted"


def test_a_key_that_the_coordinator_drew_is_not_used(silos: Deployed, tmp_path: Path) -> None:
    """It plays the leader `south` with a key pair of its own, and seals a key that it knows."""
    roster = silos.roster()
    impostor = SurveyKey("south", silos.federation.name, tmp_path / "impostor")
    roster |= impostor.offer(OfferSurveyKey()).keys
    sealed = impostor.seal(SealSurveyKey(roster, "south")).sealed
    reply = silos.ask("north", TakeSurvey(20, False, roster, "south", sealed))
    assert isinstance(reply, Failure)
    # The control: silos that do not check signatures use it.
    folder = tmp_path / "unchecked"
    north = SurveyKey("north", silos.federation.name, folder)
    open_roster = north.offer(OfferSurveyKey()).keys | impostor.offer(OfferSurveyKey()).keys
    sealed = impostor.seal(SealSurveyKey(open_roster, "south")).sealed
    request = TakeSurvey(20, False, open_roster, "south", sealed)
    assert north.open(request) == impostor.open(request)


def test_the_floor_cannot_be_lowered_and_one_survey_has_one_key(silos: Deployed) -> None:
    request = silos.agreed()
    for floor in (19, 1, 0, -1):
        assert isinstance(silos.ask("north", replace(request, floor=floor)), Failure)
    assert isinstance(silos.ask("north", replace(request, labels=True)), Failure), "no rule releases labels"
    assert isinstance(silos.ask("north", request), SurveyReport)
    assert isinstance(silos.ask("north", silos.agreed()), Failure), "sketches under a second key"
