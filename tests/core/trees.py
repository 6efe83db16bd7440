"""Trees on made-up words, for tests: the `tree` fixture, and runs over a link of the test's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hansa.client.host import SiloHost
from hansa.client.runtime import Runtime
from hansa.config.federation import Federation
from hansa.config.file import parse
from hansa.core.link import Link
from hansa.runs.callbacks import RunEvents
from hansa.runs.directory import RunDirectory
from hansa.runs.ledger import Ledger
from hansa.runs.run import Run
from hansa.runs.start import begin, describe
from tests.conftest import WORDS, weights, write_words

LEAVES = {"north": "north", "north-2": "north", "south": "south", "south-2": "south"}


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Federation]:
    """A root and two regions with mixtures, two leaves below each."""

    def build(**settings: Any) -> Federation:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        files = {n: str(write_words(folder / f"{n}.jsonl", WORDS[w], 60)) for n, w in LEAVES.items()}
        raw = {
            "name": "tree",
            "task": "causal-lm",
            "model": "mini",
            "tokenizer": {"kind": "bytes"},
            "data": {"max_length": 16, "valid": 0.0, "test": 0.2},
            "root": "mixture",
            "silos": {
                "west": {"mixture": True, "silos": {n: files[n] for n in ("north", "north-2")}},
                "east": {"mixture": True, "silos": {n: files[n] for n in ("south", "south-2")}},
            },
            "method": "worldlm",
            "rounds": 2,
            "train": {"optimizer": "adamw", "lr": 3e-3, "batch": 8, "samples": {"floor": 16}},
            "evaluate": {"every": 1, "share": 1.0},
            "checkpoint": {"every": 1},
        }
        return parse(raw | settings)

    return build


def select(folder: Path, query: str, *arguments: Any) -> list[Any]:
    """The rows of a query on a run's ledger."""
    ledger = Ledger(folder)
    found = ledger.select(query, *arguments)
    ledger.close()
    return found


def run_over(federation: Federation, folder: Path, link_of: Callable[[SiloHost], Link]) -> dict[str, torch.Tensor]:
    """A whole run over a given link; the weights of its model."""
    directory, callbacks = RunDirectory.create(federation, folder, False), RunEvents()
    ledger = Ledger(folder)
    link = link_of(SiloHost(Runtime(federation, folder)))
    begin(federation, directory, link, ledger, callbacks)
    cards = describe(federation, directory, link, ledger, callbacks)
    Run(federation, directory, link, cards, ledger, callbacks).go()
    ledger.close()
    return weights(folder / "model")
