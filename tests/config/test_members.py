"""Settings on their way to members: an older version ignores new settings at their defaults and refuses others."""

import json
from typing import Any

import pytest

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.shared import AT_DEFAULT, SETTINGS, canonical, for_members, from_coordinator
from hansa.core.errors import ConfigError


def federation(**more: Any) -> Federation:
    return parse({"silos": {"lyon": {"train": "a.jsonl", "language": "fr"}, "turin": "b.jsonl"}, "rounds": 3, **more})


def test_members_get_all_values() -> None:
    """Also defaults: a version with another default must not train with it."""
    made = federation(train={"lr": 0.2}, method={"name": "fedprox", "mu": 0.5})
    sent = json.loads(for_members(made))
    assert sent[SETTINGS]["train"]["batch"] == 16
    assert ["train", "batch"] in sent[AT_DEFAULT]
    assert ["train", "lr"] not in sent[AT_DEFAULT]
    assert canonical(from_coordinator(for_members(made))) == canonical(made)


@pytest.mark.parametrize("place", [("new",), ("train", "new"), ("silos", "lyon", "new"), ("evaluate", "new")])
def test_a_setting_of_a_newer_version_is_ignored_at_its_default_only(place: tuple[str, ...]) -> None:
    made = federation(train={"lr": 0.2})
    sent = json.loads(for_members(made))
    section = sent[SETTINGS]
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = True
    unused = {**sent, AT_DEFAULT: [*sent[AT_DEFAULT], list(place)]}
    assert canonical(from_coordinator(json.dumps(unused).encode())) == canonical(made)
    if place[0] == "evaluate":  # the whole section is at its default, so what is in it is, too
        return
    with pytest.raises(ConfigError, match=f"'{'.'.join(place)}', which this version of Hansa does not know: upgrade"):
        from_coordinator(json.dumps(sent).encode())


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"settings": {}, "at_default": 3}', b"\xff"])
def test_anything_else_is_one_sentence(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"the settings cannot be (read|used)"):
        from_coordinator(text)
