"""The per-silo baseline: nothing is shared, so a silo's model depends on its own data alone."""

from pathlib import Path

import torch

from hansa.methods.alone import ShareNothing
from hansa.runs.run import run
from tests.conftest import Build, same, weights


def test_nothing_is_in_scope() -> None:
    from hansa.core.tensors import Layout

    assert list(ShareNothing().shared(Layout(("a",), ((1,),)), {"a": "head"})) == []


def test_silos_do_not_influence_one_another(federation: Build, tmp_path: Path) -> None:
    """The model of a silo is the same whoever else takes part; in a federation it is not."""
    three = federation(method="alone", tokenizer={"kind": "bytes"})
    two = three.model_copy(update={"silos": {k: three.silos[k] for k in ("north", "south")}})
    models = []
    for name, one in (("three", three), ("two", two)):
        outcome = run(one, tmp_path / name, workers=0)
        models.append(weights(outcome.folder / "silos" / "south" / "model"))
        assert not (outcome.folder / "model").exists(), "there is no common model"
    assert same(*models)
    north = weights(tmp_path / "three" / "silos" / "north" / "model")
    assert not same(north, models[0])
    start = weights(tmp_path / "three" / "start")
    assert any(not torch.equal(start[k], north[k]) for k in start)
