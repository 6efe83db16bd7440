"""Streamed fragments: every tensor in its turn, and the rest of the model goes on at the silo."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hansa.compressors.fragments import fragments
from hansa.config.method import build_method
from hansa.core.errors import ConfigError
from hansa.runs.ledger import Ledger
from hansa.runs.run import run
from tests.conftest import Build, same, weights


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(2, 6))
def test_every_tensor_is_in_one_fragment_and_fragments_are_alike(sizes: list[int], count: int) -> None:
    named = tuple((f"t{i}", size) for i, size in enumerate(sizes))
    found = fragments(named, count)
    assert sorted(name for one in found for name in one) == sorted(name for name, _ in named)
    filled = [sum(dict(named)[name] for name in one) for one in found]
    assert max(filled) - min(filled) <= max(sizes)


SETTINGS: dict[str, Any] = {"task": "classify", "model": "mini", "evaluate": {"every": 9, "share": 0.1}}
STEPS = {"lr": 0.2, "batch": 8, "samples": {"floor": 16}}


def after(build: Build, folder: Path, rounds: int, silos: int = 3, **changes: Any) -> dict[str, torch.Tensor]:
    federation = build(**SETTINGS, train=STEPS, rounds=rounds, **changes)
    kept = dict(list(federation.silos.items())[:silos])
    run(federation.model_copy(update={"silos": kept}), folder, workers=0)
    return weights(folder / "model")


def test_one_silo_goes_on_as_if_alone_and_the_server_has_each_fragment_as_of_its_turn(
    federation: Build, tmp_path: Path
) -> None:
    """With one silo the mean is its own update: the silo's training is not disturbed by synchronisation."""
    upload = {"steps": [{"name": "fragments", "count": 2}]}
    found = after(federation, tmp_path / "fragments", 2, 1, upload=upload)
    first, second = (after(federation, tmp_path / f"plain{n}", n, 1) for n in (1, 2))
    turns = {
        name: [bool(torch.allclose(value, one[name], atol=1e-6)) for one in (first, second)]
        for name, value in found.items()
    }
    moved = {name for name in found if not torch.allclose(first[name], second[name], atol=1e-5)}
    assert {tuple(turns[name]) for name in moved} == {(True, False), (False, True)}, "of round 1, or of round 2"


def test_both_ways_gives_the_same_model_for_fewer_bytes(federation: Build, tmp_path: Path) -> None:
    models, traffic = {}, {}
    for name, settings in {"both": {"count": 3}, "up": {"count": 3, "both": False}, "whole": None}.items():
        upload = {"steps": [{"name": "fragments", **settings}]} if settings else {}
        models[name] = after(federation, tmp_path / name, 4, upload=upload)
        ledger = Ledger(tmp_path / name)
        rows = ledger.select("select sum(sent), sum(received) from traffic")
        ledger.close()
        traffic[name] = tuple(rows[0])
    assert all(torch.allclose(models["both"][n], models["up"][n], atol=1e-5) for n in models["up"])
    assert not same(models["up"], models["whole"])
    assert traffic["up"][1] < 0.4 * traffic["whole"][1], "a third of the uplink"
    assert traffic["both"][0] < 0.6 * traffic["up"][0], "and of the downlink after the first round"


def test_quantised_fragments_need_the_whole_downlink(federation: Build) -> None:
    chain = [{"name": "fragments", "count": 2}, "int4"]
    with pytest.raises(ConfigError, match="leave one of the two out"):
        build_method(federation(upload={"steps": chain}))
    chain[0] = {"name": "fragments", "count": 2, "both": False}
    assert build_method(federation(upload={"steps": chain})).upload.lossy
