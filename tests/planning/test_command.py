"""`hansa plan` as a person types it: from a file of constants, and its mistakes in one sentence."""

import json
from pathlib import Path

import pytest

from hansa.cli.plan import levels, rate
from hansa.core.errors import UserError
from tests.cli.test_cli import call, ok

CONSTANTS = {
    **dict.fromkeys(("request", "child_request", "broker_request"), 2e-3),
    **dict.fromkeys(("send", "receive", "child_receive", "child_send", "add", "decode"), 1e-9),
    "envelope": 1500.0,
    "fixed": 0.05,
    "cores": 2,
    "stretch": 1.0,
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    found = {"constants": CONSTANTS, "model": 40_000_000, "update": 40_000_000, "sample": 0.05, "samples": 64}
    (tmp_path / "constants.json").write_text(json.dumps({"calibration": found}))
    (tmp_path / "federation.yaml").write_text("name: clinics\nsilos: {a: a.jsonl, b: b.jsonl}\n")
    return [str(tmp_path / "federation.yaml"), "--constants", str(tmp_path / "constants.json")]


def test_rounds_are_compared_and_what_limits_them_is_named(files: list[str]) -> None:
    printed = json.loads(ok("plan", *files, "--silos", "10", "--silos", "10000", "--regions", "0", "--regions", "100",
                            "--format", "json"))  # fmt: skip
    assert [(one["silos"], one["regions"]) for one in printed["rounds"]] == [(10, []), (10_000, []), (10_000, [100])]
    flat, tree = printed["rounds"][1:]
    assert flat["limit"] == "the coordinator's link"
    assert tree["seconds"] < flat["seconds"]
    assert flat["down"] == 10_000 * 40_000_000
    assert printed["pays_from"]["regions"]["first"] > 2
    text = ok("plan", *files, "--silos", "10", "--uplink", "1Mbit")
    assert "the silos' links" in text
    assert "2 silos" not in ok("plan", *files).splitlines()[0], "the file's own number is the default"


def test_mistakes_are_one_sentence(files: list[str], tmp_path: Path) -> None:
    done = call("plan", files[0], "--set", "seed=7", "--set", "rounds=9", "--set", "train.lr=0.123456")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "run 'hansa plan FED.yaml --calibrate' first" in done.stderr
    (tmp_path / "constants.json").write_text("[]")
    done = call("plan", *files)
    assert done.returncode == 2
    assert "has no constants" in done.stderr


def test_levels_and_accelerator_hours(files: list[str]) -> None:
    printed = json.loads(
        ok("plan", *files, "--silos", "64", "--regions", "4/16", "--gpu-hours", "2", "--format", "json")
    )
    [one] = printed["rounds"]
    assert one["regions"] == [4, 16]
    assert one["parts"]["training at the slowest silo"] == 7200.0
    assert "4/16" in ok("plan", *files, "--silos", "64", "--regions", "4/16")


@pytest.mark.parametrize("text", ["4/", "16/4", "4/0", "-1", "many", "4/4"])
def test_levels_grow_from_the_root_down(text: str) -> None:
    with pytest.raises(UserError, match="is not a number of regions"):
        levels(text)
    assert levels("0") == ()
    assert levels("4/16") == (4, 16)


@pytest.mark.parametrize("text", ["100", "fast", "Mbit", "1..2Mbit", "0Mbit", "-1Gbit"])
def test_a_rate_has_a_unit(text: str) -> None:
    with pytest.raises(UserError, match="write it as 100Mbit"):
        rate("--uplink", text)
    assert rate("--uplink", "100Mbit") == 12.5e6
    assert rate("--uplink", "2.5 gbit/s") == 312.5e6
