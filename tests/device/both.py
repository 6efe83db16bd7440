"""`python -m tests.device.both LIBRARY FOLDER`: every kind of run on the CPU and on the other device, side by side.

In a process of its own: torch knows the other device from then on, and `auto` would choose it.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from hansa.config.file import parse
from hansa.runs.inference import load
from hansa.runs.run import run
from tests.conftest import WORDS, weights, write_words
from tests.device import annex

# With a large eps: Adam would make steps of gradients that are nothing but rounding.
ADAM = {"optimizer": "adamw", "lr": 1e-3, "eps": 1e-2, "batch": 8, "samples": {"floor": 16}, "keep_optimizer": True}
CASES: dict[str, dict[str, Any]] = {
    "mlm": {"train": ADAM},
    "fedprox, calm+int8": {"method": {"name": "fedprox", "mu": 0.1}, "upload": "calm+int8"},
    "secure_aggregation": {"secure_aggregation": True},
    "private": {"privacy": {}},
    "private documents": {"privacy": {"unit": "document", "field": "text", "steps": 2}},
    "private documents, adapters": {
        "task": "classify",
        "model": {"preset": "mini", "adapt": "lora", "lora": {"rank": 1}},
        "privacy": {"unit": "document", "field": "text", "steps": 2},
    },
    "personal": {"personal": {"rounds": 2, "mix": "sweep", "nearby": 1, "train": ADAM}},
    "apfl": {"personal": {"rounds": 2, "mix": "adaptive", "train": ADAM}},
    "fedper": {"task": "classify", "method": "fedper"},
    "moon": {"task": "classify", "method": {"name": "moon"}},
    "fedmix": {"task": "classify", "method": {"name": "fedmix"}},
    "fedkc last": {"task": "classify", "method": {"name": "fedkc", "layer": "last", "q": 3}},
    "fedkc all": {"task": "classify", "method": {"name": "fedkc", "layer": "all", "q": 3, "floor": 2}},
    "worldlm": {"task": "causal-lm", "method": "worldlm", "tree": True, "train": ADAM},
    "translate": {"task": {"name": "translate", "beams": 2}, "data": {"max_length": 64, "test": 0.2}},
}
ASKED = {"mlm": "fever [MASK] chill", "causal-lm": "fever cough", "classify": "fever cough", "translate": "fever cough"}


def federation(folder: Path, settings: dict[str, Any]) -> Any:
    settings = dict(settings)
    task = settings.get("task", "mlm")
    labelled, pairs = task == "classify", isinstance(task, dict)
    silos: dict[str, Any] = {}
    for name, words in WORDS.items():
        file = write_words(folder / f"{name}.{labelled}.jsonl", words, 60, labels=labelled)
        if pairs:
            rows = [json.loads(line) | {"target": "so it is"} for line in file.read_text().splitlines()]
            file = folder / f"{name}.pairs.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        silos[name] = {"train": str(file)}
    if (private := settings.pop("privacy", None)) is not None:
        silos["north"]["privacy"] = {"noise_multiplier": 1e-9, "clip": 0.5, "seeded": True} | private
    if settings.pop("tree", False):
        silos = {"west": {"silos": {n: silos[n] for n in ("north", "south")}}, "east": silos["east"]}
    usual = {
        "name": "both",
        "model": "mini",
        "tokenizer": {"size": 330, "min_count": 2},
        "data": {"max_length": 16, "valid": 0.2, "test": 0.2},
        "silos": silos,
        "rounds": 2,
        "train": {"lr": 0.2, "batch": 8, "samples": {"floor": 16}},
    }
    return parse(usual | settings)


def main(library: Path, folder: Path) -> None:
    warnings.simplefilter("ignore")
    annex.register(library)
    for name, settings in CASES.items():
        found, said = [], []
        for device in ("cpu", "annex"):
            os.environ["HANSA_DEVICE"] = device
            outcome = run(federation(folder, settings), folder / f"{name} {device}", workers=0)
            found.append(weights(outcome.folder / "model"))
            runtime, model = load(outcome.folder)
            assert next(model.parameters()).device.type == device
            said.append(runtime.task.predict(model, runtime.vocabulary, ASKED[runtime.federation.task.name]))
        largest = max(float((found[0][key] - found[1][key]).abs().max()) for key in found[0])
        print(f"{name}: {largest:.2g}", flush=True)
        assert largest < 1e-5, f"{name}: the devices differ by {largest}"
        assert repr(said[0])[:40] == repr(said[1])[:40]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
