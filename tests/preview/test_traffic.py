"""The bytes of a round that `hansa check` predicts are the bytes that the ledger measures."""

from pathlib import Path

import pytest

from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.config.method import build_method
from hansa.core.errors import ConfigError
from hansa.preview.preview import preview
from hansa.preview.traffic import Traffic
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build

KC = {"name": "fedkc", "q": 3, "floor": 1}


def measured(federation: Federation, folder: Path) -> tuple[int, ...]:
    """Bytes of the last round: all down, all up, knowledge up, knowledge down."""
    ledger = Ledger(run(federation, folder, workers=0).folder)
    try:
        [row] = ledger.select(
            "select sum(sent), sum(received), sum(offered), sum(told) from traffic where round = "
            "(select max(round) from traffic)"
        )
    finally:
        ledger.close()
    return row


def predicted(federation: Federation) -> Traffic:
    traffic = preview(federation).traffic
    assert traffic is not None
    return traffic


@pytest.mark.parametrize("layer", ["last", "all"])
def test_an_exchange_is_counted_to_the_byte(layer: str, federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify", method=KC | {"layer": layer}, rounds=1, data={"max_length": 8})
    seen = predicted(settings)
    _, _, up, down = measured(settings, tmp_path / "run")
    numbers = 3 * ((64 if layer == "last" else 8 * 64) + 2)  # q·(d + k), q·(T·d + k)
    assert seen.knowledge_up == 4 * 3 * numbers, "three silos"
    if layer == "last":
        assert (up, down) == (seen.knowledge_up, seen.knowledge_down)
    else:
        assert up <= seen.knowledge_up, "texts may be shorter"
        assert down <= seen.knowledge_down == 2 * seen.knowledge_up


@pytest.mark.parametrize("upload", ["whole", "int8", "top-k+int4", "bf16"])
def test_an_upload_is_counted(upload: str, federation: Build, tmp_path: Path) -> None:
    settings = federation(task="classify", model="tiny", rounds=2, upload=upload)
    seen = predicted(settings)
    sent, received, _, _ = measured(settings, tmp_path / "run")
    assert seen.updates == pytest.approx(received, rel=0.1)
    assert seen.model == pytest.approx(sent, rel=0.1)
    assert (seen.updates < seen.model / 1.9) == (upload != "whole")


def test_only_trained_tensors_are_counted(federation: Build) -> None:
    whole, some = (preview(federation(task="classify", model={"preset": "tiny", "adapt": a})) for a in ("full", "lora"))
    assert some.traffic is not None
    assert whole.traffic is not None
    assert some.traffic.total < whole.traffic.total / 4
    assert some.parameters == whole.parameters


def test_silos_below_the_floor_are_named(federation: Build) -> None:
    seen = preview(federation(task="classify", method={"name": "fedkc", "floor": 10_000}))
    assert any("share no knowledge: north, south, east" in line for line in seen.warnings)


def test_an_exchange_needs_two_participants() -> None:
    silos = {"a": "a", "b": "b"}
    with pytest.raises(ConfigError, match="one takes part in a round"):
        build_method(parse({"silos": silos, "task": "classify", "method": "fedkc", "participation": {"count": 1}}))
    with pytest.raises(ConfigError, match=r"participation\.share is 0"):
        parse({"silos": silos, "participation": {"share": 0}})
