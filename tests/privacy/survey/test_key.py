"""Agreement on the key of a survey: all silos get one key, and whoever changes the roster gets none."""

from dataclasses import replace
from pathlib import Path

import pytest

from hansa.core.survey_messages import OfferSurveyKey, Roster, SealSurveyKey, TakeSurvey
from hansa.privacy.secure_aggregation.protocol import Refused
from hansa.privacy.survey.key import SurveyKey


def members(folder: Path, names: str = "abc") -> tuple[dict[str, SurveyKey], Roster]:
    keys = {name: SurveyKey(name, "clinics", folder / name) for name in names}
    roster: Roster = {}
    for one in keys.values():
        roster |= one.offer(OfferSurveyKey()).keys
    return keys, roster


def agreed(keys: dict[str, SurveyKey], roster: Roster) -> TakeSurvey:
    return TakeSurvey(20, False, roster, "a", keys["a"].seal(SealSurveyKey(roster, "a")).sealed)


def test_every_silo_opens_the_same_key_also_after_a_restart(tmp_path: Path) -> None:
    keys, roster = members(tmp_path)
    request = agreed(keys, roster)
    opened = {one.open(request) for one in keys.values()}
    assert len(opened) == 1
    assert {SurveyKey("b", "clinics", tmp_path / "b").open(request)} == opened
    assert not any(key.hex() in str(request) for key in opened)
    assert keys["b"].seal(SealSurveyKey(roster, "a")).sealed == {}, "the leader alone draws the key"
    assert (tmp_path / "a" / "survey.json").stat().st_mode & 0o077 == 0


def test_another_roster_or_leader_or_federation_opens_nothing(tmp_path: Path) -> None:
    keys, roster = members(tmp_path)
    request = agreed(keys, roster)
    _, others = members(tmp_path / "others")
    for changed in (
        replace(request, roster={name: words for name, words in roster.items() if name != "c"}),
        replace(request, roster=roster | {"c": others["c"]}),
        replace(request, roster=roster | {"b": others["b"]}),
        replace(request, roster=roster | {"d": roster["c"]}),
        replace(request, leader="c"),
        replace(request, leader="d"),
        replace(request, sealed={"b": "00" * 48}),
        replace(request, sealed={}),
    ):
        with pytest.raises(Refused):
            keys["b"].open(changed)
    with pytest.raises(Refused):
        SurveyKey("b", "another", tmp_path / "b").open(request)


def test_one_survey_has_one_key(tmp_path: Path) -> None:
    """A second key would let a coordinator compare the sketches of one silo under keys of different rosters."""
    keys, roster = members(tmp_path)
    keys["b"].open(agreed(keys, roster))
    with pytest.raises(Refused, match="another key in this survey"):
        keys["b"].open(agreed(keys, roster))
